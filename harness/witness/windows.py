"""The witnesses' look at Windows: the kernel's table of processes, their own parameters, and handles."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Unpack

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

import msvcrt  # noqa: E402

from harness.errors import HarnessError  # noqa: E402
from harness.witness import access  # noqa: E402
from harness.witness.contract import Descriptor, Given, Stat  # noqa: E402
from harness.witness.handles import Opened  # noqa: E402
from harness.witness.jobs import Net  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import BinaryIO

    from harness.deadline import Deadline

ENDED_BY_HARNESS = 0xDEAD

_LOOK = 0x1000 | 0x10_0000
_TERMINATE = 1
_TABLE = 5
_NEXT, _CREATED, _NAME_LENGTH, _NAME, _NUMBER, _PARENT = 0, 32, 56, 64, 80, 88
_COMMAND = 0x70
_TIMED_OUT, _FAILED, _LONGEST = 258, 0xFFFF_FFFF, 2**31 - 1
_READ_ATTRIBUTES_AND_DATA, _SHARE_READ_AND_DELETE, _OPEN_EXISTING = 0x8000_0000, 5, 3
SHARE_ALL, SHARE_DELETE = 7, 4
_LIST, _DIRECTORY, _NO_LINK = 1, 0x0200_0000, 0x0020_0000
SHARING_VIOLATION, _INVALID = 32, 87
_LENGTH_MISMATCH = 0xC000_0004
_NO_START = 0x5555_5555_5555_5555
"""What fresh memory of Wine's server is filled with: a process that is being made is listed before it has a start."""

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_shell32 = ctypes.WinDLL("shell32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")
_handle = ctypes.c_ssize_t
for _name, _result, _arguments in (
    ("OpenProcess", _handle, [ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32]),
    ("CloseHandle", ctypes.c_int, [_handle]),
    ("TerminateProcess", ctypes.c_int, [_handle, ctypes.c_uint32]),
    ("GetExitCodeProcess", ctypes.c_int, [_handle, ctypes.c_void_p]),
    ("WaitForMultipleObjects", ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]),
    ("CreateEventW", _handle, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_wchar_p]),
    ("SetEvent", ctypes.c_int, [_handle]),
    ("ResetEvent", ctypes.c_int, [_handle]),
    ("GetProcessTimes", ctypes.c_int, [_handle, *[ctypes.c_void_p] * 4]),
    ("GetSystemTimeAsFileTime", None, [ctypes.c_void_p]),
    (
        "CreateFileW",
        _handle,
        [ctypes.c_wchar_p, *[ctypes.c_uint32] * 2, ctypes.c_void_p, *[ctypes.c_uint32] * 2, _handle],
    ),
    ("LocalFree", ctypes.c_void_p, [ctypes.c_void_p]),
):
    getattr(_kernel32, _name).restype = _result
    getattr(_kernel32, _name).argtypes = _arguments
_shell32.CommandLineToArgvW.restype = ctypes.POINTER(ctypes.c_wchar_p)


def _wait(handles: Sequence[int], deadline: Deadline | None) -> int | None:
    """Wait for one of the handles; None once the deadline has passed. Without a deadline: look once.

    Raises:
        HarnessError: They can't be waited for, which is no "not yet".
    """
    array = (_handle * len(handles))(*handles)
    while True:
        left = 0 if deadline is None else min(deadline.milliseconds(), _LONGEST)
        found = int(_kernel32.WaitForMultipleObjects(len(handles), array, False, left))
        if found < len(handles):
            return found
        if found != _TIMED_OUT:
            why = (
                str(ctypes.WinError(ctypes.get_last_error())) if found == _FAILED else f"the wait ended with {found:#x}"
            )
            raise HarnessError(f"handles {', '.join(map(hex, handles))} can't be waited for: {why}")
        if deadline is None or deadline.expired():
            return None


class Event:
    """An event that one thread rings and another waits for, beside other handles."""

    def __init__(self) -> None:
        self._handle: int = _kernel32.CreateEventW(None, True, False, None)
        if not self._handle:
            raise HarnessError(f"there is no event to wait with: {ctypes.WinError(ctypes.get_last_error())}")

    def ring(self) -> None:
        """Signal it."""
        _kernel32.SetEvent(self._handle)

    def clear(self) -> None:
        """Unsignal it."""
        _kernel32.ResetEvent(self._handle)

    def wait(self, others: Sequence[int], deadline: Deadline, *, alone: bool = False) -> bool:
        """Wait for it or one of the others, or for these alone; False once the deadline has passed."""
        return _wait([*([] if alone else [self._handle]), *others], deadline) is not None


