"""A kernel or a filter without pidfds: waits are polled, exits are still proven, and nothing is ever signalled."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import msgspec
import pytest

from nvx_ref.deadline import POLL_INTERVAL, Deadline
from nvx_ref.errors import Indeterminate
from nvx_ref.platform import process, spawn
from nvx_ref.platform.contract import ProcessIdentity, Unpinnable
from nvx_ref.process import ProcessRef

pytestmark = [pytest.mark.usefixtures("no_leak"), pytest.mark.case("T26")]

Run = Callable[..., "subprocess.Popen[bytes]"]

SLEEPER = "print('ready'); input()"


@pytest.fixture
def recorded(python: Run) -> ProcessIdentity:
    """A living process' identity, as such a kernel would have recorded it."""
    child = python(SLEEPER)
    with process.Pin.open(child.pid) as pin:
        return msgspec.structs.replace(pin.identity(), pidfs_inode=None)


@pytest.fixture(params=[errno.ENOSYS, errno.EPERM, None], ids=["ENOSYS", "EPERM", "old Python"])
def switch_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Switch pidfds off from the call on, and signals with them."""

    def fail(*_: object) -> int:
        raise OSError(request.param, os.strerror(request.param))

    def signalled(*arguments: object) -> None:
        pytest.fail(f"a signal was sent: {arguments}")

    def off() -> None:
        if request.param is None:
            monkeypatch.delattr(os, "pidfd_open")
        else:
            monkeypatch.setattr(os, "pidfd_open", fail)
        monkeypatch.setattr(signal, "pidfd_send_signal", signalled)

    return off


@pytest.fixture
def child(switch_off: Callable[[], None]) -> Iterator[tuple[spawn.Child, int]]:
    """A spawned child that ends once its input does."""
    switch_off()
    reader, writer = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    child = spawn.spawn(["sh", "-c", "read x; exit 7"], stdin=reader, output=null, allowed=[], cwd="/")
    os.close(reader)
    os.close(null)
    yield child, writer
    os.close(writer)
    with child.pin() as pin:
        assert pin.wait(Deadline.after(30))


@pytest.mark.spec("620.scope3.g")
def test_a_childs_exit_is_polled_for_and_its_status_kept(
    child: tuple[spawn.Child, int], monkeypatch: pytest.MonkeyPatch, soon: Deadline
) -> None:
    vmm, writer = child
    intervals: list[float] = []
    real = Deadline.pause

    def pause(deadline: Deadline, seconds: float = POLL_INTERVAL) -> bool:
        intervals.append(seconds)
        if len(intervals) == 3:
            os.write(writer, b"\n")
        return real(deadline, seconds)

    monkeypatch.setattr(Deadline, "pause", pause)
    with vmm.pin() as pin:
        assert not pin.has_exited()
        assert pin.exit_status() is None
        assert pin.wait(soon)
        assert pin.exit_status() == 7
    assert set(intervals) == {POLL_INTERVAL}


def test_a_polled_wait_ends_with_its_deadline(child: tuple[spawn.Child, int]) -> None:
    with child[0].pin() as pin:
        assert not pin.wait(Deadline.after(0.01))


def test_a_child_is_never_signalled(child: tuple[spawn.Child, int], soon: Deadline) -> None:
    vmm, writer = child
    with pytest.raises(Unpinnable) as caught:
        vmm.terminate(soon)
    assert caught.value.detail == "no-pidfd"
    assert caught.value.hint
    with ProcessRef.from_child(vmm) as ref, pytest.raises(Indeterminate):
        ref.terminate()
    os.write(writer, b"\n")
    with vmm.pin() as pin:
        assert pin.wait(soon)
        # Ended already: nothing to send, and so no error.
        pin.terminate()
    assert vmm.terminate(soon)


def test_a_child_has_an_identity(child: tuple[spawn.Child, int]) -> None:
    identity = child[0].identity()
    assert identity.pid == child[0].pid
    assert identity.pidfs_inode is None
    with ProcessRef.from_child(child[0]) as ref:
        assert ref.identity == identity


def test_a_recorded_process_that_may_live_is_unknown(recorded: ProcessIdentity, switch_off: Callable[[], None]) -> None:
    switch_off()
    with pytest.raises(Indeterminate) as caught:
        ProcessRef.open(recorded)
    assert caught.value.detail == "no-pidfd"


def test_a_number_of_another_process_is_exited(recorded: ProcessIdentity, switch_off: Callable[[], None]) -> None:
    switch_off()
    assert ProcessRef.open(msgspec.structs.replace(recorded, start_time=recorded.start_time + 1)) is None


@pytest.mark.parametrize("reaped", [False, True])
def test_an_ended_process_is_exited(
    python: Run, switch_off: Callable[[], None], soon: Deadline, *, reaped: bool
) -> None:
    child = python(SLEEPER)
    assert child.stdin is not None
    with process.Pin.open(child.pid) as pin:
        recorded = pin.identity()
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert pin.wait(soon)
    if reaped:
        child.wait()
    switch_off()
    assert ProcessRef.open(recorded) is None


@pytest.mark.case("T22")
def test_a_process_whose_first_thread_has_ended_is_not_exited(python: Run, switch_off: Callable[[], None]) -> None:
    child = python(
        "import ctypes, os, threading\n"
        "main = threading.main_thread().native_id\n"
        "def work():\n"
        "    while open(f'/proc/{main}/stat').read().rpartition(')')[2].split()[0] != 'Z': pass\n"
        "    print('ready', flush=True); os.read(0, 1); os._exit(5)\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with process.Pin.open(child.pid) as pin:
        recorded = pin.identity()
    switch_off()
    with pytest.raises(Indeterminate):
        ProcessRef.open(recorded)


def test_this_process_knows_itself(switch_off: Callable[[], None]) -> None:
    switch_off()
    own = process.own_identity()
    assert own.pid == os.getpid()
    assert own.pidfs_inode is None
