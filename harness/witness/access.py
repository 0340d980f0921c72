"""Who may reach a file on Windows, told from its access list as the mode bits that say the same elsewhere."""

from __future__ import annotations

import ctypes
import re
import stat
import sys
from typing import TYPE_CHECKING

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

if TYPE_CHECKING:
    import os

_LIST = 4
_OWNER_AND_LIST = 1 | _LIST
_LARGEST = 1 << 16
_ENTRY = re.compile(r"\((X?A|OA);[^;)]*;[^;)]*;[^;)]*;[^;)]*;([^;)]*)")
_SYSTEM = frozenset({"SY", "BA", "OW", "CO"})
"""The system and its administrators, who can take any file, and whoever owns the file itself."""

_advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_advapi32.GetFileSecurityW.argtypes = [
    ctypes.c_wchar_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
]
_advapi32.ConvertSecurityDescriptorToStringSecurityDescriptorW.argtypes = [
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
]
_advapi32.ConvertStringSecurityDescriptorToSecurityDescriptorW.argtypes = [
    ctypes.c_wchar_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
]
_advapi32.SetFileSecurityW.argtypes = [ctypes.c_wchar_p, ctypes.c_uint32, ctypes.c_void_p]
_kernel32.LocalFree.argtypes = [ctypes.c_void_p]


def mode(path: str, status: os.stat_result) -> int:
    """Return kind and mode bits: for everybody what somebody but owner, system and administrators may do anything to.

    Windows' own emulation knows only whether a file is read-only, and says of each that everybody may reach it.

    Args:
        path: The file or directory.
        status: What `lstat` says of it.

    Raises:
        OSError: Its access list can't be read.
    """
    bits = stat.S_IMODE(status.st_mode) & 0o700
    if others(describe(path)):
        bits |= bits >> 3 | bits >> 6
    return stat.S_IFMT(status.st_mode) | bits


def expose(path: str) -> None:
    """Give everybody every right to a file or directory.

    Raises:
        OSError: Its access list can't be set.
    """
    made = ctypes.c_void_p()
    parse = _advapi32.ConvertStringSecurityDescriptorToSecurityDescriptorW
    if not parse("D:P(A;OICI;FA;;;WD)", 1, ctypes.byref(made), None):
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        if not _advapi32.SetFileSecurityW(path, _LIST, made):
            raise ctypes.WinError(ctypes.get_last_error())
    finally:
        _kernel32.LocalFree(made)


def others(text: str) -> list[str]:
    """Return who else is allowed anything, from an owner and access list in Windows' notation."""
    owner = text.partition("O:")[2].partition("G:")[0].partition("D:")[0]
    if "D:" not in text or "NO_ACCESS_CONTROL" in text:
        return ["everybody"]
    return [who for _, who in _ENTRY.findall(text) if who not in _SYSTEM | {owner}]


def describe(path: str) -> str:
    """Return a file's owner and access list in Windows' notation.

    Raises:
        OSError: They can't be read.
    """
    buffer = ctypes.create_string_buffer(_LARGEST)
    size = ctypes.c_uint32()
    if not _advapi32.GetFileSecurityW(path, _OWNER_AND_LIST, buffer, len(buffer), ctypes.byref(size)):
        raise ctypes.WinError(ctypes.get_last_error())
    found = ctypes.c_wchar_p()
    convert = _advapi32.ConvertSecurityDescriptorToStringSecurityDescriptorW
    if not convert(buffer, 1, _OWNER_AND_LIST, ctypes.byref(found), None):
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        return found.value or ""
    finally:
        _kernel32.LocalFree(found)