class WindowsPin:
    """A process held by a handle; see :class:`harness.witness.contract.Pin`."""

    __slots__ = ("_handle", "pid", "start")

    def __init__(self, pid: int, handle: int, start: int) -> None:
        self.pid = pid
        self.start = start
        self._handle = handle

    def has_exited(self) -> bool:
        """Look at the handle."""
        return _wait([self._handle], None) is not None

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the exit event."""
        return _wait([self._handle], deadline) is not None

    def end(self) -> None:
        """Terminate it; the number is its own as long as it is held."""
        strong = _kernel32.OpenProcess(_TERMINATE, False, self.pid)
        if strong:
            _kernel32.TerminateProcess(strong, ENDED_BY_HARNESS)
            _kernel32.CloseHandle(strong)

    def reap(self) -> int | None:
        """Return its exit code; nothing has to be taken off a table."""
        code = ctypes.c_uint32()
        if not self.has_exited() or not _kernel32.GetExitCodeProcess(self._handle, ctypes.byref(code)):
            return None
        return code.value

    def status(self) -> int | None:
        """Return its exit code."""
        return self.reap()

    def fileno(self) -> int:
        """Return the handle."""
        return self._handle

    def close(self) -> None:
        """Close the handle."""
        handle, self._handle = self._handle, 0
        if handle:
            _kernel32.CloseHandle(handle)


class WindowsHost:
    """See :class:`harness.witness.contract.Host`."""

    ownership_is_a_handle = True
    guards_files = True
    serves_pipes = True

    def expose(self, path: str) -> None:
        """Replace its access list."""
        access.expose(path)

    def mode(self, path: str, status: os.stat_result) -> int:
        """Read the access list."""
        return access.mode(path, status)

    def __init__(self) -> None:
        self._catches = False
        self._net: Net | None = None

    def adopt_orphans(self) -> None:
        """Put into a job whatever is started from now on."""
        self._catches = True

    def start(self, command: Sequence[str], **given: Unpack[Given]) -> subprocess.Popen[bytes]:
        """Start it in the test's job."""
        if not self._catches:
            return subprocess.Popen(list(command), **given)
        self._net = self._net or Net()
        return self._net.start(command, **given)

    def adopted(self, table: Sequence[Stat]) -> set[int]:
        """Tell them by the job, and this process's own children by their parent."""
        own = {stat.pid for stat in table if stat.parent == os.getpid()}
        return own if self._net is None else own | self._net.orphans(table)

    def let_go(self) -> None:
        """Close the job."""
        net, self._net = self._net, None
        if net is not None:
            net.close()

    def pin(self, pid: int) -> WindowsPin | None:
        """Open a handle, then read the creation time of what it holds."""
        handle = _kernel32.OpenProcess(_LOOK, False, pid)
        if not handle:
            if ctypes.get_last_error() == _INVALID:
                return None
            raise HarnessError(f"pid {pid} can't be held: {ctypes.WinError(ctypes.get_last_error())}")
        times = (ctypes.c_uint64 * 4)()
        if not _kernel32.GetProcessTimes(handle, *(ctypes.addressof(times) + 8 * number for number in range(4))):
            reason = ctypes.WinError(ctypes.get_last_error())
            _kernel32.CloseHandle(handle)
            raise HarnessError(f"pid {pid} doesn't tell its start: {reason}")
        return WindowsPin(pid, handle, times[0])

    def now(self) -> int:
        """Return the time in which the kernel notes creations."""
        found = ctypes.c_uint64()
        _kernel32.GetSystemTimeAsFileTime(ctypes.byref(found))
        return found.value

    def processes(self) -> list[int]:
        """List the kernel's table."""
        return [stat.pid for stat in _table()]

    def owner(self, pid: int) -> str | None:
        """None: of other users' processes no arguments are seen here."""
        del pid
        return None

    def stats(self, since: int = 0) -> list[Stat]:
        """Read the kernel's table once."""
        return [stat for stat in _table() if stat.start >= since]

    def stat(self, pid: int) -> Stat | None:
        """Look into the kernel's table."""
        return next((stat for stat in _table() if stat.pid == pid), None)

    def arguments(self, pid: int) -> list[str]:
        """Read its command line from its own parameters, and split it as its runtime does."""
        with Opened(pid) as process:
            try:
                length, _, address = process.parameters(_COMMAND, "HH4xQ")
                raw = process.read(address, length)
            except OSError:
                return []
        text = raw.decode("utf-16-le", "surrogatepass")
        if not text.strip():
            return []
        count = ctypes.c_int()
        words = _shell32.CommandLineToArgvW(ctypes.c_wchar_p(text), ctypes.byref(count))
        found = [words[number] or "" for number in range(count.value)]
        _kernel32.LocalFree(words)
        return found

    def descriptors(self, pid: int) -> list[Descriptor] | None:
        """Return its standard handles, which are the ones that its parameters name."""
        with Opened(pid) as process:
            try:
                handles = process.standard()
            except OSError:
                return None
            found = [(number, handle, process.file(handle)) for number, handle in enumerate(handles)]
        return [Descriptor(number, *where, f"handle {handle:#x}") for number, handle, where in found if where]

    def inherited(self, pid: int) -> list[Descriptor] | None:
        """Return its inheritable handles, the standard ones by their numbers; see :mod:`harness.witness.handles`."""
        with Opened(pid) as process:
            try:
                standard, handles = process.standard(), process.handles()
            except OSError:
                return None
            found: list[Descriptor] = []
            for one in handles:
                numbers = [number for number, value in enumerate(standard) if value == one.value]
                if one.inheritable or numbers:
                    device, inode = process.file(one.value) or (0, 0)
                    what = f"{process.type(one.value)} {one.value:#x}"
                    found += [Descriptor(number, device, inode, what) for number in numbers or [one.value]]
            return sorted(found)

    def holders(self, device: int, inode: int, among: Iterable[int] | None = None) -> list[int]:
        """Look through the standard handles of every process that this user may look at."""
        return [
            pid
            for pid in (self.processes() if among is None else among)
            if any(one.device == device and one.inode == inode for one in self.descriptors(pid) or ())
        ]

    def is_locked(self, path: str) -> bool | None:
        """Open it without sharing writes, which a single write handle of anybody forbids."""
        handle = _kernel32.CreateFileW(
            path, _READ_ATTRIBUTES_AND_DATA, _SHARE_READ_AND_DELETE, None, _OPEN_EXISTING, 0, 0
        )
        if handle == -1:
            return True if ctypes.get_last_error() == SHARING_VIOLATION else None
        _kernel32.CloseHandle(handle)
        return False

    def explain(self, pid: int) -> str:
        """Collect what the kernel says."""
        lines = [f"pid {pid}", f"arguments {self.arguments(pid)!r}", f"stat {self.stat(pid)}"]
        return "\n".join([*lines, *(f"inherited {one.number} {one.target}" for one in self.inherited(pid) or ())])

    def mounts(self, below: str) -> list[str]:
        """Windows mounts nothing over a test's directory."""
        del below
        return []

    def sockets(self, below: str) -> list[str]:
        """Endpoints are pipes, which go with their server."""
        del below
        return []


