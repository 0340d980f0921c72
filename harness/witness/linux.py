"""The witnesses' look at Linux: procfs read as bytes, processes held by pidfds."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Unpack

from harness.deadline import Clock, until
from harness.errors import HarnessError
from harness.platform import owner_of
from harness.witness.contract import Descriptor, Given, Stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.deadline import Deadline

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

PR_SET_CHILD_SUBREAPER = 36
UNIX_FIELDS = 7
PAGE = 65536
STATE, PARENT, SESSION, START, EXIT_CODE = 0, 1, 3, 19, 49
"""Which fields of /proc/PID/stat, counted after the name."""

ZOMBIE = b"Z"
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 8
"""Ask a pidfd of what it was for, once that is reaped: `struct pidfd_info` of 64 bytes (Linux 6.15)."""
RECENT = 5.0
"""Seconds after its fork in which a process without arguments is taken for one in the middle of its exec."""


class LinuxPin:
    """A process held by its pidfd; see :class:`harness.witness.contract.Pin`."""

    __slots__ = ("_fd", "pid", "start")

    def __init__(self, pid: int, fd: int, start: int) -> None:
        self.pid = pid
        self.start = start
        self._fd = fd

    def has_exited(self) -> bool:
        """Tell whether the pidfd is readable: the whole thread group has ended, reaped or not."""
        return bool(_readable(self._fd, 0))

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the exit event."""
        while not _readable(self._fd, deadline.milliseconds()):
            if deadline.expired():
                return False
        return True

    def end(self) -> None:
        """Send SIGKILL through the pidfd."""
        try:
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def reap(self) -> int | None:
        """Reap this process alone; another's status is never taken."""
        try:
            ended = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return None
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def status(self) -> int | None:
        """Ask the pidfd, which newer kernels tell what became of a process that is reaped; else look at the zombie."""
        told = exit_of(self._fd)
        look = _stat_fields(self.pid) if told is None else None
        if look is not None and (fields := look[1])[STATE] == ZOMBIE and int(fields[START]) == self.start:
            told = int(fields[EXIT_CODE])
        return None if told is None else os.waitstatus_to_exitcode(told)

    def fileno(self) -> int:
        """Return the pidfd."""
        return self._fd

    def close(self) -> None:
        """Close the pidfd."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LinuxHost:
    """See :class:`harness.witness.contract.Host`."""

    ownership_is_a_handle = False
    guards_files = False
    serves_pipes = False

    def expose(self, path: str) -> None:
        """Open its mode."""
        os.chmod(path, 0o755)  # noqa: S103 - the fault

    def mode(self, path: str, status: os.stat_result) -> int:
        """Return the mode as it is."""
        del path
        return status.st_mode

    def adopt_orphans(self) -> None:
        """Make this process a subreaper."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise HarnessError(f"can't become a subreaper: {os.strerror(ctypes.get_errno())}")

    def start(self, command: Sequence[str], **given: Unpack[Given]) -> subprocess.Popen[bytes]:
        """Start it: all that it leaves is adopted."""
        return subprocess.Popen(list(command), **given)

    def adopted(self, table: Sequence[Stat]) -> set[int]:
        """Tell them by their parent."""
        return {stat.pid for stat in table if stat.parent == os.getpid()}

    def let_go(self) -> None:
        """A subreaper stays one."""

    def pin(self, pid: int) -> LinuxPin | None:
        """Open a pidfd, then read the start time of what it holds."""
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            # EINVAL: the number of a thread that leads no group.
            if error.errno in {errno.ESRCH, errno.EINVAL}:
                return None
            raise
        stat = self.stat(pid)
        if stat is None:
            os.close(fd)
            return None
        return LinuxPin(pid, fd, stat.start)

    def processes(self) -> list[int]:
        """List /proc."""
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

    def owner(self, pid: int) -> str | None:
        """Look whose its directory in /proc is."""
        return owner_of(f"/proc/{pid}")

    def stats(self, since: int = 0) -> list[Stat]:
        """Look at each that is still there."""
        looks = [(pid, _stat_fields(pid)) for pid in self.processes()]
        return [_stat(pid, look) for pid, look in looks if look is not None and int(look[1][START]) >= since]

    def stat(self, pid: int) -> Stat | None:
        """Read its /proc/PID/stat."""
        look = _stat_fields(pid)
        return None if look is None else _stat(pid, look)

    def arguments(self, pid: int) -> list[str]:
        """Split /proc/PID/cmdline.

        In the middle of its exec a process shows no arguments, and whoever started it may know of the exec already
        (its close-on-exec pipe ends before the new arguments are in place): such a one is looked at again.
        """
        path = f"/proc/{pid}/cmdline"
        raw = _read(path)
        if not raw and self._is_in_exec(pid):
            until(lambda: bool(_read(path)) or not self._is_in_exec(pid), Clock().after(1))
            raw = _read(path)
        return [os.fsdecode(word) for word in (raw or b"").split(b"\0")[:-1]]

    def _is_in_exec(self, pid: int) -> bool:
        stat = self.stat(pid)
        if stat is None or _age(stat) > RECENT:
            return False
        try:
            # Kernel threads, zombies and leaders that ended before their threads have none.
            return bool(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return False

    def descriptors(self, pid: int) -> list[Descriptor] | None:
        """Walk /proc/PID/fd."""
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            return None
        found: list[Descriptor] = []
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            try:
                status = os.stat(path)
                found.append(Descriptor(int(name), status.st_dev, status.st_ino, os.readlink(path)))
            except OSError:
                continue
        return sorted(found)

    def inherited(self, pid: int) -> list[Descriptor] | None:
        """None: a descriptor doesn't tell where it comes from."""
        del pid
        return None

    def now(self) -> int:
        """Return the clock ticks since boot, rounded down as the kernel does it."""
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))

    def holders(self, device: int, inode: int, among: Iterable[int] | None = None) -> list[int]:
        """Look through every descriptor table that this user may read."""
        return [
            pid
            for pid in (self.processes() if among is None else among)
            if any(one.device == device and one.inode == inode for one in self.descriptors(pid) or ())
        ]

    def is_locked(self, path: str) -> bool | None:
        """Try the lock on an open description of our own."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    def explain(self, pid: int) -> str:
        """Collect what procfs says."""
        lines = [f"pid {pid}", f"arguments {self.arguments(pid)!r}", f"stat {self.stat(pid)}"]
        for name in ("wchan", "syscall", "stack"):
            text = (_read(f"/proc/{pid}/{name}") or b"(not readable)").decode(errors="backslashreplace").rstrip()
            lines += [f"{name}: {line}" for line in text.splitlines()]
        try:
            threads = sorted(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            threads = []
        lines.append(f"threads {' '.join(threads)}")
        lines += [f"descriptor {one.number} {one.target}" for one in self.descriptors(pid) or ()]
        return "\n".join(lines)

    def mounts(self, below: str) -> list[str]:
        """Read /proc/self/mountinfo."""
        raw = _read("/proc/self/mountinfo") or b""
        points = [_unescape(line.split()[4]) for line in raw.splitlines()]
        return sorted(point for point in points if _is_below(point, below))

    def sockets(self, below: str) -> list[str]:
        """Read /proc/net/unix, which lists a socket for as long as a process has it open."""
        raw = _read("/proc/net/unix") or b""
        rows = [line.split(None, UNIX_FIELDS) for line in raw.splitlines()]
        paths = {os.fsdecode(row[UNIX_FIELDS]) for row in rows if len(row) > UNIX_FIELDS}
        return sorted(path for path in paths if _is_below(path, below))


def _stat_fields(pid: int) -> tuple[bytes, list[bytes]] | None:
    """Split /proc/PID/stat at the last parenthesis, since the name may hold anything; None if there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The kernel gives a file of this kind whole at the first read; a look at the table makes hundreds of them.
        raw = os.read(fd, PAGE)
    except OSError:
        return None
    finally:
        os.close(fd)
    head, _, tail = raw.rpartition(b")")
    return head.partition(b"(")[2], tail.split()


