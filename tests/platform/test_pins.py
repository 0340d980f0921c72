"""Pins: a hold on a process, what it can tell, and what it refuses."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Indeterminate, NvxError, Refused, VmmExited
from nvx_ref.platform import files, process
from nvx_ref.platform.contract import FileId, ProcessGone, Unpinnable
from nvx_ref.platform.linux import pidfd, procfs

pytestmark = pytest.mark.usefixtures("no_leak")

Run = Callable[..., "subprocess.Popen[bytes]"]

Pin = process.Pin

SLEEPER = "print('ready'); input()"
NAMES = [
    b"a) Z 1 (b",
    b" " * 15,
    b"a\nb\n) R 7 (",
    b"\xff\xfe)\x01(",
    b")",
    b"))))))))))))))",
    b"(((",
]


def line(child: subprocess.Popen[bytes]) -> int:
    assert child.stdout is not None
    return int(child.stdout.readline())


def release(child: subprocess.Popen[bytes]) -> None:
    """Let a sleeper end by itself."""
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


@pytest.mark.case("T21")
@pytest.mark.parametrize("name", NAMES)
def test_fields_are_counted_after_the_last_parenthesis(python: Run, name: bytes) -> None:
    child = python(
        f"print('ready'); input(); open('/proc/self/comm', 'wb', buffering=0).write({name!r}); print(1); input()"
    )
    with Pin.open(child.pid) as pin:
        before = pin.identity()
        release(child)
        line(child)
        with open(f"/proc/{child.pid}/comm", "rb") as comm:
            assert comm.read() == name + b"\n"
        assert pin.identity() == before
        assert not pin.has_exited()


@pytest.mark.case("T21")
@pytest.mark.parametrize("name", NAMES)
def test_a_stat_file_is_read_as_bytes(name: bytes) -> None:
    rest = b" S 1 7 7 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 5 0 4242 1000 50 0 0\n"
    assert procfs.parse_stat(b"7 (" + name + b")" + rest) == procfs.Stat(state=b"S", threads=5, start_time=4242)


@pytest.mark.parametrize("data", [b"", b"7 (x", b"7 (x) S 1", b"7 (x) S " + b"x " * 40])
def test_what_is_no_stat_file_is_unknown(data: bytes) -> None:
    with pytest.raises(Indeterminate):
        procfs.parse_stat(data)


def test_an_identity_is_the_systems_own(python: Run) -> None:
    child = python(SLEEPER)
    with Pin.open(child.pid) as pin:
        identity = pin.identity()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
        assert identity.boot == boot.read().strip()
    assert identity.pid == child.pid
    assert identity.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert identity != process.own_identity()
    with Pin.open(os.getpid()) as own:
        assert own.identity() == process.own_identity()


@pytest.mark.case("T24")
def test_no_identity_depends_on_the_wall_clock(python: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise AssertionError("the wall clock was asked")

    child = python(SLEEPER)
    for name in ("time", "time_ns", "localtime", "gmtime"):
        monkeypatch.setattr(time, name, fail)
    with Pin.open(child.pid) as pin:
        assert pin.identity() == pin.identity()
        assert not pin.wait(Deadline.after(0.01))


def test_the_unique_number_is_stored_only_where_it_is_unique(python: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = python(SLEEPER), python(SLEEPER)
    with Pin.open(first.pid) as one, Pin.open(second.pid) as two:
        inodes = {one.pidfs_inode, two.pidfs_inode}
        assert inodes == {None} or (len(inodes) == 2 and None not in inodes)
    # An old kernel: every pidfd shows the same inode.
    real = os.fstat
    monkeypatch.setattr(pidfd, "_probed", {})
    monkeypatch.setattr(os, "fstat", lambda _: real(0))
    with Pin.open(first.pid) as one:
        assert one.pidfs_inode is None
        assert one.identity().pidfs_inode is None


@pytest.mark.spec("656.wait")
def test_an_exit_is_an_event(python: Run, soon: Deadline) -> None:
    child = python(SLEEPER)
    with Pin.open(child.pid) as pin:
        assert not pin.has_exited()
        assert not pin.wait(Deadline.after(0.01))
        assert pin.exit_status() is None
        release(child)
        assert pin.wait(soon)
        assert pin.has_exited()


@pytest.mark.spec("620.scope3.e", "620.scope3.g")
def test_a_wait_never_looks_by_the_clock(python: Run, soon: Deadline, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(*_: object) -> bool:
        raise AssertionError("the wait looked again after a pause")

    monkeypatch.setattr(Deadline, "pause", pause)
    child = python(SLEEPER)
    seen: list[bool] = []
    with Pin.open(child.pid) as pin:
        # It runs for sure here; below it may have ended before anybody looks.
        assert not pin.wait(Deadline.after(0.05))
        waiter = threading.Thread(target=lambda: seen.append(pin.wait(soon)))
        waiter.start()
        release(child)
        waiter.join(soon.remaining())
    assert seen == [True]


def test_a_wait_for_the_longest_deadline_is_possible(python: Run) -> None:
    child = python(SLEEPER)
    with Pin.open(child.pid) as pin:
        waiter = threading.Thread(target=pin.wait, args=(Deadline.after(30 * 24 * 3600),))
        waiter.start()
        release(child)
        waiter.join(30)
        assert not waiter.is_alive()


@pytest.mark.case("T23")
def test_a_zombie_has_exited(python: Run, soon: Deadline) -> None:
    parent = python(
        "import os\npid = os.fork()\nif not pid: input(); os._exit(3)\nprint(pid); os.set_blocking(0, True); "
        "import signal; signal.pause()",
        ready=False,
    )
    pid = line(parent)
    with Pin.open(pid) as pin:
        release(parent)
        assert pin.wait(soon)
        # It can still be found by number, and still has an identity; it has exited all the same.
        os.getsid(pid)
        assert pin.has_exited()
        assert pin.identity().pid == pid
        pin.terminate()


@pytest.mark.case("T22")
def test_a_process_whose_first_thread_has_ended_lives(python: Run, soon: Deadline) -> None:
    child = python(
        "import ctypes, os, threading, sys\n"
        "main = threading.main_thread().native_id\n"
        "def work():\n"
        "    while open(f'/proc/{main}/stat').read().rpartition(')')[2].split()[0] != 'Z': pass\n"
        "    print('ready', flush=True); os.read(0, 1); os._exit(5)\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with Pin.open(child.pid) as pin:
        found = procfs.read_stat(child.pid)
        assert found is not None
        assert (found.state, found.exited) == (b"Z", False)
        assert not pin.has_exited()
        assert not pin.wait(Deadline.after(0.05))
        assert not process.exited_by_number(pin.identity())
        release(child)
        assert pin.wait(soon)


@pytest.mark.case("T06")
def test_an_exit_between_check_and_signal_is_no_error(python: Run, soon: Deadline) -> None:
    child = python(SLEEPER)
    with Pin.open(child.pid) as pin:
        assert not pin.has_exited()
        release(child)
        child.wait()
        assert not pin.terminate()
        assert pin.wait(soon)
        with pytest.raises(ProcessGone):
            pin.identity()
        with pytest.raises(ProcessGone):
            pin.holds_output(FileId("0", "0"))


def test_terminate_ends_a_process_that_ignores_everything_else(python: Run, soon: Deadline) -> None:
    child = python(
        "import signal\nfor number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\nprint('ready'); signal.pause()"
    )
    with Pin.open(child.pid) as pin:
        assert pin.terminate()
        assert pin.wait(soon)
        assert pin.exit_status() == -signal.SIGKILL == process.ENDED_BY_FORCE
        assert not pin.terminate()
    # Somebody else's child was looked at, not reaped.
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("ending", ["raise SystemExit(7)", "import os; os.kill(os.getpid(), 15)", "pass"])
def test_the_status_of_somebody_elses_child_is_left_to_them(python: Run, soon: Deadline, ending: str) -> None:
    child = python(f"{SLEEPER}\n{ending}")
    with Pin.open(child.pid) as pin:
        release(child)
        assert pin.wait(soon)
        status = pin.exit_status()
    assert child.wait() == status


@pytest.mark.case("T28")
def test_the_status_of_a_non_child_is_reported_or_unknown(python: Run, soon: Deadline) -> None:
    parent = python(
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        "pid = os.fork()\nif not pid: input(); os._exit(7)\n"
        "print(pid, flush=True); signal.sigwait({signal.SIGUSR1}); os.waitpid(pid, 0); print('reaped', flush=True); "
        "signal.pause()",
        ready=False,
        start_new_session=True,
    )
    pid = line(parent)
    with Pin.open(pid) as pin:
        release(parent)
        assert pin.wait(soon)
        # A zombie of another parent: nobody knows yet.
        assert pin.exit_status() is None
        parent.send_signal(signal.SIGUSR1)
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"reaped\n"
        release_number = tuple(int(part) for part in os.uname().release.split(".")[:2])
        assert pin.exit_status() == (7 if release_number >= (6, 15) else None)


@pytest.mark.case("T28")
def test_an_unknown_status_is_never_zero(python: Run, soon: Deadline, monkeypatch: pytest.MonkeyPatch) -> None:
    child = python(SLEEPER)
    with Pin.open(child.pid) as pin:
        release(child)
        assert pin.wait(soon)
        child.wait()

        def fail(*_: object) -> int:
            raise OSError(errno.ENOTTY, "an older kernel")

        monkeypatch.setattr("fcntl.ioctl", fail)
        assert pin.exit_status() is None


@pytest.mark.case("T09")
def test_a_thread_is_no_process(thread: int) -> None:
    with pytest.raises(ProcessGone):
        Pin.open(thread)
    assert procfs.is_thread(thread)
    assert not procfs.is_thread(os.getpid())


@pytest.mark.case("T07")
@pytest.mark.parametrize("number", [0, -1, -(2**31), 2**22 + 1, 2**31, 2**64])
def test_what_is_no_number_never_reaches_the_kernel(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda *_: pytest.fail("asked the kernel"))
    with pytest.raises(Refused):
        Pin.open(number)


def test_a_free_number_is_gone(python: Run) -> None:
    child = python(SLEEPER)
    release(child)
    child.wait()
    with pytest.raises(ProcessGone):
        Pin.open(child.pid)
    assert procfs.number_is_free(child.pid)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_is_not_an_exit(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(Unpinnable) as caught:
        Pin.open(os.getpid())
    assert caught.value.detail == "descriptors"


def test_the_internal_outcomes_are_errors_that_a_caller_may_see() -> None:
    assert issubclass(ProcessGone, VmmExited)
    assert issubclass(Unpinnable, Indeterminate)
    assert isinstance(Unpinnable("x"), NvxError)
    assert Unpinnable.code == "Indeterminate"


def test_a_closed_pin_answers_nothing(python: Run) -> None:
    child = python(SLEEPER)
    pin = Pin.open(child.pid)
    pin.close()
    pin.close()
    for attempt in (pin.identity, pin.has_exited, pin.terminate):
        with pytest.raises(Unpinnable):
            attempt()
    assert child.poll() is None


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_is_recognised_by_its_object(sandbox: files.Directory, stream: str) -> None:
    log, other = sandbox.open_log("log"), sandbox.open_log("other")
    wanted, wrong = files.file_id(log), files.file_id(other)
    outputs = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: log}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=outputs["stdout"], stderr=outputs["stderr"]) as child:
        with Pin.open(child.pid) as pin:
            sandbox.replace("log", b"another object under the same name", durable=False)
            assert pin.holds_output(wanted)
            assert not pin.holds_output(wrong)
        child.communicate(b"")
    os.close(log)
    os.close(other)


def test_another_view_of_processes_is_not_believed(python: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    child = python(SLEEPER)
    with Pin.open(child.pid) as pin:
        monkeypatch.setattr(os, "readlink", lambda _: "1")
        with pytest.raises(Unpinnable) as caught:
            pin.identity()
        assert caught.value.detail == "foreign-namespace"


@pytest.mark.case("T01")
def test_the_hold_is_acted_through_and_not_the_number(python: Run) -> None:
    """Whoever has the number by then hears nothing: the signal goes through the descriptor."""
    held, other = python(SLEEPER), python(SLEEPER)
    with Pin(other.pid, pidfd.open_pidfd(held.pid)) as pin:
        pin.terminate()
        assert pin.wait(Deadline.after(10))
    assert held.wait() == -signal.SIGKILL
    assert other.poll() is None
    release(other)
    assert other.wait() == 0
