"""Processes that hold a file on Windows, and waits for them."""

from __future__ import annotations

import subprocess
import threading

from nvx_ref.deadline import Deadline

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
share = {"read": native.SHARE_READ, "none": 0}[sys.argv[2]]
handle = handles.open_path(sys.argv[1], native.FILE_GENERIC_READ, share)
print(1, flush=True)
sys.stdin.readline()
native.release(handle)
print(2, flush=True)
sys.stdin.read()
"""
"""Keeps a path open, sharing only so much, until it gets a line: PATH read|none."""


def soon() -> Deadline:
    return Deadline.after(30)


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
