"""Without a number that the kernel never gives again, the log tells whose process it is (T02)."""

from __future__ import annotations

import msgspec
import pytest

from nvx_ref.platform import files, process
from nvx_ref.platform.contract import ProcessGone
from nvx_ref.store import Recovered, claim, evidence
from nvx_ref.store.names import LOG
from recovering import Scripted, fork_window, kept, recovered
from sandboxes import Site, claimed, log_of, raising, stranger, write_journal

pytestmark = pytest.mark.usefixtures("brief")


@pytest.mark.case("T02")
def test_without_a_unique_number_a_free_claim_is_the_second_witness(launched: Site) -> None:
    with stranger() as alive:
        identity = msgspec.structs.replace(alive, pidfs_inode=None)
        write_journal(launched, identity)
        recovered(launched, Recovered.EXITED, identity)


@pytest.mark.case("T02")
@pytest.mark.spec("656.recheck")
def test_the_second_witness_is_looked_at_again_for_a_while(launched: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that another thread forked holds the claim until its exec: one look would make a stranger the VMM."""
    monkeypatch.setattr(claim, "CLAIM_WAIT", 30)
    with stranger() as alive:
        identity = msgspec.structs.replace(alive, pidfs_inode=None)
        write_journal(launched, identity)
        with fork_window(launched, monkeypatch):
            recovered(launched, Recovered.EXITED, identity)


@pytest.mark.case("T02")
@pytest.mark.parametrize("held", [True, False], ids=["held by another", "moved away"])
def test_a_process_without_the_log_is_neither_ended_nor_taken_for_exited(launched: Site, *, held: bool) -> None:
    log = log_of(launched)
    with stranger() as alive:
        write_journal(launched, msgspec.structs.replace(alive, pidfs_inode=None))
        if not held:
            launched.path(LOG).rename(launched.path("disk.img"))
        with claimed(launched.path(LOG)):
            kept(launched, "no-witness")
            assert held == (log_of(launched) == log)


@pytest.mark.case("T02")
def test_a_process_that_has_the_log_is_the_recorded_one(launched: Site) -> None:
    with stranger(log=launched.path(LOG)) as alive:
        identity = msgspec.structs.replace(alive, pidfs_inode=None)
        write_journal(launched, identity)
        found = evidence.examine(
            files.open_private(str(launched.path())), identity, log_of(launched), launched.endpoint, None
        )
        assert found is not None
        found.close()


@pytest.mark.case("T02")
@pytest.mark.parametrize("gone", [True, False], ids=["reaped", "zombie"])
def test_a_process_that_ends_while_its_witness_is_asked_for_has_exited(
    launched: Site, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    acting = Scripted(has_log=False, exited=True)
    if gone:
        monkeypatch.setattr(acting, "holds_output", raising(ProcessGone("gone")))
    monkeypatch.setattr(evidence.ProcessRef, "open", lambda _: acting)
    identity = msgspec.structs.replace(process.own_identity(), pidfs_inode=None)
    with claimed(launched.path(LOG)):
        assert (
            evidence.examine(
                files.open_private(str(launched.path())),
                identity,
                log_of(launched),
                launched.endpoint,
                None,
            )
            is None
        )
    assert acting.closed
