"""What the machine asks of the operating system. Another system needs another version of this module only."""

from __future__ import annotations

import os
import select
import sys

assert sys.platform != "win32"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

_SO_PEERCRED = 17
_TIOCOUTQ = 0x5411
_BLKSSZGET = 0x1268
_COMPANION_SECONDS = 10.0
_COMPANION = (
    "import sys; sys.path.insert(0, sys.argv[1]); from fake_openvmm.guestprocess import main; main(int(sys.argv[2]))"
)


def open_image(path: str, *, writable: bool, create: bool = False) -> int:
    """Open an image: no waiting for a FIFO's other end, nothing inherited.

    Raises:
        OSError: it can't be opened.
    """
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags | (os.O_CREAT | os.O_TRUNC if create else 0), 0o666)


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


def private_name(prefix: str) -> bytes:
    """A path in the directory for temporary files that nobody has."""
    parent = os.fsencode(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the name below it is random
    return os.path.join(parent, prefix.encode() + os.urandom(8).hex().encode())


class Companion:
    """The guest process, and this end of its socket."""

    __slots__ = ("_here", "_pid", "_pin")

    def __init__(self) -> None:
        import socket  # noqa: PLC0415 - a machine without a workload needs none of this

        self._here, there = socket.socketpair()
        try:
            there.set_inheritable(True)
            self._pid = _spawn_companion(there.fileno())
        except OSError:
            self._here.close()
            raise
        finally:
            there.close()
        self._here.setblocking(False)
        self._pin = os.pidfd_open(self._pid)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._here.fileno()

    def send(self, data: bytes | bytearray) -> int:
        """Write as much as goes now; what nobody reads any more counts as written."""
        try:
            return self._here.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def receive(self, limit: int) -> bytes | None:
        """Read what there is: None if nothing, empty if the process is gone."""
        try:
            return self._here.recv(limit)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def wait(self, seconds: float, *, write: bool) -> bool:
        """Wait until the socket can be read, or written if `write`; False if not within `seconds`."""
        return bool(wait([self.fileno()], [self.fileno()] if write else [], seconds))

    def close(self) -> None:
        """Close the socket, which ends the process, and reap it."""
        self._here.close()
        if not wait([self._pin], [], _COMPANION_SECONDS):
            import signal  # noqa: PLC0415 - it hangs, which nobody has seen

            signal.pidfd_send_signal(self._pin, signal.SIGKILL)
        os.close(self._pin)
        os.waitpid(self._pid, 0)


def _spawn_companion(control: int) -> int:
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    kept = {name: value for name in ("LD_LIBRARY_PATH",) if (value := os.environ.get(name))}
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", _COMPANION, here, str(control)],
        kept,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )


def wait(
    readable: list[int], writable: list[int], seconds: float | None, watched: list[int] | None = None
) -> dict[int, tuple[bool, bool]]:
    """Wait for descriptors: which can be read (or are at their end), and which can be written.

    Those that are only watched count as readable once their other end is gone.
    """
    wanted = dict.fromkeys(watched or (), 0)
    for fd in readable:
        wanted[fd] = select.POLLIN
    for fd in writable:
        wanted[fd] = wanted.get(fd, 0) | select.POLLOUT
    poll = select.poll()
    for fd, events in wanted.items():
        poll.register(fd, events)
    found = poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1))
    return {fd: (bool(events & ~select.POLLOUT), bool(events & select.POLLOUT)) for fd, events in found}


class Wake:
    """Lets another thread end a `wait`."""

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._reader

    def ring(self) -> None:
        """End the wait."""
        os.write(self._writer, b"!")

    def clear(self) -> None:
        """Forget what has rung."""
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reader)
        os.close(self._writer)