def _stat(pid: int, look: tuple[bytes, list[bytes]]) -> Stat:
    name, fields = look
    return Stat(
        pid,
        name.decode(errors="backslashreplace"),
        fields[STATE].decode(),
        int(fields[PARENT]),
        int(fields[SESSION]),
        int(fields[START]),
    )


def exit_of(pidfd: int) -> int | None:
    """Return the wait status of a reaped process by its pidfd; None if it isn't reaped, or on an older kernel."""
    asked = bytearray(struct.pack("<Q", PIDFD_INFO_EXIT).ljust(64, b"\0"))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, asked)
    except OSError:
        return None
    (told,) = struct.unpack_from("<Q", asked)
    (status,) = struct.unpack_from("<i", asked, 60)
    return int(status) if told & PIDFD_INFO_EXIT else None


def _age(stat: Stat) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / os.sysconf("SC_CLK_TCK")


def _readable(fd: int, milliseconds: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(milliseconds))


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    parts: list[bytes] = []
    try:
        # Plain reads: a look at the process table makes hundreds of these.
        while part := os.read(fd, PAGE):
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"".join(parts)


def _unescape(word: bytes) -> str:
    return os.fsdecode(word.replace(rb"\040", b" ").replace(rb"\011", b"\t").replace(rb"\134", b"\\"))


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
