"""The VMM's control endpoint: a named pipe, spoken to by overlapped calls with deadlines."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nvx_ref.errors import NvxError, SessionFailed, TimedOut, VmmExited
from nvx_ref.platform.connections import SharedConnection
from nvx_ref.platform.contract import ProcessGone, Unpinnable
from nvx_ref.platform.failures import describe, failure

assert sys.platform == "win32"

import _winapi

from nvx_ref.platform.windows import native
from nvx_ref.platform.windows.process import Pin
from nvx_ref.platform.windows.waiting import wait_for_any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from nvx_ref.deadline import Deadline

PREFIX = "//./pipe/openvmm-microvm-"
"""What OpenVMM takes as a control endpoint on Windows (openvmm 1.4)."""

_OVERLAPPED = 0x4000_0000
_IDENTIFICATION = 0x0010_0000 | 0x0001_0000
"""The server may learn who connects, and may not act as them."""
_OPEN_EXISTING = 3
_NOT_YET = {native.ERROR_FILE_NOT_FOUND, native.ERROR_PIPE_BUSY}
_ENDED = {native.ERROR_BROKEN_PIPE, native.ERROR_PIPE_NOT_CONNECTED, native.ERROR_NO_DATA}
_CHUNK = 1 << 16
_PIPE_STATE, _CONNECTED = 24, 3


def choose(directory: str) -> str:
    """Return a fresh endpoint. Names of pipes aren't files; this one tells for which directory it was chosen.

    Args:
        directory: The directory's absolute path.
    """
    return PREFIX + os.urandom(8).hex() + _place(directory)


def is_elsewhere(endpoint: str, directory: str) -> bool:
    """Tell whether an endpoint was chosen for another directory."""
    return not endpoint.endswith(_place(directory))


def _place(directory: str) -> str:
    from hashlib import sha256  # noqa: PLC0415 - loaded for launches and looks at them alone

    path = os.path.normcase(os.path.abspath(directory))
    return sha256(path.encode("utf-16-le", "surrogatepass")).hexdigest()[:16]


def connect(endpoint: str, deadline: Deadline, *, alive: Callable[[], bool]) -> Connection:
    """Connect to an endpoint that may not be there, or not be free yet; it is tried every 25 ms.

    Args:
        endpoint: The pipe's name.
        deadline: By when.
        alive: Whether the VMM still runs, asked before each further try.

    Returns:
        The connection. Who serves it is for :meth:`Connection.peer` to tell.

    Raises:
        VmmExited: ``alive`` said no.
        TimedOut: The deadline passed; with ``detail`` ``session-in-use`` while somebody else had the only connection.
        Refused: This user may not connect.
    """
    access = native.GENERIC_READ | native.GENERIC_WRITE
    sys.audit("_winapi.CreateFile", endpoint, access, 0, _OPEN_EXISTING, _OVERLAPPED)
    while True:
        handle = native.create_file(
            endpoint.replace("/", "\\"),
            access,
            0,
            None,
            _OPEN_EXISTING,
            _OVERLAPPED | _IDENTIFICATION,
            0,
        )
        if handle != native.INVALID_HANDLE:
            return Connection(handle, endpoint)
        error = native.last_error(endpoint)
        if error.winerror not in _NOT_YET:
            raise failure(error, endpoint, "connect to")
        if not alive():
            raise VmmExited("the VMM exited before it served its endpoint", subject=endpoint, detail="before-endpoint")
        if not deadline.pause():
            if error.winerror == native.ERROR_PIPE_BUSY:
                raise TimedOut("session in use by another process", subject=endpoint, detail="session-in-use")
            raise TimedOut("nothing served the endpoint by the deadline", subject=endpoint, detail="endpoint")


class _Write:
    """A write that was begun. It stays what is being written until it is done: a part can't be called back."""

    __slots__ = ("data", "running")

    def __init__(self, handle: int, data: bytes) -> None:
        self.data = data
        self.running, _ = _winapi.WriteFile(handle, data, overlapped=True)


