"""The fake's end of the harness's channel: a named pipe that one thread reads while another writes."""

from __future__ import annotations

import io
import sys

assert sys.platform == "win32"

import _winapi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_READ_WRITE = 0xC000_0000
_OVERLAPPED = 0x4000_0000
_IDENTIFICATION = 0x0011_0000
"""The server may learn who this process is, and act as it in nothing."""
_BUSY, _TIMED_OUT = 231, 121
_WAITING_MS = 10_000
"""How long all of the channel's doors may be taken before somebody looks at one."""


class Channel:
    """A connection; both directions are overlapped, or a read that waits would hold up every write."""

    __slots__ = ("_handle",)

    def __init__(self, path: str) -> None:
        """Connect.

        Raises:
            OSError: nobody serves the pipe, or nobody lets this process in.
        """
        name = path.replace("/", "\\")
        while True:
            try:
                self._handle = _winapi.CreateFile(
                    name, _READ_WRITE, 0, 0, _winapi.OPEN_EXISTING, _OVERLAPPED | _IDENTIFICATION, 0
                )
            except OSError as error:
                if error.winerror != _BUSY:
                    raise
                _winapi.WaitNamedPipe(name, _WAITING_MS)
            else:
                return

    def sendall(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            OSError: the harness is gone.
        """
        while data:
            running, _ = _winapi.WriteFile(self._handle, data, overlapped=True)
            count, _ = running.GetOverlappedResult(True)
            data = data[count:]

    def receive(self, limit: int) -> bytes:
        """Wait for what comes; empty at the end."""
        try:
            running, _ = _winapi.ReadFile(self._handle, limit, overlapped=True)
            count, _ = running.GetOverlappedResult(True)
        except OSError:
            return b""
        return bytes(running.getbuffer() or b"")[:count]

    def makefile(self, mode: str, *, encoding: str) -> io.TextIOWrapper:
        """Give what comes as lines."""
        del mode
        return io.TextIOWrapper(io.BufferedReader(_Incoming(self)), encoding=encoding)


class _Incoming(io.RawIOBase):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        data = self._channel.receive(len(view))
        view[: len(data)] = data
        return len(data)
