"""Whose a process is."""

from __future__ import annotations

import ctypes
import os
import sys

assert sys.platform == "win32"

_QUERY_LIMITED = 0x1000
_TOKEN_QUERY = 8
_TOKEN_USER = 1

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
_kernel32.OpenProcess.restype = ctypes.c_ssize_t
_kernel32.CloseHandle.argtypes = [ctypes.c_ssize_t]
_advapi32.OpenProcessToken.argtypes = [ctypes.c_ssize_t, ctypes.c_uint32, ctypes.c_void_p]
_advapi32.GetTokenInformation.argtypes = [
    ctypes.c_ssize_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
]


def own_sid() -> str:
    """The security identifier of this process's user."""
    return sid_of(os.getpid()) or ""


def sid_of(pid: int) -> str | None:
    """The security identifier of a process's user, None if it can't be had."""
    process = _kernel32.OpenProcess(_QUERY_LIMITED, 0, pid)
    if not process:
        return None
    token = ctypes.c_ssize_t()
    try:
        if not _advapi32.OpenProcessToken(process, _TOKEN_QUERY, ctypes.byref(token)):
            return None
    finally:
        _kernel32.CloseHandle(process)
    try:
        return _user(token.value)
    finally:
        _kernel32.CloseHandle(token.value)


def _user(token: int) -> str | None:
    buffer = ctypes.create_string_buffer(256)
    size = ctypes.c_uint32()
    if not _advapi32.GetTokenInformation(token, _TOKEN_USER, buffer, len(buffer), ctypes.byref(size)):
        return None
    text = ctypes.c_wchar_p()
    if not _advapi32.ConvertSidToStringSidW(ctypes.c_void_p.from_buffer(buffer), ctypes.byref(text)):
        return None
    return text.value
