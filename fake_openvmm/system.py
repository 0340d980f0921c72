"""What the machine asks of the operating system. Another system needs another version of this module only."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

_SO_PEERCRED = 17
_TIOCOUTQ = 0x5411
_BLKSSZGET = 0x1268
NOBODY = -1


def open_flags(*, writable: bool) -> int:
    """Flags that open an image: no waiting for a FIFO's other end, nothing inherited."""
    return (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC


def memory_file(size: int) -> int:
    """A file of `size` zero bytes that has no name."""
    fd = os.memfd_create("disk", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def logical_block(fd: int) -> int:
    """The logical block size of a block device, in bytes."""
    import fcntl  # noqa: PLC0415 - only block devices need it

    return int.from_bytes(fcntl.ioctl(fd, _BLKSSZGET, bytes(4)), "little")


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes at `offset`; fewer only at the end."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def peer(connection: socket) -> tuple[int, int]:
    """(UID, PID) of the process that connected."""
    raw = connection.getsockopt(1, _SO_PEERCRED, 12)
    pid, uid = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little", signed=True)
    return uid, pid


def own_user() -> int:
    """The effective UID, which a host must share."""
    return os.geteuid()


def unread(connection: socket) -> int:
    """Bytes that were sent and that the peer hasn't read yet."""
    import fcntl  # noqa: PLC0415 - only a misbehaving host side needs it

    return int.from_bytes(fcntl.ioctl(connection.fileno(), _TIOCOUTQ, bytes(4)), "little")
