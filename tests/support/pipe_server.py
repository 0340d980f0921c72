"""The server's end of a named pipe, for tests: one instance, blocking calls from its own threads."""

from __future__ import annotations

import ctypes
import sys
from typing import Self

assert sys.platform == "win32"

import _winapi

_DUPLEX_FIRST = 0x3 | 0x8_0000 | 0x4000_0000
_BUFFER = 4096
_CONNECTED, _GONE = 535, 232

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
_kernel32.CreateNamedPipeW.restype = ctypes.c_ssize_t
_kernel32.CreateNamedPipeW.argtypes = [ctypes.c_wchar_p, *[ctypes.c_uint32] * 6, ctypes.c_void_p]


class _Attributes(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint32), ("descriptor", ctypes.c_void_p), ("inherit", ctypes.c_int)]


class Server:
    """One instance of a pipe.

    Args:
        name: Its name.
        security: Who may open it, in Windows' notation; None: whoever the system lets.
    """

    def __init__(self, name: str, *, security: str | None = None) -> None:
        attributes = _Attributes(ctypes.sizeof(_Attributes), None, 0)
        if security is not None:
            descriptor = ctypes.c_void_p()
            made = _advapi32.ConvertStringSecurityDescriptorToSecurityDescriptorW(
                ctypes.c_wchar_p(security), 1, ctypes.byref(descriptor), None
            )
            assert made
            attributes.descriptor = descriptor
        self._handle = _kernel32.CreateNamedPipeW(
            name.replace("/", "\\"), _DUPLEX_FIRST, 0, 1, _BUFFER, _BUFFER, 0, ctypes.addressof(attributes)
        )
        if self._handle == -1:
            raise ctypes.WinError(ctypes.get_last_error())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def accept(self) -> None:
        """Wait for a client; one that has come and gone before counts, and has said nothing."""
        try:
            waiting = _winapi.ConnectNamedPipe(self._handle, overlapped=True)
        except OSError as error:
            if error.winerror not in (_CONNECTED, _GONE):
                raise
            return
        waiting.GetOverlappedResult(True)

    def send(self, data: bytes) -> None:
        """Send all the bytes."""
        running, _ = _winapi.WriteFile(self._handle, data, overlapped=True)
        running.GetOverlappedResult(True)

    def receive(self, size: int) -> bytes:
        """Receive that many bytes; fewer only at the end."""
        found = b""
        while len(found) < size:
            try:
                running, _ = _winapi.ReadFile(self._handle, size - len(found), overlapped=True)
                count, _ = running.GetOverlappedResult(True)
            except BrokenPipeError:
                break
            found += bytes(running.getbuffer() or b"")[:count]
        return found

    def receive_some(self, size: int) -> bytes:
        """Receive what comes first, nothing at the end."""
        try:
            running, _ = _winapi.ReadFile(self._handle, size, overlapped=True)
            count, _ = running.GetOverlappedResult(True)
        except BrokenPipeError:
            return b""
        return bytes(running.getbuffer() or b"")[:count]

    def disconnect(self) -> None:
        """Let go of a client, so that another may come."""
        _kernel32.DisconnectNamedPipe(ctypes.c_ssize_t(self._handle))

    def close(self) -> None:
        """Close it; what was sent stays to be read."""
        handle, self._handle = self._handle, -1
        if handle != -1:
            _winapi.CloseHandle(handle)
