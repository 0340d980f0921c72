"""The net below a test on Windows: a named job that whatever the test starts is in, before its first instruction.

A process that is created in a job is in it too, whoever creates it, unless it breaks away where it may: such a VMM is
found by its launcher, its token and its log. The job ends what is in it when the harness does, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Unpack

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

from harness.errors import HarnessError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.witness.contract import Given, Stat

PREFIX = "nvx-test-"
"""What the name of a test's job begins with, for whoever looks on from outside."""

_BREAKAWAY_OK, _KILL_ON_CLOSE = 0x800, 0x2000
_EXTENDED, _NUMBERS = 9, 3
_LIMITS_SIZE, _FLAGS_AT = 144, 16
_MORE_DATA = 234
_SUSPENDED = 0x4
_PUT = 0x1 | 0x100 | 0x800 | 0x1000
"""Terminate, set quota, resume and query: what it takes to put a process into a job and let it go."""
_LOOK = 0x400
_CONSOLE = "conhost.exe"

_handle = ctypes.c_ssize_t
_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")
for _name, _result, _arguments in (
    ("CreateJobObjectW", _handle, [ctypes.c_void_p, ctypes.c_wchar_p]),
    ("SetInformationJobObject", ctypes.c_int, [_handle, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32]),
    (
        "QueryInformationJobObject",
        ctypes.c_int,
        [_handle, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p],
    ),
    ("AssignProcessToJobObject", ctypes.c_int, [_handle, _handle]),
    ("IsProcessInJob", ctypes.c_int, [_handle, _handle, ctypes.c_void_p]),
    ("OpenProcess", _handle, [ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32]),
    ("CloseHandle", ctypes.c_int, [_handle]),
):
    getattr(_kernel32, _name).restype = _result
    getattr(_kernel32, _name).argtypes = _arguments
_ntdll.NtResumeProcess.argtypes = [_handle]


class Net:
    """A test's job; a run within another job nests it.

    Attributes:
        name: The job's.
    """

    def __init__(self) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        self._job: int = _kernel32.CreateJobObjectW(None, self.name)
        limits = bytearray(_LIMITS_SIZE)
        limits[_FLAGS_AT : _FLAGS_AT + 4] = (_KILL_ON_CLOSE | _BREAKAWAY_OK).to_bytes(4, "little")
        raw = (ctypes.c_char * _LIMITS_SIZE).from_buffer(limits)
        if not _kernel32.SetInformationJobObject(self._job, _EXTENDED, raw, _LIMITS_SIZE):
            raise HarnessError(f"the test's job can't be made: {ctypes.WinError(ctypes.get_last_error())}")

    def start(self, command: Sequence[str], **given: Unpack[Given]) -> subprocess.Popen[bytes]:
        """Start a process that stands still until it is in the job.

        Raises:
            HarnessError: It can't be put there; it was ended.
        """
        child = subprocess.Popen(list(command), **given, creationflags=_SUSPENDED)
        # As long as the child isn't let go of, its number is its own.
        process = _kernel32.OpenProcess(_PUT, False, child.pid)
        try:
            if not _kernel32.AssignProcessToJobObject(self._job, process) or _ntdll.NtResumeProcess(process) < 0:
                reason = ctypes.WinError(ctypes.get_last_error())
                child.kill()
                raise HarnessError(f"pid {child.pid} can't be put into the test's job: {reason}")
        finally:
            _kernel32.CloseHandle(process)
        return child

    def orphans(self, table: Sequence[Stat]) -> set[int]:
        """Return those of a table whose parent is gone, proven by a handle to be in the job.

        The window of a console belongs to the system, and goes with the programs in it.
        """
        started = {stat.pid: stat.start for stat in table}
        inside = self._numbers()
        return {
            stat.pid
            for stat in table
            if stat.pid in inside
            and stat.name.lower() != _CONSOLE
            and not started.get(stat.parent, stat.start + 1) <= stat.start
            and self._holds(stat.pid)
        }

    def close(self) -> None:
        """Let go of it, which ends what is still in it."""
        job, self._job = self._job, 0
        if job:
            _kernel32.CloseHandle(job)

    def _holds(self, pid: int) -> bool:
        found = ctypes.c_int()
        process = _kernel32.OpenProcess(_LOOK, False, pid)
        if not process:
            return False
        _kernel32.IsProcessInJob(process, self._job, ctypes.byref(found))
        _kernel32.CloseHandle(process)
        return bool(found.value)

    def _numbers(self) -> frozenset[int]:
        room = 64
        while True:
            table = (ctypes.c_size_t * (1 + room))()
            if _kernel32.QueryInformationJobObject(self._job, _NUMBERS, table, ctypes.sizeof(table), None):
                count = table[0] >> 32
                return frozenset(table[1 : 1 + count])
            if ctypes.get_last_error() != _MORE_DATA:
                raise HarnessError(f"the test's job can't be asked: {ctypes.WinError(ctypes.get_last_error())}")
            room *= 4
