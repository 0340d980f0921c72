"""Jobs of Windows: whatever is in one ends with it."""

from __future__ import annotations

import ctypes
import sys
from typing import Self

assert sys.platform == "win32"

_KILL_ON_CLOSE = 0x2000
_BREAKAWAY = 0x800
_EXTENDED = 9
_LIMITS_SIZE = 144
_FLAGS_AT = 16
_SET_QUOTA_AND_TERMINATE = 0x101

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.CreateJobObjectW.restype = ctypes.c_ssize_t
_kernel32.OpenProcess.restype = ctypes.c_ssize_t


class Job:
    """A job that ends what is in it once this is closed, also by the end of its process.

    Args:
        breakaway: Whether a process of it may create one that isn't in it.
    """

    def __init__(self, *, breakaway: bool = False) -> None:
        self._handle = ctypes.c_ssize_t(_kernel32.CreateJobObjectW(None, None))
        limits = bytearray(_LIMITS_SIZE)
        flags = _KILL_ON_CLOSE | (_BREAKAWAY if breakaway else 0)
        limits[_FLAGS_AT : _FLAGS_AT + 4] = flags.to_bytes(4, "little")
        raw = (ctypes.c_char * _LIMITS_SIZE).from_buffer(limits)
        if not _kernel32.SetInformationJobObject(self._handle, _EXTENDED, raw, _LIMITS_SIZE):
            raise ctypes.WinError(ctypes.get_last_error())

    def add(self, pid: int) -> None:
        """Put a process into it."""
        process = ctypes.c_ssize_t(_kernel32.OpenProcess(_SET_QUOTA_AND_TERMINATE, 0, pid))
        try:
            if not _kernel32.AssignProcessToJobObject(self._handle, process):
                raise ctypes.WinError(ctypes.get_last_error())
        finally:
            _kernel32.CloseHandle(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        handle, self._handle = self._handle, ctypes.c_ssize_t(0)
        if handle.value:
            _kernel32.CloseHandle(handle)
