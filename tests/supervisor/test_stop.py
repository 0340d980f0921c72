"""A stop: one graceful step, a wait, and force only on request; real VMMs, and one that plays a part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, cast

import pytest

from harness import witness
from nvx_ref import errors
from nvx_ref.deadline import MAX_SECONDS, Deadline
from nvx_ref.platform import process
from nvx_ref.process import ProcessRef
from nvx_ref.steps import Step
from nvx_ref.store import LockedStore, RuntimeIdentity
from nvx_ref.store.names import LOCK, LOG, RUNTIME
from nvx_ref.supervisor import Forced, Graceful, Live, Mismatched, TimedOut, Vmm, inspect, reattach
from sandboxes import IDENTITY, NAME, Site, ask_to_stop, past, soon, stranger, wait_for, write_journal, write_runtime
from system import unix

STOPPED = {"config.json", LOCK, LOG}
OTHER = RuntimeIdentity("sha256:" + "9" * 64, "k", "i", "b", "c")


class Scripted:
    """A VMM's process that plays a part: which looks find it exited, and what ends it."""

    def __init__(self, *, exited: bool = False, on_wait: bool = False, on_force: bool = True) -> None:
        self.identity = process.own_identity()
        self.told, self.by_force = True, True
        self.exited, self.on_wait, self.on_force = exited, on_wait, on_force
        self.calls: list[str] = []
        self.terminate_error: errors.NvxError | None = None

    def has_exited(self) -> bool:
        return self.exited

    def wait(self, _: Deadline) -> bool:
        self.calls.append("wait")
        self.exited = self.exited or self.on_wait or ("terminate" in self.calls and self.on_force)
        return self.exited

    def terminate(self) -> bool:
        self.calls.append("terminate")
        if self.terminate_error is not None:
            raise self.terminate_error
        return self.told

    def ended_by_force(self) -> bool | None:
        return self.by_force

    def close(self) -> None:
        self.calls.append("close")


class Maker(Protocol):
    def __call__(self, acting: Scripted, *, silent: bool = False) -> Vmm: ...


@pytest.fixture
def vmm_of(provisioned: Site) -> Iterator[Maker]:
    with provisioned.lock() as locked:

        def make(acting: Scripted, *, silent: bool = False) -> Vmm:
            record = write_runtime(provisioned, acting.identity)
            return Vmm(cast("ProcessRef", acting), record, locked, locked.relock, silent=silent)

        yield make


def quiet(_: Vmm, __: Deadline) -> None:
    return


def fails(_: Vmm, __: Deadline) -> None:
    raise errors.SessionFailed("no answer")


def forbidden(_: Vmm, __: Deadline) -> None:
    pytest.fail("the guest was spoken to")


