"""Things that `system.wait` can wait for on Windows: pipes served by overlapped calls, and bells."""

from __future__ import annotations

import ctypes
import math
import sys

assert sys.platform == "win32"

import _winapi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLAB = 4096
AHEAD = 1 << 16
LAST_WORDS_MS = 2000
"""How long a connection that is closed leaves its host to read what was written last."""

_DUPLEX = 0x3
_FIRST = 0x8_0000
_OVERLAPPED = 0x4000_0000
_PENDING = 997
_CONNECTED, _GONE = 535, 232
_SIGNALLED = 0
_LONGEST = 2**31 - 1
_FIRST_NUMBER = 1 << 20

kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
kernel32.CreateNamedPipeW.restype = ctypes.c_ssize_t
kernel32.CreateNamedPipeW.argtypes = [ctypes.c_wchar_p, *[ctypes.c_uint32] * 6, ctypes.c_void_p]
kernel32.DisconnectNamedPipe.argtypes = [ctypes.c_ssize_t]
kernel32.GetNamedPipeClientProcessId.argtypes = [ctypes.c_ssize_t, ctypes.c_void_p]
kernel32.CreateEventW.restype = ctypes.c_ssize_t
kernel32.SetEvent.argtypes = [ctypes.c_ssize_t]
kernel32.ResetEvent.argtypes = [ctypes.c_ssize_t]


class Attributes(ctypes.Structure):
    """`SECURITY_ATTRIBUTES`."""

    _fields_ = (("length", ctypes.c_uint32), ("descriptor", ctypes.c_void_p), ("inherit", ctypes.c_int))


class Source:
    """Something with a number to wait on; `system.wait` finds it by that."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = _FIRST_NUMBER + len(_sources)
        _sources.append(self)

    def fileno(self) -> int:
        """The number: no descriptor of the C runtime is as high."""
        return self._number

    def state(self) -> tuple[bool, bool, bool]:
        """Whether it can be read, can be written, and is at its end."""
        raise NotImplementedError

    def events(self) -> list[int]:
        """Handles of which one is signalled when the state may have changed."""
        raise NotImplementedError


_sources: list[Source] = []


def find(number: int) -> Source:
    """The source of a number."""
    return _sources[number - _FIRST_NUMBER]


def signalled(event: int) -> bool:
    """Whether an event is signalled now."""
    return _winapi.WaitForSingleObject(event, 0) == _SIGNALLED


def wait_for(events: list[int], seconds: float | None) -> None:
    """Wait for one of the events, or for the time to pass."""
    milliseconds = _LONGEST if seconds is None else min(_LONGEST, max(0, math.ceil(seconds * 1000)))
    try:
        _winapi.WaitForMultipleObjects(events, False, milliseconds)
    except InterruptedError:
        return


class Bell(Source):
    """An event that another thread rings."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        self._event: int = kernel32.CreateEventW(None, True, False, None)

    def ring(self) -> None:
        """End the wait."""
        kernel32.SetEvent(self._event)

    def clear(self) -> None:
        """Forget what has rung."""
        kernel32.ResetEvent(self._event)

    def close(self) -> None:
        """Give the event back."""
        _winapi.CloseHandle(self._event)

    def state(self) -> tuple[bool, bool, bool]:
        """Readable while it rings."""
        return signalled(self._event), True, False

    def events(self) -> list[int]:
        """The event."""
        return [self._event]


