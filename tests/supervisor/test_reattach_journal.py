"""The verdicts about a launch that was begun and not finished: one test and one row each."""

from __future__ import annotations

import pytest

from looking import STOPPED, exited, found_by, looked, unknown
from nvx_ref.deadline import Deadline
from nvx_ref.platform.contract import Unpinnable
from nvx_ref.store import (
    ProcessIdentity,
    Recovered,
    evidence,
)
from nvx_ref.store.names import JOURNAL, LOG, RUNTIME
from nvx_ref.supervisor import Exited, Indeterminate, Live, launch, reattach
from sandboxes import (
    IDENTITY,
    Site,
    claimed,
    ended,
    soon,
    stranger,
    wait_until_served,
    write_journal,
    write_runtime,
)

pytestmark = pytest.mark.usefixtures("brief")


@pytest.mark.spec("656.reattach.b")
def test_a_journal_without_a_process_and_a_free_claim(recorded: Site) -> None:
    journal = write_journal(recorded)
    found = exited(recorded, None)
    assert found.recovery is not None
    assert (found.recovery.kind, found.recovery.launch_id) == (Recovered.EXITED, journal.launch_id)


def test_a_journal_without_a_process_and_a_held_claim(recorded: Site) -> None:
    write_journal(recorded)
    with claimed(recorded.path(LOG)):
        unknown(recorded, "claim-held", when_looked="launch-unfinished")


@pytest.mark.case("T07a")
def test_a_journal_whose_log_was_replaced(recorded: Site) -> None:
    write_journal(recorded)
    recorded.path(LOG).rename(recorded.path("disk.img"))
    unknown(recorded, "log-replaced")
    recorded.path(LOG).touch(0o600)
    unknown(recorded, "log-replaced")


@pytest.mark.spec("620.scope3.n")
def test_a_journal_without_a_process_of_an_earlier_boot(recorded: Site) -> None:
    journal = write_journal(recorded, boot="0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9")
    recorded.path(LOG).unlink()
    with claimed(recorded.path(LOG)):
        found = exited(recorded, None)
    assert found.recovery is not None
    assert (found.recovery.kind, found.recovery.launch_id) == (Recovered.EXITED, journal.launch_id)


def test_a_journal_with_a_process_that_is_gone(recorded: Site) -> None:
    write_journal(recorded, ended())
    found = exited(recorded, None)
    assert found.recovery is not None
    assert found.recovery.kind is Recovered.EXITED


def test_a_journal_with_a_process_that_can_not_be_examined(recorded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ProcessIdentity) -> None:
        raise Unpinnable("it can't be looked at", detail="denied")

    write_journal(recorded, ended())
    monkeypatch.setattr(evidence.ProcessRef, "open", refuse)
    unknown(recorded, "denied")


@pytest.mark.spec("656.reattach.f")
@pytest.mark.spec("656.tests.d")
def test_a_journal_with_a_process_that_lives(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        begun = launch(locked, IDENTITY, provisioned.serving)
        wait_until_served(begun)
        before = looked(provisioned)
        assert isinstance(before, Indeterminate)
        assert before.detail == "launch-unfinished"
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Exited)
        assert found.recovery is not None
        assert found.recovery.kind is Recovered.TERMINATED
        # The launch was ended behind its owner's back; what is left of it says so instead of failing.
        begun.abandon()
    assert provisioned.stand_ins() == []
    assert provisioned.listing() == STOPPED


def test_a_journal_with_a_process_that_does_not_go_in_time(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with provisioned.lock() as locked:
        begun = launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
        with monkeypatch.context() as patched:
            patched.setattr(evidence.ProcessRef, "terminate", lambda _: None)
            found = reattach(locked, IDENTITY, deadline=Deadline.after(0.05))
        assert isinstance(found, Indeterminate)
        assert found.detail == "exit-pending"
        assert locked.journal() is not None
        begun.abandon()


def test_a_journal_of_a_newer_launch_is_judged_before_the_record(recorded: Site) -> None:
    gone = ended()
    with stranger(log=recorded.path(LOG)) as older:
        write_runtime(recorded, older)
        write_journal(recorded)
        unknown(recorded, "claim-held", when_looked="launch-unfinished")
        write_journal(recorded, gone)
        assert isinstance(looked(recorded), Live)
        found = found_by(recorded)
        assert isinstance(found, Live)
    assert JOURNAL not in recorded.listing()
    assert RUNTIME in recorded.listing()


def test_a_journal_of_the_record_is_a_commit_cut_short(recorded: Site) -> None:
    with stranger(log=recorded.path(LOG)) as alive:
        record = write_runtime(recorded, alive)
        write_journal(recorded, alive, launch_id=record.launch_id)
        assert isinstance(looked(recorded), Live)
        assert isinstance(found_by(recorded), Live)
    assert JOURNAL not in recorded.listing()
    found = exited(recorded, record)
    assert found.recovery is None


def test_a_commit_cut_short_whose_vmm_exited_carries_both(recorded: Site) -> None:
    record = write_runtime(recorded, ended())
    write_journal(recorded, record.process, launch_id=record.launch_id)
    found = exited(recorded, record)
    assert found.recovery is not None
    assert found.recovery.kind is Recovered.COMPLETED
