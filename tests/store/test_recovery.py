"""Recovery of an interrupted launch: each row of the evidence, and no process that nobody verified."""

from __future__ import annotations

import os
import subprocess
import threading

import msgspec
import pytest

from nvx_ref.deadline import POLL_INTERVAL, Deadline
from nvx_ref.errors import Indeterminate, Malformed, NvxError, Refused
from nvx_ref.platform import files, process
from nvx_ref.platform.contract import Unpinnable
from nvx_ref.process import ProcessRef
from nvx_ref.steps import Step
from nvx_ref.store import ProcessIdentity, Recovered, claim, evidence
from nvx_ref.store.names import JOURNAL, LOG, RUNTIME
from nvx_ref.supervisor import peer_probe
from recovering import LAUNCH_ID, STOPPED, Looks, Scripted, fork_window, kept, recovered
from sandboxes import (
    STAND_IN,
    Site,
    claimed,
    ended,
    log_of,
    open_log,
    raising,
    soon,
    stranger,
    wait_for,
    write_journal,
    write_runtime,
)
from system import KILLED, PYTHON, unix

pytestmark = pytest.mark.usefixtures("brief")


def test_without_a_journal_there_is_nothing_to_recover(launched: Site) -> None:
    before = launched.listing()
    with launched.lock() as locked:
        assert locked.recover().kind is Recovered.NOTHING
    assert launched.listing() == before
    assert launched.steps == []


@pytest.mark.case("T15")
@pytest.mark.spec("620.scope2.d")
def test_a_marker_whose_claim_is_free_never_became_a_process(launched: Site) -> None:
    write_journal(launched)
    recovered(launched, Recovered.EXITED, None)
    assert launched.steps == [Step.RECOVER_PROBED, Step.RECOVER_CLEARED]


@pytest.mark.case("T13")
@pytest.mark.spec("620.scope2.d")
def test_a_marker_whose_claim_is_held_is_unknown_until_it_is_free(launched: Site) -> None:
    write_journal(launched)
    with claimed(launched.path(LOG)):
        kept(launched, "claim-held")
    recovered(launched, Recovered.EXITED, None)


@pytest.mark.case("T07a")
def test_a_log_that_was_replaced_proves_nothing(launched: Site) -> None:
    write_journal(launched)
    launched.path(LOG).rename(launched.path("disk.img"))
    with claimed(launched.path("disk.img")):
        kept(launched, "log-replaced")
        launched.path(LOG).touch(0o600)
        kept(launched, "log-replaced")
    # Nor once it is free: the file at the log's name isn't the one that was claimed.
    kept(launched, "log-replaced")


@pytest.mark.spec("656.recheck")
def test_a_claim_is_looked_at_again_for_a_while(launched: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "CLAIM_WAIT", 30)
    write_journal(launched)
    with fork_window(launched, monkeypatch):
        recovered(launched, Recovered.EXITED, None)


@pytest.mark.spec("620.scope2.e")
def test_a_recorded_process_is_verified_and_terminated(launched: Site) -> None:
    log = open_log(launched.path(LOG))
    assert files.claim_log(log)
    child = subprocess.Popen(
        [PYTHON, "-I", "-c", "import time; time.sleep(1000)"], stdin=subprocess.DEVNULL, stdout=log
    )
    os.close(log)
    with process.Pin.open(child.pid) as pin:
        identity = pin.identity()
    write_journal(launched, identity)
    reaper = threading.Thread(target=child.wait)
    reaper.start()
    recovered(launched, Recovered.TERMINATED, identity)
    reaper.join()
    assert child.returncode == KILLED
    assert launched.steps == [
        Step.RECOVER_PROBED,
        Step.RECOVER_VERIFIED,
        Step.RECOVER_TERMINATED,
        Step.RECOVER_CLEARED,
    ]


def test_a_recorded_process_that_is_gone_has_exited(launched: Site) -> None:
    identity = ended()
    write_journal(launched, identity)
    recovered(launched, Recovered.EXITED, identity)
    assert launched.steps == [Step.RECOVER_PROBED, Step.RECOVER_CLEARED]


@pytest.mark.case("T07")
@pytest.mark.spec("656.reattach.g")
def test_a_number_of_another_process_has_exited_and_is_not_signalled(launched: Site) -> None:
    with stranger() as alive:
        for identity in (
            msgspec.structs.replace(alive, start_time=alive.start_time + 1, pidfs_inode=None),
            msgspec.structs.replace(process.own_identity(), start_time=1, pidfs_inode=None),
            ProcessIdentity(1, 1, alive.boot),
        ):
            write_journal(launched, identity)
            recovered(launched, Recovered.EXITED, identity)
            for name in ("control.sock", "outcome.json"):
                launched.path(name).touch()


