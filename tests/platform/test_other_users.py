"""Processes that this user may see, but not touch, or not even see."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import msgspec
import pytest

from nvx_ref.platform import process

pytestmark = pytest.mark.usefixtures("no_leak")

Run = Callable[..., "subprocess.Popen[bytes]"]

AS_STRANGER = """
import ctypes, os, signal, socket, subprocess, sys
import msgspec
from nvx_ref.deadline import Deadline
from nvx_ref.errors import NvxError
from nvx_ref.platform import process
from nvx_ref.process import ProcessIdentity, ProcessRef
recorded = msgspec.json.decode(sys.argv[1], type=ProcessIdentity)

def drop():
    os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an exec: a process may look at itself

def ask(attempt):
    try:
        answer = attempt()
    except NvxError as error:
        print(error.code, error.detail)
    else:
        print("exited" if answer is None else "live")
    sys.stdout.flush()

def changed(**fields):
    return msgspec.structs.replace(recorded, **fields)
"""


@pytest.fixture
def recorded(python: Run) -> str:
    """The identity of a living process of root."""
    child = python("print('ready'); input()")
    with process.Pin.open(child.pid) as pin:
        return msgspec.json.encode(pin.identity()).decode()


@pytest.mark.case("T03")
@pytest.mark.case("T08")
def test_another_users_process_is_compared_and_not_ended(isolated: Callable[..., str], recorded: str) -> None:
    code = (
        AS_STRANGER
        + """
drop()
ask(lambda: ProcessRef.open(changed(start_time=recorded.start_time + 1, pidfs_inode=None)))
ref = ProcessRef.open(recorded)
ask(lambda: ref)
ask(ref.terminate)
ask(lambda: ref.holds_output(process.FileId("0", "0")))
print(ref.wait(Deadline.after(0.01)))
"""
    )
    assert isolated(code, recorded).split("\n")[:5] == [
        "exited",
        "live",
        "Refused EPERM",
        "Indeterminate denied",
        "False",
    ]


@pytest.mark.case("T03")
@pytest.mark.parametrize("mode", ["1", "2"])
def test_a_hidden_process_is_unknown_unless_the_unique_number_tells(
    isolated: Callable[..., str], recorded: str, mode: str
) -> None:
    code = (
        AS_STRANGER
        + """
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=" + sys.argv[2], "proc", "/proc"], check=True)
drop()
ask(lambda: ProcessRef.open(recorded))
ask(lambda: ProcessRef.open(changed(start_time=recorded.start_time + 1, pidfs_inode=None)))
if recorded.pidfs_inode is None:
    print("exited")
else:
    ask(lambda: ProcessRef.open(changed(pidfs_inode=recorded.pidfs_inode + 1)))
os.pidfd_open = None
ask(lambda: ProcessRef.open(recorded))
# A number that nobody has is free, also where others are hidden.
ask(lambda: ProcessRef.open(changed(pid=2**22 - 3)))
"""
    )
    hidden = {"1": "Indeterminate denied", "2": "Indeterminate hidden"}[mode]
    assert isolated(code, recorded, mode).split("\n")[:5] == [
        hidden,
        hidden,
        "exited",
        "Indeterminate no-pidfd",
        "exited",
    ]