class Connection(SharedConnection):
    """See :class:`nvx_ref.platform.contract.Connection`; made by :func:`connect`.

    Args:
        handle: The pipe's overlapped handle, which this owns.
        endpoint: Its name, for messages.
    """

    __slots__ = ("_closed", "_handle", "_kept", "_write")

    def __init__(self, handle: int, endpoint: str) -> None:
        super().__init__(endpoint)
        self._handle = handle
        self._write: _Write | None = None
        self._kept = b""
        self._closed: int = native.create_event(None, True, False, None)

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all the bytes."""
        view = memoryview(data)
        with self._in_use():
            while view:
                write = self._begin_write(view)
                self._wait([write.running.event], deadline, "take what was sent")
                view = view[self._end_write(write) :]

    def receive(self, limit: int, deadline: Deadline) -> bytes:
        """Return what has arrived, 1 to ``limit`` bytes, or ``b""`` once the other end has closed."""
        with self._in_use():
            if self._kept:
                return self._take_kept(limit)
            read = self._begin_read(limit)
            if read is None:
                return b""
            with self._keeping(read):
                try:
                    self._wait([read.event], deadline, "answer")
                except (TimedOut, SessionFailed):
                    arrived = self._end_read(read)
                    if arrived:
                        return arrived
                    raise
                arrived = self._end_read(read)
            return b"" if arrived is None else arrived

    def exchange(self, data: memoryview, limit: int, deadline: Deadline) -> tuple[int, bytes | None]:
        """Wait until either direction can move, then move what can be moved without waiting.

        What couldn't be sent is on its way all the same: the next call with the same bytes goes on with it.
        """
        with self._in_use():
            if limit and self._kept:
                return 0, self._take_kept(limit)
            read = self._begin_read(limit) if limit else None
            if limit and read is None:
                return 0, b""
            with self._keeping(read):
                try:
                    write = self._begin_write(data)
                except SessionFailed:
                    # What it said before it closed comes first; the next call meets the end.
                    arrived = None if read is None else self._end_read(read)
                    if arrived is None:
                        raise
                    return 0, arrived
                events = [write.running.event, *([read.event] if read is not None else [])]
                try:
                    first = self._wait(events, deadline, "take what was sent")
                except (TimedOut, SessionFailed):
                    arrived = None if read is None else self._end_read(read)
                    if arrived is None:
                        raise
                    return 0, arrived
                arrived = None if read is None else self._end_read(read)
                return self._end_write(write) if first == 0 else 0, arrived

    def peer(self) -> Pin:
        """Return a hold on the process that serves the pipe, as the kernel names it.

        The number is pinned first; the pipe must be whole after that. A server that had ended by then would have
        taken its end of the pipe with it, so a successor of its number is refused. What it had said is there to be
        read all the same, so the pipe is asked for its state.
        """
        with self._in_use():
            pid = native.DWORD()
            if not native.get_pipe_server(self._handle, ctypes.byref(pid)):
                error = native.last_error()
                reason = f"the kernel doesn't name its server: {describe(error)}"
                raise Unpinnable(reason, subject=self._endpoint, detail="denied") from error
            pin = Pin.open(pid.value)
            if pin.has_exited() or not self._is_whole():
                pin.close()
                raise ProcessGone("the process that served the endpoint has exited", subject=self._endpoint)
            return pin

    def fileno(self) -> int:
        """Return the pipe's handle."""
        return self._handle

    def _is_whole(self) -> bool:
        found, done = native.PipeInfo(), native.IoStatus()
        status = native.nt_query_file(
            self._handle, ctypes.byref(done), ctypes.byref(found), ctypes.sizeof(found), _PIPE_STATE
        )
        return bool(status >= 0 and found.state == _CONNECTED)

    def _interrupt(self) -> None:
        native.set_event(self._closed)

    def _is_end(self, error: OSError) -> bool:
        return error.winerror in _ENDED

    def _give_up(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            with suppress(OSError):
                write.running.cancel()
                write.running.GetOverlappedResult(True)
        native.release(self._handle)
        native.release(self._closed)

    def _begin_write(self, view: memoryview) -> _Write:
        if self._write is None:
            try:
                self._write = _Write(self._handle, bytes(view[:_CHUNK]))
            except OSError as error:
                raise self._broken(error) from error
        return self._write

    def _end_write(self, write: _Write) -> int:
        self._write = None
        try:
            count, error = write.running.GetOverlappedResult(True)
        except OSError as failed:
            raise self._broken(failed) from failed
        if error:
            raise self._broken(native.error_of(error))
        return count

    def _begin_read(self, limit: int) -> _winapi.Overlapped | None:
        try:
            return _winapi.ReadFile(self._handle, limit, overlapped=True)[0]
        except OSError as error:
            if error.winerror in _ENDED:
                return None
            raise self._broken(error) from error

    def _end_read(self, read: _winapi.Overlapped) -> bytes | None:
        """Finish a read, one that hasn't happened by calling it off; None if nothing arrived, b"" at the end."""
        try:
            read.cancel()
            count, error = read.GetOverlappedResult(True)
        except OSError as failed:
            if failed.winerror in _ENDED:
                return b""
            raise self._broken(failed) from failed
        if error == native.ERROR_OPERATION_ABORTED:
            return None
        if error in _ENDED:
            return b""
        return bytes(read.getbuffer() or b"")[:count]

    @contextmanager
    def _keeping(self, read: _winapi.Overlapped | None) -> Generator[None]:
        """Keep for the next call what a read has brought that an interrupt cuts short: it has left the pipe."""
        try:
            yield
        except NvxError:
            raise
        except BaseException:
            if read is not None:
                with suppress(NvxError):
                    self._kept += self._end_read(read) or b""
            raise

    def _take_kept(self, limit: int) -> bytes:
        found, self._kept = self._kept[:limit], self._kept[limit:]
        return found

    def _wait(self, events: list[int], deadline: Deadline, what: str) -> int:
        try:
            found = wait_for_any([*events, self._closed], deadline)
        except OSError as error:
            raise self._broken(error) from error
        if found is None:
            raise TimedOut(f"the VMM didn't {what} by the deadline", subject=self._endpoint, detail="session")
        if found == len(events):
            raise self._is_closed()
        return found
