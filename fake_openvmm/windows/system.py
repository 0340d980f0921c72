"""What the machine asks of Windows."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time

assert sys.platform == "win32"

import msvcrt

from fake_openvmm.windows.companion import Companion
from fake_openvmm.windows.pipes import Bell as Wake
from fake_openvmm.windows.pipes import PipeConnection, find, wait_for
from fake_openvmm.windows.users import own_sid, sid_of

__all__ = [
    "Companion",
    "Wake",
    "logical_block",
    "memory_file",
    "open_image",
    "own_user",
    "peer",
    "private_name",
    "read_at",
    "unread",
    "wait",
    "write_at",
]

SAME_USER = 0
STRANGER = -1

_READ, _WRITE = 0x8000_0000, 0x4000_0000
_SHARE_ALL = 7
_CREATE_ALWAYS, _OPEN_EXISTING = 2, 3

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.CreateFileW.restype = ctypes.c_ssize_t
_kernel32.CreateFileW.argtypes = [
    ctypes.c_wchar_p,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.c_ssize_t,
]


def open_image(path: str, *, writable: bool, create: bool = False) -> int:
    """Open an image, sharing everything as Rust's standard library does, so that a guard of the host's may be there.

    Raises:
        OSError: it can't be opened.
    """
    access = _READ | (_WRITE if writable else 0)
    handle = _kernel32.CreateFileW(path, access, _SHARE_ALL, None, _CREATE_ALWAYS if create else _OPEN_EXISTING, 0, 0)
    if handle == -1:
        raise ctypes.WinError(ctypes.get_last_error())
    return msvcrt.open_osfhandle(handle, os.O_NOINHERIT)


def memory_file(size: int) -> int:
    """A file of `size` zero bytes that goes with its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_BINARY | os.O_NOINHERIT | os.O_TEMPORARY
    fd = os.open(private_name("nvx-disk-"), flags, 0o600)
    os.ftruncate(fd, size)
    return fd


def logical_block(fd: int) -> int:
    """The logical block size of a block device, in bytes: there are none that can be opened as a file."""
    del fd
    return 512


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes at `offset`; fewer only at the end."""
    os.lseek(fd, offset, os.SEEK_SET)
    parts: list[bytes] = []
    while size > 0 and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    os.lseek(fd, offset, os.SEEK_SET)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def own_user() -> int:
    """What `peer` says of a process of this user."""
    return SAME_USER


def peer(connection: PipeConnection) -> tuple[int, int]:
    """(user, PID) of the process that connected; the users' security identifiers are compared."""
    pid = connection.client
    return (SAME_USER if sid_of(pid) == own_sid() else STRANGER), pid


def unread(connection: PipeConnection) -> int:
    """Whether something was sent that the peer hasn't read yet."""
    return connection.unread


def private_name(prefix: str) -> bytes:
    """A path in the directory for temporary files that nobody has."""
    return os.fsencode(os.path.join(tempfile.gettempdir(), prefix + os.urandom(8).hex()))


def wait(
    readable: list[int], writable: list[int], seconds: float | None, watched: list[int] | None = None
) -> dict[int, tuple[bool, bool]]:
    """Wait for sources: which can be read (or are at their end), and which can be written.

    Those that are only watched count as readable once their other end is gone.
    """
    numbers = dict.fromkeys([*readable, *writable, *(watched or ())])
    until = None if seconds is None else time.monotonic() + max(0.0, seconds)
    while True:
        found: dict[int, tuple[bool, bool]] = {}
        events: list[int] = []
        for number in numbers:
            source = find(number)
            reads, writes, ended = source.state()
            state = (reads if number in readable else ended, writes and number in writable)
            if any(state):
                found[number] = state
            events += source.events()
        left = None if until is None else until - time.monotonic()
        if found or (left is not None and left <= 0):
            return found
        wait_for(_fresh(events), left)


def _fresh(events: list[int]) -> list[int]:
    return list(dict.fromkeys(events))
