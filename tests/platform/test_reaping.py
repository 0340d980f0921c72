"""Children are reaped here and nowhere else, quietly, and nobody else's are touched."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings

import msgspec
import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.platform import process, spawn
from nvx_ref.platform.linux import children
from nvx_ref.process import ProcessRef

pytestmark = pytest.mark.usefixtures("no_leak")


def start(*argv: str) -> spawn.Child:
    null = os.open("/dev/null", os.O_RDWR)
    try:
        return spawn.spawn(argv, stdin=null, output=null, allowed=[], cwd="/")
    finally:
        os.close(null)


def is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until_zombie(pid: int) -> None:
    with process.Pin.open(pid) as pin:
        pin._own = None
        assert pin.wait(Deadline.after(30))


@pytest.mark.parametrize("status", [0, 7])
def test_a_seen_exit_is_reaped_and_its_status_kept(soon: Deadline, status: int) -> None:
    child = start("sh", "-c", f"exit {status}")
    first, second = child.pin(), child.pin()
    with first, second:
        assert first.wait(soon)
        assert not is_zombie(child.pid)
        assert first.exit_status() == second.exit_status() == status
    with child.pin() as late:
        assert late.has_exited()
        assert late.exit_status() == status


def test_a_pin_by_number_reaps_our_own_child_too(soon: Deadline) -> None:
    child = start("sh", "-c", "read x < /dev/zero; exit 7")
    with process.Pin.open(child.pid) as pin:
        pin.terminate()
        assert pin.wait(soon)
        assert pin.exit_status() == -9
    assert not is_zombie(child.pid)
    with child.pin() as late:
        assert late.exit_status() == -9


def test_a_dropped_child_is_quiet_and_reaped_by_the_next_spawn(soon: Deadline) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pid = start("true").pid
        gc.collect()
        until_zombie(pid)
        other = start("true")
        assert not is_zombie(pid)
        with other.pin() as pin:
            assert pin.wait(soon)
    assert caught == []
    assert not {pid, other.pid} & children._children.keys()


def test_closing_reaps_what_has_ended() -> None:
    child = start("true")
    until_zombie(child.pid)
    child.close()
    assert not is_zombie(child.pid)


def test_an_identity_is_known_also_of_a_child_that_ended_at_once(soon: Deadline) -> None:
    for _ in range(20):
        child = start("true")
        assert child.identity().pid == child.pid
        with child.pin() as pin:
            assert pin.wait(soon)
        assert child.identity().pid == child.pid


def test_other_peoples_children_keep_their_status(soon: Deadline) -> None:
    """Reaping goes by one child at a time: a wait for any would take these."""
    theirs = [subprocess.Popen(["sh", "-c", f"exit {number}"]) for number in range(1, 20)]
    for _ in range(5):
        child = start("true")
        with child.pin() as pin:
            assert pin.wait(soon)
            assert pin.exit_status() == 0
    assert [child.wait() for child in theirs] == list(range(1, 20))


def test_many_threads_see_one_exit(soon: Deadline) -> None:
    child = start("sh", "-c", "exit 7")
    pins = [child.pin() for _ in range(8)]
    seen: list[object] = []
    threads = [
        threading.Thread(target=lambda pin=pin: seen.append((pin.wait(soon), pin.exit_status()))) for pin in pins
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pin in pins:
        pin.close()
    assert seen == [(True, 7)] * 8


def script(code: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", PREAMBLE + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.split()


PREAMBLE = """
import os, signal
from nvx_ref.deadline import Deadline
from nvx_ref.errors import NvxError
from nvx_ref.platform import process, spawn
null = os.open("/dev/null", os.O_RDWR)
soon = Deadline.after(30)
def start(*argv): return spawn.spawn(argv, stdin=null, output=null, allowed=[], cwd="/")
"""


def test_a_process_that_ignores_sigchld_still_sees_the_exit() -> None:
    answer = script("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(20):
    child = start("sh", "-c", "exit 7")
    with child.pin() as pin:
        assert pin.wait(soon)
        assert pin.exit_status() in {7, None}
    assert child.terminate(soon)
child = start("sleep", "100")
with child.pin() as pin:
    assert not pin.has_exited()
    pin.terminate()
    assert pin.wait(soon) and pin.exit_status() in {-9, None}
print("ok")
""")
    assert answer == ["ok"]


def test_a_stranger_that_got_a_vanished_childs_number_is_not_our_child() -> None:
    answer = script("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
real, stranger = os.pidfd_open, os.getppid()
os.pidfd_open = lambda number: real(stranger)
child = start("true")
with child.pin() as pin:
    print(pin.has_exited(), pin.exit_status())
    pin.terminate()
print(child.terminate(soon), os.getsid(stranger) >= 0)
""")
    assert answer == ["True", "None", "True", "True"]


def test_a_child_that_somebody_else_reaped_has_exited() -> None:
    answer = script("""
child = start("sh", "-c", "exit 7")
print(os.waitpid(-1, 0)[0] == child.pid)
with child.pin() as pin:
    assert pin.wait(soon)
    assert pin.exit_status() in {7, None}
    pin.terminate()
print("ok")
""")
    assert answer == ["True", "ok"]


def test_a_fork_of_the_parent_reads_no_exit_into_its_missing_parenthood() -> None:
    answer = script("""
child = start("sleep", "100")
pid = os.fork()
if not pid:
    code = 1
    try:
        with child.pin() as pin:
            assert not pin.has_exited()
            assert not pin.wait(Deadline.after(0.02))
            pin.terminate()
            assert pin.wait(soon)
            code = 0
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
with child.pin() as pin:
    print(pin.wait(soon), pin.exit_status())
""")
    assert answer == ["0", "True", "-9"]


def test_the_interpreter_ends_quietly_with_a_living_child() -> None:
    answer = script("""
import sys, msgspec
child = start("sleep", "100")
sys.stdout.write(msgspec.json.encode(child.identity()).decode())
""")
    ref = ProcessRef.open(msgspec.json.decode(answer[0], type=process.ProcessIdentity))
    assert ref is not None
    with ref:
        ref.terminate()