class PipeListener(Source):
    """The one instance of a named pipe, for one host after the other."""

    __slots__ = ("_connecting", "handle")

    def __init__(self, name: str, security: str) -> None:
        """Create it; the name must not exist.

        Raises:
            OSError: it does, or can't be made.
        """
        super().__init__()
        descriptor = ctypes.c_void_p()
        if not advapi32.ConvertStringSecurityDescriptorToSecurityDescriptorW(
            ctypes.c_wchar_p(security), 1, ctypes.byref(descriptor), None
        ):
            raise ctypes.WinError(ctypes.get_last_error())
        attributes = Attributes(ctypes.sizeof(Attributes), descriptor, 0)
        # Without a buffer for output a write is over when the host has read it, and none is lost by a disconnection.
        self.handle: int = kernel32.CreateNamedPipeW(
            name.replace("/", "\\"), _DUPLEX | _FIRST | _OVERLAPPED, 0, 1, 0, AHEAD, 0, ctypes.addressof(attributes)
        )
        if self.handle == -1:
            raise ctypes.WinError(ctypes.get_last_error())
        self._connecting: Any = None

    def listen(self) -> None:
        """Take the next host; one that has come and gone already is taken too, and is at its end."""
        try:
            self._connecting = _winapi.ConnectNamedPipe(self.handle, overlapped=True)
        except OSError as error:
            if error.winerror not in (_CONNECTED, _GONE):
                raise
            self._connecting = None

    def accept(self) -> tuple[PipeConnection, None]:
        """The connection of the host that has come."""
        if self._connecting is not None:
            self._connecting.GetOverlappedResult(True)
            self._connecting = None
        return PipeConnection(self), None

    def again(self) -> None:
        """Part with the host that was here, and take the next one."""
        kernel32.DisconnectNamedPipe(self.handle)
        if self.handle != -1:
            self.listen()

    def close(self) -> None:
        """Remove the pipe."""
        handle, self.handle = self.handle, -1
        self._connecting = None
        if handle != -1:
            _winapi.CloseHandle(handle)

    def state(self) -> tuple[bool, bool, bool]:
        """Readable once a host has come."""
        return self._connecting is None or signalled(self._connecting.event), False, False

    def events(self) -> list[int]:
        """The event of the next host."""
        return [] if self._connecting is None else [self._connecting.event]


class PipeConnection(Source):
    """A host's connection, as a non-blocking socket would be."""

    __slots__ = ("_buffer", "_ended", "_listener", "_read", "_write")

    def __init__(self, listener: PipeListener) -> None:
        super().__init__()
        self._listener = listener
        self._buffer = bytearray()
        self._ended = False
        self._read: Any = None
        self._write: Any = None
        self._look()

    @property
    def client(self) -> int:
        """The number of the process that connected, 0 if it isn't known."""
        found = ctypes.c_uint32()
        kernel32.GetNamedPipeClientProcessId(self._listener.handle, ctypes.byref(found))
        return found.value

    @property
    def unread(self) -> int:
        """Whether something that was sent hasn't been read."""
        self._look()
        return int(self._write is not None)

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - as a socket's
        """It never blocks."""

    def recv(self, limit: int) -> bytes:
        """What has come; empty at the end.

        Raises:
            BlockingIOError: nothing has.
        """
        self._look()
        if not self._buffer and not self._ended:
            raise BlockingIOError
        found = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return found

    def send(self, data: bytes) -> int:
        """Send a piece.

        Raises:
            BlockingIOError: the one before hasn't been read yet.
            OSError: the host is gone.
        """
        self._look()
        if self._ended:
            raise BrokenPipeError
        if self._write is not None:
            raise BlockingIOError
        self._write, _ = _winapi.WriteFile(self._listener.handle, bytes(data), overlapped=True)
        return len(data)

    def close(self) -> None:
        """Part with the host, once it has read what was written last or has had its time for it."""
        if self._listener.handle == -1:
            return
        if self._write is not None and not self._ended:
            wait_for([self._write.event], LAST_WORDS_MS / 1000)
        for running in (self._read, self._write):
            if running is not None:
                try:
                    running.cancel()
                    running.GetOverlappedResult(True)
                except OSError:
                    continue
        self._read = self._write = None
        self._listener.again()

    def state(self) -> tuple[bool, bool, bool]:
        """As `Source.state`."""
        self._look()
        return bool(self._buffer) or self._ended, self._write is None, self._ended

    def events(self) -> list[int]:
        """The events of what runs."""
        return [running.event for running in (self._read, self._write) if running is not None]

    def _look(self) -> None:
        if self._write is not None and signalled(self._write.event):
            if self._finish(self._write) is None:
                self._ended = True
            self._write = None
        while not self._ended:
            if self._read is None:
                if len(self._buffer) >= AHEAD:
                    return
                try:
                    self._read, _ = _winapi.ReadFile(self._listener.handle, SLAB, overlapped=True)
                except OSError:
                    self._ended = True
                    return
            if not signalled(self._read.event):
                return
            read, self._read = self._read, None
            count = self._finish(read)
            if count is None:
                self._ended = True
                return
            self._buffer += bytes(read.getbuffer() or b"")[:count]

    def _finish(self, running: Any) -> int | None:
        try:
            count, error = running.GetOverlappedResult(True)
        except OSError:
            return None
        return None if error else int(count)