@pytest.mark.spec("620.scope3.n")
def test_an_earlier_boot_is_exited_and_nothing_is_probed(launched: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with stranger() as alive:
        identity = msgspec.structs.replace(alive, boot="0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9")
        write_journal(launched, identity)
        monkeypatch.setattr(process.Pin, "open", None)
        with claimed(launched.path(LOG)):
            recovered(launched, Recovered.EXITED, identity)
        monkeypatch.undo()


@pytest.mark.spec("620.scope3.n")
@pytest.mark.parametrize("log", ["lost", "renumbered", "held"])
def test_a_marker_of_an_earlier_boot_is_exited_whatever_became_of_its_log(launched: Site, log: str) -> None:
    """The log dies with the boot, or its device has another number in the next one: nothing else would tell."""
    id_ = log_of(launched)
    if log == "renumbered":
        id_ = msgspec.structs.replace(id_, volume="fe99")
    write_journal(launched, log=id_, boot="0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9")
    with claimed(launched.path(LOG)):
        if log == "lost":
            launched.path(LOG).rename(launched.path("disk.img"))
        with launched.lock() as locked:
            recovery = locked.recover(lambda *_: pytest.fail("probed"))
    assert (recovery.kind, recovery.launch_id, recovery.process) == (Recovered.EXITED, LAUNCH_ID, None)
    assert JOURNAL not in launched.listing()
    assert "control.capability" not in launched.listing()


def test_a_marker_of_this_boot_is_judged_by_the_claim(launched: Site) -> None:
    write_journal(launched, boot=process.boot_identity())
    with claimed(launched.path(LOG)):
        kept(launched, "claim-held")
    recovered(launched, Recovered.EXITED, None)


def test_a_boot_that_can_not_be_read_is_unknown(launched: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write_journal(launched, boot="0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9")
    monkeypatch.setattr(process, "boot_identity", raising(Indeterminate("no boot", detail="boot")))
    kept(launched, "boot")


@unix("there is one namespace of processes")
def test_another_namespace_is_decided_by_the_claim(launched: Site) -> None:
    with stranger() as alive:
        identity = msgspec.structs.replace(alive, pid_namespace=1)
        write_journal(launched, identity)
        with claimed(launched.path(LOG)):
            kept(launched, "pid-namespace")
        log = launched.path(LOG)
        log.rename(launched.path("disk.img"))
        kept(launched, "pid-namespace")
        launched.path("disk.img").rename(log)
        recovered(launched, Recovered.EXITED, identity)


@pytest.mark.parametrize("detail", ["no-pidfd", "denied", "hidden"])
@pytest.mark.spec("656.tests.l")
def test_a_process_that_can_not_be_examined_is_unknown(
    launched: Site, monkeypatch: pytest.MonkeyPatch, detail: str
) -> None:
    with stranger() as alive:
        write_journal(launched, alive)

        def refuse(_: ProcessIdentity) -> None:
            raise Unpinnable("it can't be held", subject="process 7", detail=detail)

        monkeypatch.setattr(evidence.ProcessRef, "open", refuse)
        kept(launched, detail)


@pytest.mark.parametrize(
    ("part", "detail"), [({"exits": False}, "exit-pending"), ({"refuses": True}, "denied")], ids=["pending", "denied"]
)
def test_a_process_that_does_not_end_is_unknown(
    launched: Site, monkeypatch: pytest.MonkeyPatch, part: dict[str, bool], detail: str
) -> None:
    acting = Scripted(**part)
    monkeypatch.setattr(evidence.ProcessRef, "open", lambda _: acting)
    write_journal(launched, process.own_identity())
    with claimed(launched.path(LOG)):
        error = kept(launched, detail)
    assert "kept" in (error.hint or "")
    assert acting.closed


@pytest.mark.case("T14")
def test_a_server_that_has_the_log_is_the_vmm(launched: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write_journal(launched)
    acting = Scripted()
    asked: list[str] = []
    bounds: list[float] = []
    sooner = Deadline.sooner

    def noted(deadline: Deadline, seconds: float) -> Deadline:
        bounds.append(seconds)
        return sooner(deadline, seconds)

    monkeypatch.setattr(Deadline, "sooner", noted)

    def probe(endpoint: str, deadline: Deadline) -> ProcessRef:
        asked.append(endpoint)
        assert bounds[-1] == POLL_INTERVAL
        # As far as a sum of seconds since the boot is exact.
        assert deadline.remaining() <= POLL_INTERVAL + 1e-6
        return acting  # type: ignore[return-value]

    with claimed(launched.path(LOG)), launched.lock() as locked:
        assert locked.recover(probe).kind is Recovered.TERMINATED
    assert asked == [launched.endpoint]
    assert acting.terminated
    assert acting.closed
    assert launched.listing() == {*STOPPED, "outcome.json"}


@pytest.mark.parametrize("answer", ["none", "no log", "hidden", "error"])
def test_a_probe_that_proves_nothing_is_asked_again_and_then_unknown(launched: Site, answer: str) -> None:
    write_journal(launched)
    has_log = Indeterminate("its outputs can't be read", detail="hidden") if answer == "hidden" else False
    acting = [Scripted(has_log=has_log) for _ in range(4)]
    asked = 0

    def probe(_: str, __: Deadline) -> ProcessRef | None:
        nonlocal asked
        asked += 1
        if answer == "error":
            raise NvxError("nobody there")
        return None if answer == "none" else acting[asked]  # type: ignore[return-value]

    with claimed(launched.path(LOG)), launched.lock() as locked, pytest.raises(Indeterminate) as caught:
        locked.recover(probe, deadline=Looks(3))
    assert caught.value.detail == "claim-held"
    assert asked == 3
    assert not any(one.terminated for one in acting)
    assert all(one.closed for one in acting[1 : asked + 1]) or answer in {"none", "error"}


@pytest.mark.case("T14")
def test_a_server_that_comes_late_is_proven_although_the_log_lost_its_name(launched: Site) -> None:
    write_journal(launched)
    launched.path(LOG).unlink()
    acting = Scripted()
    answers = [None, acting]
    with launched.lock() as locked:
        assert locked.recover(lambda *_: answers.pop(0), deadline=Looks(2)).kind is Recovered.TERMINATED  # type: ignore[arg-type]
    assert acting.terminated


def test_a_free_claim_is_seen_before_the_probe_is_asked(launched: Site) -> None:
    write_journal(launched)
    with launched.lock() as locked:
        assert locked.recover(lambda *_: pytest.fail("asked")).kind is Recovered.EXITED


@pytest.mark.case("T14")
def test_a_stranger_that_serves_the_endpoint_is_left_alone(provisioned: Site) -> None:
    write_journal(provisioned)
    words = [PYTHON, "-I", str(STAND_IN), provisioned.lifeline, "serve", provisioned.endpoint]
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child:
        assert [child.stdout.readline().split()[0] for _ in range(2)] == [b"capability", b"ready"]
        found = peer_probe(provisioned.endpoint, soon())
        assert found is not None
        assert found.identity.pid == child.pid
        found.close()
        with claimed(provisioned.path(LOG)), provisioned.lock() as locked, pytest.raises(Indeterminate):
            locked.recover(peer_probe)
        assert child.poll() is None
        provisioned.close()
    assert child.returncode == 0


def test_nobody_serves_an_endpoint_that_is_not_there(provisioned: Site) -> None:
    assert peer_probe(provisioned.endpoint, Deadline(0.0)) is None


def test_a_commit_that_was_cut_short_is_completed_and_nothing_is_touched(launched: Site) -> None:
    with stranger() as alive:
        write_journal(launched, alive)
        record = write_runtime(launched, alive, launch_id=LAUNCH_ID)
        before = launched.listing()
        with launched.lock() as locked:
            recovery = locked.recover()
            assert (recovery.kind, recovery.launch_id) == (Recovered.COMPLETED, LAUNCH_ID)
            assert locked.runtime() == record
        assert launched.listing() == before - {JOURNAL}


def test_a_journal_of_another_launch_is_the_newer_one(launched: Site) -> None:
    with stranger() as older:
        write_runtime(launched, older)
        newer = ended()
        write_journal(launched, newer)
        before = launched.listing()
        with launched.lock() as locked:
            assert locked.recover().kind is Recovered.EXITED
        # What else is there may be the older VMM's, which is judged next.
        assert launched.listing() == before - {JOURNAL}


@pytest.mark.case("T44")
@pytest.mark.parametrize("name", [JOURNAL, RUNTIME])
def test_a_damaged_record_is_never_absent(launched: Site, name: str) -> None:
    write_journal(launched)
    launched.path(name).write_bytes(b"{}")
    before = launched.listing()
    with launched.lock() as locked:
        with pytest.raises(Malformed) as caught:
            locked.recover()
        assert caught.value.subject == str(launched.path(name))
        with pytest.raises(Refused):
            locked.remove()
    assert launched.listing() == before


@pytest.mark.spec("656.stop.e")
def test_a_record_of_another_launch_is_not_cleared(launched: Site) -> None:
    write_runtime(launched, ended())
    before = launched.listing()
    with launched.lock() as locked:
        assert not locked.clear_runtime("c" * 32)
        assert launched.listing() == before
        assert launched.steps == []
        assert locked.clear_runtime("b" * 32)
        assert not locked.clear_runtime("b" * 32)
    assert launched.listing() == {*STOPPED, "outcome.json"}
    assert launched.steps == [Step.STOP_RECORD_CLEARED]


def test_a_claim_that_was_free_is_waited_for_no_longer(launched: Site) -> None:
    log = log_of(launched)
    with launched.lock() as locked, claimed(launched.path(LOG)):
        wait_for(lambda: locked.look_at_claim(log) is claim.Claim.HELD, "the claim was taken")
        assert claim.settle(locked.directory, log, Deadline(0.0)) is claim.Claim.HELD
