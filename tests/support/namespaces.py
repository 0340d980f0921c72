"""Code that runs as root in namespaces of its own, over the sandboxes of the tests."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sandboxes import SUPPORT

PRELUDE = f"""
import sys
sys.path[:0] = [{str(SUPPORT)!r}, {str(SUPPORT.parents[1])!r}]
import ctypes, os, signal, subprocess
import msgspec
import sandboxes
from nvx_ref import errors
from nvx_ref.deadline import Deadline
from nvx_ref.platform import process
from nvx_ref.platform.linux import pidfd
from nvx_ref.process import ProcessRef
from nvx_ref.store import ProcessIdentity, Recovered, Store
from nvx_ref.store.names import JOURNAL, LOG, RUNTIME
from nvx_ref.supervisor import *
from sandboxes import *
"""

PROCESSES = "-m -p -f --mount-proc --kill-child"
"""A PID namespace of its own, with its `/proc`: the code is its first process, and nothing outlives it."""


def isolated(code: str, *arguments: str, flags: str = "-m") -> str:
    """Run Python code and return what it printed; skips where namespaces can't be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes namespaces, mounts, or acts as another user")
    probe = subprocess.run(["unshare", *PROCESSES.split(), "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip("needs the right to make namespaces")
    ended = subprocess.run(
        ["unshare", *flags.split(), sys.executable, "-I", "-c", PRELUDE + code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
