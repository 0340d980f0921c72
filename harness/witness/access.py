"""Who may reach a file on Windows, told from its access list as the mode bits that say the same elsewhere."""

from __future__ import annotations

import ctypes
import re
import stat
import sys
from functools import cache
from typing import TYPE_CHECKING

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

if TYPE_CHECKING:
    import os

_OWNER, _LIST = 1, 4
_OWNER_AND_LIST = _OWNER | _LIST
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
_advapi32.OpenProcessToken.argtypes = [ctypes.c_ssize_t, ctypes.c_uint32, ctypes.c_void_p]
_advapi32.GetTokenInformation.argtypes = [
    ctypes.c_ssize_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
]
_kernel32.LocalFree.argtypes = [ctypes.c_void_p]
_kernel32.CloseHandle.argtypes = [ctypes.c_ssize_t]
_kernel32.GetCurrentProcess.restype = ctypes.c_ssize_t

_TOKEN_QUERY, _TOKEN_USER = 8, 1


class Security:
    """Who may reach what is made with it.

    Args:
        text: An access list in Windows' notation.

    Attributes:
        attributes: The address of the attributes to make something with, which nothing inherits.

    Raises:
        OSError: Windows doesn't understand the text.
    """

    def __init__(self, text: str) -> None:
        self._descriptor = ctypes.c_void_p()
        parse = _advapi32.ConvertStringSecurityDescriptorToSecurityDescriptorW
        if not parse(text, 1, ctypes.byref(self._descriptor), None):
            raise ctypes.WinError(ctypes.get_last_error())
        self._fields = (ctypes.c_void_p * 3)(3 * ctypes.sizeof(ctypes.c_void_p), self._descriptor.value, 0)
        self.attributes = ctypes.addressof(self._fields)

    @property
    def descriptor(self) -> int:
        """Its address."""
        return self._descriptor.value or 0

    def close(self) -> None:
        """Give it back."""
        _kernel32.LocalFree(self._descriptor)
        self._descriptor = ctypes.c_void_p()


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
    made = Security("D:P(A;OICI;FA;;;WD)")
    try:
        if not _advapi32.SetFileSecurityW(path, _LIST, made.descriptor):
            raise ctypes.WinError(ctypes.get_last_error())
    finally:
        made.close()


def owned(path: str) -> bool:
    """Tell whether a file is this user's, or its administrators', as what an elevated user makes is.

    Raises:
        OSError: It can't be read whose it is.
    """
    return _owner_of(describe(path)) in {own_name(), "BA"}


def own_sid() -> str:
    """Return the security identifier of this process's user.

    Raises:
        OSError: It can't be had.
    """
    token, size, text = ctypes.c_ssize_t(), ctypes.c_uint32(), ctypes.c_wchar_p()
    if not _advapi32.OpenProcessToken(_kernel32.GetCurrentProcess(), _TOKEN_QUERY, ctypes.byref(token)):
        raise ctypes.WinError(ctypes.get_last_error())
    buffer = ctypes.create_string_buffer(256)
    try:
        if not _advapi32.GetTokenInformation(token.value, _TOKEN_USER, buffer, len(buffer), ctypes.byref(size)):
            raise ctypes.WinError(ctypes.get_last_error())
    finally:
        _kernel32.CloseHandle(token.value)
    if not _advapi32.ConvertSidToStringSidW(ctypes.c_void_p.from_buffer(buffer), ctypes.byref(text)):
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        return text.value or ""
    finally:
        _kernel32.LocalFree(text)


@cache
def own_name() -> str:
    """Return this process's user as Windows' notation has it: some have two letters there, an administrator's "LA".

    Raises:
        OSError: It can't be had.
    """
    made = Security(f"O:{own_sid()}")
    try:
        return _owner_of(_text_of(made.descriptor, _OWNER))
    finally:
        made.close()


def others(text: str) -> list[str]:
    """Return who else is allowed anything, from an owner and access list in Windows' notation.

    This process's user is nobody else, whoever owns the file: what an elevated one makes is its administrators'.
    """
    if "D:" not in text or "NO_ACCESS_CONTROL" in text:
        return ["everybody"]
    known = _SYSTEM | {_owner_of(text), own_name()}
    return [who for _, who in _ENTRY.findall(text) if who not in known]


def describe(path: str) -> str:
    """Return a file's owner and access list in Windows' notation.

    Raises:
        OSError: They can't be read.
    """
    buffer = ctypes.create_string_buffer(_LARGEST)
    size = ctypes.c_uint32()
    if not _advapi32.GetFileSecurityW(path, _OWNER_AND_LIST, buffer, len(buffer), ctypes.byref(size)):
        raise ctypes.WinError(ctypes.get_last_error())
    return _text_of(ctypes.addressof(buffer), _OWNER_AND_LIST)


def _text_of(descriptor: int, parts: int) -> str:
    found = ctypes.c_wchar_p()
    convert = _advapi32.ConvertSecurityDescriptorToStringSecurityDescriptorW
    if not convert(descriptor, 1, parts, ctypes.byref(found), None):
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        return found.value or ""
    finally:
        _kernel32.LocalFree(found)


def _owner_of(text: str) -> str:
    return text.partition("O:")[2].partition("G:")[0].partition("D:")[0]
