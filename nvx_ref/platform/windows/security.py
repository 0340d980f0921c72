"""Whose files are, and who may reach them: owner and access list, compared as text in Windows' own canonical form."""

from __future__ import annotations

import ctypes
import re
import sys

assert sys.platform == "win32"

from nvx_ref.platform.windows import native

_OWNER = 1
_ACCESS = 4
_PARTS = _OWNER | _ACCESS
_QUERY = 8
_TOKEN_USER = 1
_REVISION = 1

_ENTRY = re.compile(r"\(([^;)]*);[^;)]*;([^;)]*);[^;)]*;[^;)]*;([^;)]*)")
_TRUSTED = frozenset({"SY", "BA", "OW", "CO"})
"""The system, its administrators (who can take any file), and whoever owns the file itself."""
_WRITING = frozenset({"FA", "FW", "GA", "GW", "WD", "WO", "SD", "DC", "LC", "RP", "DT", "CR"})
_WRITING_BITS = 0x5000_0000 | 0xD_0000 | 0x156
"""Generic, standard and specific rights that change something."""


class Permissions:
    """Who owns an object, and who else may do what to it.

    Args:
        text: Owner and access list in Windows' notation.
    """

    __slots__ = ("_text", "owner")

    def __init__(self, text: str) -> None:
        self._text = text
        self.owner = text.partition("O:")[2].partition("D:")[0].partition("G:")[0]

    @property
    def mine(self) -> bool:
        """Whether this user owns it; what an elevated administrator makes may belong to the administrators."""
        return self.owner in {own_name(), "BA"}

    @property
    def private(self) -> bool:
        """Whether nobody but this user, the system and its administrators has a right to it."""
        return not self._others()

    def others_write(self) -> bool:
        """Tell whether anybody else may change it."""
        return any(_changes(rights) for rights in self._others())

    def _others(self) -> list[str]:
        """Return the rights of everybody else, entry by entry."""
        if "D:" not in self._text or "NO_ACCESS_CONTROL" in self._text:
            return ["GA"]
        trusted = _TRUSTED | {own_name()}
        entries: list[tuple[str, str, str]] = _ENTRY.findall(self._text)
        return [what for kind, what, who in entries if kind in {"A", "XA", "OA"} and who not in trusted]


def _changes(rights: str) -> bool:
    if rights.startswith("0x"):
        return bool(int(rights, 16) & _WRITING_BITS)
    return not _WRITING.isdisjoint(rights[at : at + 2] for at in range(0, len(rights), 2))


_own: list[str] = []


def own_sid() -> str:
    """Return this user's security identifier."""
    token = native.HANDLE()
    if not native.open_token(native.get_current_process(), _QUERY, ctypes.byref(token)):
        raise native.last_error("token")
    try:
        buffer = ctypes.create_string_buffer(256)
        size = native.DWORD()
        if not native.get_token(token.value, _TOKEN_USER, buffer, len(buffer), ctypes.byref(size)):
            raise native.last_error("token")
    finally:
        native.release(token.value)
    text = ctypes.c_wchar_p()
    if not native.sid_to_text(ctypes.c_void_p.from_buffer(buffer), ctypes.byref(text)):
        raise native.last_error("token")
    try:
        return text.value or ""
    finally:
        native.local_free(text)


def own_name() -> str:
    """Return this user as the canonical notation writes it: some accounts have a name of two letters there."""
    if not _own:
        descriptor = _parse(f"O:{own_sid()}")
        try:
            _own.append(_text(descriptor, _OWNER).removeprefix("O:"))
        finally:
            native.local_free(descriptor)
    return _own[0]


class Descriptor:
    """A security descriptor for what is created: this user and the system, nobody else, and nothing inherited.

    Args:
        directory: Whether what is created in it gets the same.
    """

    __slots__ = ("_pointer",)

    def __init__(self, *, directory: bool) -> None:
        flags = "OICI" if directory else ""
        sid = own_sid()
        self._pointer = _parse(f"O:{sid}D:P(A;{flags};FA;;;SY)(A;{flags};FA;;;{sid})")

    @property
    def address(self) -> int:
        """Where it is, for a call that creates something."""
        return self._pointer.value or 0

    def __del__(self) -> None:
        if pointer := getattr(self, "_pointer", None):
            native.local_free(pointer)


_made: dict[bool, Descriptor] = {}


def private(*, directory: bool) -> int:
    """Return the address of a descriptor that lives as long as the process."""
    if directory not in _made:
        _made[directory] = Descriptor(directory=directory)
    return _made[directory].address


def permissions(handle: int) -> Permissions:
    """Look at an open object, which the handle must be allowed to read the control of.

    Raises:
        OSError: It can't be looked at.
    """
    size = native.DWORD()
    buffer = ctypes.create_string_buffer(4096)
    if not native.get_security(handle, _PARTS, buffer, len(buffer), ctypes.byref(size)):
        if size.value <= len(buffer):
            raise native.last_error()
        buffer = ctypes.create_string_buffer(size.value)
        if not native.get_security(handle, _PARTS, buffer, len(buffer), ctypes.byref(size)):
            raise native.last_error()
    return Permissions(_text(ctypes.cast(buffer, ctypes.c_void_p), _PARTS))


def _parse(text: str) -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    if not native.text_to_security(text, _REVISION, ctypes.byref(found), None):
        raise native.last_error("security descriptor")
    return found


def _text(descriptor: ctypes.c_void_p, parts: int) -> str:
    found = ctypes.c_wchar_p()
    if not native.security_to_text(descriptor, _REVISION, parts, ctypes.byref(found), None):
        raise native.last_error("security descriptor")
    try:
        return found.value or ""
    finally:
        native.local_free(found)
