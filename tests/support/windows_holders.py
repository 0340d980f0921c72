"""Processes that hold a file on Windows, and waits for them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

assert sys.platform == "win32"

from nvx_ref.deadline import Deadline
from nvx_ref.platform.windows import native
from sandboxes import SUPPORT
from system import PYTHON, environment

HOLD = """
import sys
from nvx_ref.platform import files
from nvx_ref.platform.windows import handles
directory = files.open_private(sys.argv[1])
fd = directory.open_lock(sys.argv[3]) if sys.argv[2] == "lock" else directory.open_log(sys.argv[3])
print(files.try_lock(fd) if sys.argv[2] == "lock" else files.claim_log(fd), flush=True)
sys.stdin.read()
"""
"""Holds a lock or a claim until its input ends: DIRECTORY lock|log NAME."""

IN_THE_WAY = """
import sys
from nvx_ref.platform.windows import handles, native
share = {"read": native.SHARE_READ, "none": 0, "all": native.SHARE_ALL}[sys.argv[2]]
handle = handles.open_path(sys.argv[1], native.FILE_GENERIC_READ, share)
print(1, flush=True)
sys.stdin.readline()
native.release(handle)
print(2, flush=True)
sys.stdin.read()
"""
"""Keeps a path open, sharing only so much, until it gets a line: PATH read|none|all."""


LOCKED = """
import ctypes, sys
from nvx_ref.platform.windows import handles, native
held = [handles.open_path(path, native.FILE_GENERIC_READ, native.SHARE_ALL) for path in sys.argv[1:]]
for handle in held:
    assert native.lock_file(handle, 3, 0, 0xFFFFFFFF, 0x7FFFFFFF, ctypes.byref(native.Overlapped()))
print(1, flush=True)
sys.stdin.readline()
for handle in held:
    native.release(handle)
print(2, flush=True)
sys.stdin.read()
"""
"""Locks every byte of files, so that they can be opened and looked at and not read, until it gets a line: PATH..."""

_WRITE_ACCESS_LIST, _ACCESS_LIST = 0x4_0000, 4


def soon() -> Deadline:
    return Deadline.after(120)


@contextmanager
def holding(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of these; it ends with the block."""
    child = subprocess.Popen(
        [PYTHON, "-c", code, *arguments],
        env=environment(str(SUPPORT.parents[1])),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        yield child
    finally:
        child.communicate()


def let_go(child: subprocess.Popen[bytes]) -> None:
    """Have it let go, and wait until it has."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stdout.readline()


def lock_out(pid: int) -> None:
    """Leave nobody any right to a process."""
    descriptor = ctypes.c_void_p()
    assert native.text_to_security("D:P(D;;GA;;;WD)", 1, ctypes.byref(descriptor), None)
    handle = native.open_process(_WRITE_ACCESS_LIST, False, pid)
    try:
        setter = ctypes.WinDLL("advapi32").SetKernelObjectSecurity
        setter.argtypes = [native.HANDLE, native.DWORD, ctypes.c_void_p]
        assert setter(handle, _ACCESS_LIST, descriptor)
    finally:
        native.release(handle)
        native.local_free(descriptor)


def let_go_in(child: subprocess.Popen[bytes], seconds: float) -> threading.Timer:
    """Tell a child to let go after a while."""

    def tell() -> None:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()

    timer = threading.Timer(seconds, tell)
    timer.start()
    return timer


def wait_until(condition: object) -> None:
    until = soon()
    while not condition():  # type: ignore[operator]
        assert until.pause()