@pytest.mark.spec("620.scope3.o")
@pytest.mark.spec("656.tests.k")
@pytest.mark.spec("656.stop.a")
def test_a_graceful_step_gets_the_vmm_and_the_deadline(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted(on_wait=True)
    vmm = vmm_of(acting)
    deadline = soon()
    seen: list[object] = []
    stopped = vmm.stop(lambda *got: seen.extend(got), deadline)
    assert seen == [vmm, deadline]
    assert isinstance(stopped, Graceful)
    assert stopped.error is None
    assert acting.calls == ["wait"]
    assert provisioned.steps == [Step.STOP_REQUESTED, Step.STOP_EXITED, Step.STOP_RECORD_CLEARED]
    assert provisioned.listing() == STOPPED


@pytest.mark.spec("656.stop.d")
def test_a_vmm_that_has_exited_is_not_asked(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted(exited=True)
    assert isinstance(vmm_of(acting).stop(forbidden, past(), 5), Graceful)
    assert acting.calls == []
    assert provisioned.listing() == STOPPED


@pytest.mark.spec("656.stop.b")
def test_a_failed_step_is_reported_and_not_waited_out(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted()
    stopped = vmm_of(acting).stop(fails, soon())
    assert isinstance(stopped, TimedOut)
    assert isinstance(stopped.error, errors.SessionFailed)
    assert acting.calls == []
    assert provisioned.steps == []
    assert RUNTIME in provisioned.listing()


def test_a_step_that_fails_because_the_vmm_exited_is_graceful(vmm_of: Maker) -> None:
    acting = Scripted()

    def exits(_: Vmm, __: Deadline) -> None:
        acting.exited = True
        raise OSError("connection reset")

    stopped = vmm_of(acting).stop(exits, soon(), 5)
    assert isinstance(stopped, Graceful)
    assert isinstance(stopped.error, OSError)
    assert acting.calls == []


def test_an_interrupt_is_no_failure_of_the_step(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted()

    def interrupt(_: Vmm, __: Deadline) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vmm_of(acting).stop(interrupt, soon(), 5)
    assert acting.calls == []
    assert RUNTIME in provisioned.listing()


@pytest.mark.spec("620.scope3.h")
@pytest.mark.spec("620.scope5.b")
def test_without_the_forced_step_nothing_is_signalled(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted()
    stopped = vmm_of(acting).stop(quiet, past())
    assert isinstance(stopped, TimedOut)
    assert stopped.error is None
    assert acting.calls == ["wait"]
    assert RUNTIME in provisioned.listing()
    assert provisioned.steps == [Step.STOP_REQUESTED]


@pytest.mark.spec("656.stop.c")
@pytest.mark.spec("620.scope3.j")
@pytest.mark.parametrize("graceful", [quiet, fails, None])
def test_a_forced_stop_says_forced(
    provisioned: Site, vmm_of: Maker, graceful: Callable[[Vmm, Deadline], None] | None
) -> None:
    acting = Scripted()
    stopped = vmm_of(acting).stop(graceful, past(), 5)
    assert isinstance(stopped, Forced)
    assert isinstance(stopped.error, errors.SessionFailed) == (graceful is fails)
    assert acting.calls[-2:] == ["terminate", "wait"]
    assert provisioned.steps[-3:] == [Step.STOP_FORCED, Step.STOP_EXITED, Step.STOP_RECORD_CLEARED]
    assert provisioned.listing() == STOPPED


@pytest.mark.spec("622.scope5.c")
def test_a_forced_step_that_does_not_end_it_times_out(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted(on_force=False)
    assert isinstance(vmm_of(acting).stop(quiet, past(), 0.01), TimedOut)
    assert provisioned.steps == [Step.STOP_REQUESTED, Step.STOP_FORCED]
    assert RUNTIME in provisioned.listing()


@pytest.mark.parametrize("exits", [True, False])
def test_a_forced_step_that_is_refused(vmm_of: Maker, *, exits: bool) -> None:
    acting = Scripted()
    acting.terminate_error = errors.Refused("not permitted")
    terminate = acting.terminate

    def faster() -> bool:
        acting.exited = exits
        return terminate()

    acting.terminate = faster  # type: ignore[method-assign]
    stopped = vmm_of(acting).stop(fails, past(), 5)
    assert isinstance(stopped, Graceful if exits else TimedOut)
    assert isinstance(stopped.error, errors.SessionFailed if exits else errors.Refused)


@pytest.mark.case("T06")
def test_a_vmm_that_exits_before_the_force_was_not_forced(vmm_of: Maker) -> None:
    acting = Scripted()

    def exits(_: Deadline) -> bool:
        acting.calls.append("wait")
        acting.exited = True
        return False

    acting.wait = exits  # type: ignore[method-assign]
    assert isinstance(vmm_of(acting).stop(quiet, past(), 5), Graceful)
    assert acting.calls == ["wait"]


@pytest.mark.case("T06")
@pytest.mark.parametrize(
    ("told", "by_force", "expected"),
    [(True, True, Forced), (True, None, Forced), (True, False, Graceful), (False, None, Graceful)],
)
def test_forced_is_what_the_force_has_ended(
    vmm_of: Maker, *, told: bool, by_force: bool | None, expected: type[Forced | Graceful]
) -> None:
    """A VMM that ends by itself in the very instant of the signal wasn't forced, where its status tells."""
    acting = Scripted()
    acting.told, acting.by_force = told, by_force
    stopped = vmm_of(acting).stop(fails, past(), 5)
    assert type(stopped) is expected
    assert isinstance(stopped.error, errors.SessionFailed)


@pytest.mark.case("T06")
@pytest.mark.spec("620.scope3.p")
@pytest.mark.parametrize("reaped", [True, pytest.param(False, marks=unix("there are no zombies"))])
def test_a_vmm_that_exits_between_the_check_and_the_signal_is_no_error(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch, *, reaped: bool
) -> None:
    """It is seen to live, ends by itself, and then the forced step comes: through the pin, so it reaches nobody."""
    real = ProcessRef.terminate
    ends: list[str] = []
    with provisioned.lock() as locked:
        started = provisioned.start(locked)
        if reaped:
            started.close()

        def too_late(self: ProcessRef) -> bool:
            ask_to_stop(started, soon())
            if reaped:
                # A hold of another kind, which also reaps it.
                with ProcessRef(process.Pin.open(self.identity.pid), self.identity) as other:
                    assert other.wait(soon())
            else:
                wait_for(lambda: state(self.identity.pid) == "Z", "it is a zombie")
            ends.append(state(self.identity.pid))
            return real(self)

        monkeypatch.setattr(ProcessRef, "terminate", too_late)
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm, stranger():
            stopped = vmm.stop(None, Deadline.after(0.01), 30)
    assert isinstance(stopped, Graceful)
    assert stopped.error is None
    assert Step.STOP_FORCED not in provisioned.steps
    assert ends == ["" if reaped else "Z"]
    assert provisioned.listing() == STOPPED


@pytest.mark.case("T06")
@unix("there are no zombies")
def test_a_vmm_that_ends_in_the_instant_of_the_signal_was_not_forced(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look finds it alive, and the signal a zombie, which takes it without a word."""
    pidfd = pytest.importorskip("nvx_ref.platform.linux.pidfd")
    real = pidfd.send_kill
    told: list[bool] = []
    with provisioned.lock() as locked:
        started = provisioned.start(locked)

        def too_late(fd: int, pid: int) -> bool:
            ask_to_stop(started, soon())
            wait_for(lambda: state(pid) == "Z", "it is a zombie")
            told.append(real(fd, pid))
            return told[-1]

        monkeypatch.setattr(pidfd, "send_kill", too_late)
        with started:
            stopped = started.stop(None, Deadline.after(0.01), 30)
    assert told == [True]
    assert isinstance(stopped, Graceful)
    assert provisioned.listing() == STOPPED


def state(pid: int) -> str:
    found = witness.host().stat(pid)
    return "" if found is None else found.state


@pytest.mark.spec("656.stop.f")
@pytest.mark.parametrize("force", [0, -1, math.inf, math.nan, 1e9, MAX_SECONDS + 1])
def test_a_forced_bound_is_checked_before_anything_runs(provisioned: Site, vmm_of: Maker, force: float) -> None:
    acting = Scripted(exited=True)
    with pytest.raises(errors.Refused):
        vmm_of(acting).stop(forbidden, soon(), force)
    assert provisioned.steps == []
    assert RUNTIME in provisioned.listing()


def test_a_guest_of_another_runtime_is_not_spoken_to(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted()
    assert isinstance(vmm_of(acting, silent=True).stop(forbidden, past()), TimedOut)
    assert acting.calls == ["wait"]
    assert isinstance(vmm_of(acting, silent=True).stop(forbidden, past(), 5), Forced)
    assert Step.STOP_REQUESTED not in provisioned.steps


@pytest.mark.spec("656.stop.e")
def test_a_record_that_names_another_launch_is_kept(provisioned: Site, vmm_of: Maker) -> None:
    acting = Scripted(exited=True)
    vmm = vmm_of(acting)
    newer = write_runtime(provisioned, acting.identity, launch_id="c" * 32)
    assert isinstance(vmm.stop(forbidden, past()), Graceful)
    with provisioned.store.peek(NAME) as reader:
        assert reader.runtime() == newer
    assert provisioned.steps == [Step.STOP_EXITED]


def test_a_newer_launch_keeps_its_files_when_an_older_record_goes(provisioned: Site, vmm_of: Maker) -> None:
    vmm = vmm_of(Scripted(exited=True))
    write_journal(provisioned, launch_id="c" * 32)
    provisioned.path("control.sock").touch()
    vmm.stop(None, past())
    assert provisioned.listing() == STOPPED | {"launch.json", "control.sock"}


def live(locked: LockedStore, identity: RuntimeIdentity = IDENTITY) -> Vmm:
    found = reattach(locked, identity, deadline=soon())
    assert isinstance(found, Live | Mismatched)
    return found.vmm


@pytest.mark.spec("620.scope3.i")
@pytest.mark.spec("620.acc.6")
def test_a_deaf_vmm_is_ended_by_force_alone(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        provisioned.start(locked, "deaf").close()
        with live(locked) as vmm:
            assert isinstance(vmm.stop(quiet, past()), TimedOut)
            assert not vmm.has_exited()
            assert isinstance(vmm.stop(quiet, past(), 30), Forced)
            assert vmm.exit_status() == process.ENDED_BY_FORCE
            assert vmm.wait(past())
    assert provisioned.listing() == STOPPED
    assert "signal" not in provisioned.path(LOG).read_text()


@pytest.mark.spec("622.acc.16")
@pytest.mark.spec("656.tests.f")
@pytest.mark.spec("622.scope5.b")
def test_a_mismatched_vmm_is_stopped_by_force_alone(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        provisioned.start(locked).close()
        with live(locked, OTHER) as vmm:
            assert isinstance(vmm.stop(forbidden, past()), TimedOut)
            assert len(provisioned.stand_ins()) == 1
            assert locked.runtime() is not None
            assert isinstance(vmm.stop(forbidden, past(), 30), Forced)
    assert provisioned.stand_ins() == []
    assert provisioned.listing() == STOPPED


def test_a_stop_outside_the_lock_takes_it(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        vmm = provisioned.start(locked)
    with vmm:
        with provisioned.lock(), pytest.raises(errors.Busy):
            vmm.stop(forbidden, Deadline.after(0.05))
        assert not vmm.has_exited()
        assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
    assert provisioned.listing() == STOPPED


def test_a_vmm_that_was_looked_at_can_be_stopped(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        provisioned.start(locked).close()
    found = inspect(provisioned.store, NAME, IDENTITY)
    assert isinstance(found, Live)
    with found.vmm as vmm:
        assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
    assert provisioned.listing() == STOPPED


@pytest.mark.spec("656.wait")
def test_an_exit_wakes_a_waiter(provisioned: Site) -> None:
    with provisioned.lock() as locked, ThreadPoolExecutor() as pool:
        provisioned.start(locked).close()
        with live(locked) as waited, live(locked) as vmm:
            waiting = pool.submit(waited.wait, soon())
            assert not vmm.wait(past())
            vmm.stop(ask_to_stop, soon())
            assert waiting.result()
    wait_for(lambda: provisioned.stand_ins() == [], "the VMM ended")
