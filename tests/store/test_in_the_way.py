"""Another program has a state file open and shares too little of it, for a while, as a virus scanner does."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import wine

wine.only_windows()

from nvx_ref.platform import process
from nvx_ref.platform.windows import handles
from nvx_ref.store import LockedStore, Recovered
from nvx_ref.store.names import CAPABILITY, JOURNAL, LOCK, LOG, OUTCOME, RUNTIME
from sandboxes import CONFIGURATION, IDENTITY, NAME, Site, ended, soon, write_journal, write_runtime
from windows_holders import IN_THE_WAY, holding, let_go_in

SECONDS = 0.3
Work = Callable[[Site, LockedStore], None]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a busy machine keeps the other program from letting go is not what these tests are about."""
    monkeypatch.setattr(handles, "RETRY_SECONDS", 60.0)


def configure(_: Site, locked: LockedStore) -> None:
    locked.write_configuration(b"new")
    assert locked.read_configuration() == b"new"


def read(_: Site, locked: LockedStore) -> None:
    assert locked.read_configuration() == CONFIGURATION


def launch(site: Site, locked: LockedStore) -> None:
    begun = locked.begin_launch(IDENTITY)
    begun.record_process(process.own_identity())
    assert begun.commit() == locked.runtime()
    assert not site.path(JOURNAL).exists()


def recover(site: Site, locked: LockedStore) -> None:
    assert locked.recover().kind is Recovered.EXITED
    assert not site.path(JOURNAL).exists()
    assert not site.path(CAPABILITY).exists()


def clear(site: Site, locked: LockedStore) -> None:
    assert locked.clear_runtime("b" * 32)
    assert not site.path(RUNTIME).exists()


def remove(site: Site, locked: LockedStore) -> None:
    locked.recover()
    locked.remove()
    assert not site.path().exists()


@pytest.mark.case("T48")
@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("config.json", read),
        ("config.json", configure),
        ("config.json", remove),
        (LOG, launch),
        (LOG, remove),
        (OUTCOME, launch),
        (JOURNAL, recover),
        (CAPABILITY, recover),
        (RUNTIME, clear),
    ],
)
@pytest.mark.parametrize("share", ["none", "read"])
def test_an_operation_waits_for_a_program_that_does_not_share_what_it_needs(
    provisioned: Site, name: str, work: Work, share: str
) -> None:
    provisioned.path(LOG).touch()
    if name in {OUTCOME, CAPABILITY}:
        provisioned.path(name).write_text("x")
    if work is recover:
        write_journal(provisioned, ended())
    if work is clear:
        write_runtime(provisioned, ended())
    with (
        provisioned.store.lock_removal(NAME, deadline=soon()) as locked,
        holding(IN_THE_WAY, str(provisioned.path(name)), share) as scanner,
    ):
        timer = let_go_in(scanner, SECONDS)
        work(provisioned, locked)
        timer.join()


@pytest.mark.case("T48")
def test_the_lock_itself_is_waited_for(provisioned: Site) -> None:
    with holding(IN_THE_WAY, str(provisioned.path(LOCK)), "none") as scanner:
        timer = let_go_in(scanner, SECONDS)
        provisioned.lock().close()
        timer.join()


@pytest.mark.case("T48")
def test_a_name_that_was_removed_and_is_still_open_is_waited_for(provisioned: Site) -> None:
    """Removed as any program does it: the name is kept until the last handle is closed, where it can't go at once."""
    provisioned.path(CAPABILITY).touch()
    with provisioned.lock() as locked, holding(IN_THE_WAY, str(provisioned.path(CAPABILITY)), "all") as scanner:
        os.unlink(provisioned.path(CAPABILITY))
        timer = let_go_in(scanner, SECONDS)
        launch(provisioned, locked)
        timer.join()
        assert len(provisioned.path(CAPABILITY).read_bytes()) == 32