def open_directory(path: str, *, share: int) -> int:
    """Open a directory to be listed, but no link or junction.

    Args:
        path: The directory.
        share: What others may do with it meanwhile.

    Raises:
        OSError: It isn't there, or somebody has it who doesn't go with that.
    """
    handle = _kernel32.CreateFileW(path, _LIST, share, None, _OPEN_EXISTING, _DIRECTORY | _NO_LINK, 0)
    if handle == -1:
        raise ctypes.WinError(ctypes.get_last_error())
    return msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_NOINHERIT)


def open_shared(path: str) -> BinaryIO:
    """Open a file to be read, whatever others do to it meanwhile."""
    handle = _kernel32.CreateFileW(path, _READ_ATTRIBUTES_AND_DATA, SHARE_ALL, None, _OPEN_EXISTING, 0, 0)
    if handle == -1:
        raise ctypes.WinError(ctypes.get_last_error())
    return os.fdopen(msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_NOINHERIT), "rb")


def _table() -> list[Stat]:
    size = 1 << 18
    while True:
        buffer = ctypes.create_string_buffer(size)
        status = _ntdll.NtQuerySystemInformation(_TABLE, buffer, size, None)
        if status >= 0:
            break
        if status & 0xFFFF_FFFF != _LENGTH_MISMATCH or size > 1 << 26:
            raise HarnessError("the table of processes can't be read")
        size *= 2
    base = ctypes.addressof(buffer)
    raw = buffer.raw
    found: list[Stat] = []
    offset = 0
    while True:
        step, length, created, name, pid, parent = (
            int.from_bytes(raw[offset + at : offset + at + width], "little")
            for at, width in ((_NEXT, 4), (_NAME_LENGTH, 2), (_CREATED, 8), (_NAME, 8), (_NUMBER, 8), (_PARENT, 8))
        )
        start = name - base
        text = raw[start : start + length].decode("utf-16-le", "replace") if 0 <= start < size else ""
        found.append(Stat(pid, text, "R", parent, 0, created))
        if not step:
            return [stat for stat in found if stat.pid and stat.start != _NO_START]
        offset += step
