"""The channel of a test over a named pipe of Windows: for this user and the system alone, and told who is there.

Every call is overlapped and every end of one arrives at one completion port, so a look never waits, a wait has a
deadline, and there is no limit to how many fakes are waited for.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from typing import TYPE_CHECKING

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

from harness.errors import HarnessError  # noqa: E402
from harness.witness.access import Security, own_sid  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.deadline import Deadline
    from harness.platform.contract import Line

PREFIX = "//./pipe/nvx-channel-"
"""What the name of a channel begins with."""
AHEAD = 16
"""Instances that wait for a fake: as many may come between two looks, and the next one waits for a look."""
CHUNK = 4096
CLOSING = 2000
"""Milliseconds that what is cancelled may take to arrive."""

_DUPLEX, _FIRST, _OVERLAPPED = 0x3, 0x8_0000, 0x4000_0000
_REJECT_REMOTE, _UNLIMITED = 0x8, 255
_PENDING, _CONNECTED, _GONE = 997, 535, 232
_INVALID = -1
_LONGEST, _TIMED_OUT = 2**31 - 1, 258

_handle = ctypes.c_ssize_t
_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
for _name, _result, _arguments in (
    ("CreateNamedPipeW", _handle, [ctypes.c_wchar_p, *[ctypes.c_uint32] * 6, ctypes.c_void_p]),
    ("ConnectNamedPipe", ctypes.c_int, [_handle, ctypes.c_void_p]),
    ("GetNamedPipeClientProcessId", ctypes.c_int, [_handle, ctypes.c_void_p]),
    ("ReadFile", ctypes.c_int, [_handle, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p]),
    ("WriteFile", ctypes.c_int, [_handle, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p]),
    ("CancelIoEx", ctypes.c_int, [_handle, ctypes.c_void_p]),
    ("CloseHandle", ctypes.c_int, [_handle]),
    ("CreateIoCompletionPort", _handle, [_handle, _handle, ctypes.c_size_t, ctypes.c_uint32]),
    ("GetQueuedCompletionStatus", ctypes.c_int, [_handle, *[ctypes.c_void_p] * 3, ctypes.c_uint32]),
):
    getattr(_kernel32, _name).restype = _result
    getattr(_kernel32, _name).argtypes = _arguments


_lost: dict[int, object] = {}


class _Overlapped(ctypes.Structure):
    _fields_ = (
        ("internal", ctypes.c_size_t),
        ("high", ctypes.c_size_t),
        ("offset", ctypes.c_uint64),
        ("event", _handle),
    )


class _Call:
    """One overlapped call, kept until its end has arrived: the kernel writes into it."""

    def __init__(self, line: PipeLine, what: str, data: ctypes.Array[ctypes.c_char]) -> None:
        self.line = line
        self.what = what
        self.data = data
        self.overlapped = _Overlapped()
        self.address = ctypes.addressof(self.overlapped)


class PipeLine:
    """One instance of the pipe; see :class:`harness.platform.contract.Line`.

    Args:
        door: Where the ends of its calls arrive.
        handle: The instance, which this owns.
    """

    def __init__(self, door: PipeDoor, handle: int) -> None:
        self._door = door
        self._handle = handle
        self._pieces: deque[bytes] = deque()
        self._ended = False

    @property
    def client(self) -> int | None:
        """Ask the kernel."""
        found = ctypes.c_uint32()
        if not _kernel32.GetNamedPipeClientProcessId(self._handle, ctypes.byref(found)):
            return None
        return found.value

    @property
    def told(self) -> bool:
        """Whether there is something to read, its end included."""
        return bool(self._pieces) or self._ended

    def connect(self) -> bool:
        """Wait for a fake from now on; True if one is there already."""
        call = self._door.begin(_Call(self, "connect", ctypes.create_string_buffer(0)))
        _kernel32.ConnectNamedPipe(self._handle, call.address)
        error = ctypes.get_last_error()
        if error == _PENDING:
            return False
        self._door.forget(call)
        # A fake that came and went at once is one that is read to its end.
        if error not in {_CONNECTED, _GONE}:
            raise HarnessError(f"the channel's pipe can't be waited at: {ctypes.WinError(error)}")
        return True

    def read_on(self) -> None:
        """Have the next piece read."""
        call = self._door.begin(_Call(self, "read", ctypes.create_string_buffer(CHUNK)))
        if not _kernel32.ReadFile(self._handle, call.data, CHUNK, None, call.address):
            self._failed(call)

    def ended(self, what: str, data: bytes) -> None:
        """Take the end of a call: what was read, nothing if it failed."""
        if what == "read" and data and self._handle:
            self._pieces.append(data)
            self.read_on()
        elif what == "read":
            self._ended = True

    def read(self) -> bytes | None:
        """See :class:`Line`."""
        if self._pieces:
            return self._pieces.popleft()
        return b"" if self._ended else None

    def send(self, data: bytes) -> None:
        """See :class:`Line`."""
        call = self._door.begin(_Call(self, "write", ctypes.create_string_buffer(data, len(data))))
        if not _kernel32.WriteFile(self._handle, call.data, len(data), None, call.address) and self._failed(call):
            raise ConnectionResetError(f"the fake of pid {self.client} is gone")

    def close(self) -> None:
        """See :class:`Line`; what was sent stays to be read."""
        handle, self._handle = self._handle, 0
        if handle:
            _kernel32.CancelIoEx(handle, None)
            _kernel32.CloseHandle(handle)

    def _failed(self, call: _Call) -> bool:
        if ctypes.get_last_error() == _PENDING:
            return False
        self._door.forget(call)
        self._ended = True
        return True


class PipeDoor:
    """See :class:`harness.platform.contract.Door`.

    Args:
        path: The name of the pipe, which nobody else may serve yet.

    Raises:
        OSError: Somebody does.
    """

    def __init__(self, path: str) -> None:
        self._path = path.replace("/", "\\")
        self._calls: dict[int, _Call] = {}
        self._come: deque[PipeLine] = deque()
        self._waiting: set[PipeLine] = set()
        self._port: int = _kernel32.CreateIoCompletionPort(_INVALID, 0, 0, 0)
        self._security = Security(f"D:P(A;;GA;;;SY)(A;;GA;;;{own_sid()})")
        self._offer(_FIRST)
        while len(self._waiting) + len(self._come) < AHEAD:
            self._offer()

    def accept(self) -> PipeLine | None:
        """See :class:`Door`."""
        return self._come.popleft() if self._come else None

    def wait(self, lines: Iterable[Line], deadline: Deadline | None) -> None:
        """See :class:`Door`."""
        known = bool(self._come) or any(isinstance(line, PipeLine) and line.told for line in lines)
        self._arrive(0 if known or deadline is None else min(deadline.milliseconds(), _LONGEST))
        while self._arrive(0):
            pass

    def close(self) -> None:
        """See :class:`Door`; the lines that were let in are closed before."""
        for line in (*self._waiting, *self._come):
            line.close()
        # One that came at this moment reads its end: it is let in no more, and nobody waits in its place.
        self._waiting.clear()
        while self._calls and self._arrive(CLOSING):
            pass
        # The kernel may still write into what didn't arrive.
        _lost.update(self._calls)
        _kernel32.CloseHandle(self._port)
        self._security.close()

    def begin(self, call: _Call) -> _Call:
        """Keep a call until its end arrives."""
        self._calls[call.address] = call
        return call

    def forget(self, call: _Call) -> None:
        """Let go of a call that never began."""
        del self._calls[call.address]

    def _offer(self, first: int = 0) -> None:
        handle: int = _kernel32.CreateNamedPipeW(
            self._path,
            _DUPLEX | _OVERLAPPED | first,
            _REJECT_REMOTE,
            _UNLIMITED,
            CHUNK,
            CHUNK,
            0,
            self._security.attributes,
        )
        if handle == _INVALID:
            raise ctypes.WinError(ctypes.get_last_error())
        _kernel32.CreateIoCompletionPort(handle, self._port, 0, 0)
        line = PipeLine(self, handle)
        if line.connect():
            self._let_in(line)
        else:
            self._waiting.add(line)

    def _let_in(self, line: PipeLine) -> None:
        line.read_on()
        self._come.append(line)

    def _arrive(self, milliseconds: int) -> bool:
        """Take the end of one call; False if none came in that time."""
        count, key, where = ctypes.c_uint32(), ctypes.c_size_t(), ctypes.c_void_p()
        done = _kernel32.GetQueuedCompletionStatus(
            self._port, ctypes.byref(count), ctypes.byref(key), ctypes.byref(where), milliseconds
        )
        if where.value is None:
            if (error := ctypes.get_last_error()) != _TIMED_OUT:
                raise HarnessError(f"the channel's pipe can't be waited for: {ctypes.WinError(error)}")
            return False
        call = self._calls.pop(where.value)
        if call.what != "connect":
            call.line.ended(call.what, call.data.raw[: count.value] if done else b"")
        elif call.line in self._waiting and done:
            self._waiting.remove(call.line)
            self._let_in(call.line)
            self._offer()
        return True
