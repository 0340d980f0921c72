"""Everything that the stand-in asks of the operating system: the one module that another system needs a twin of.

The rest of the package uses descriptors, paths and the names below, and nothing that only Linux has.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

assert sys.platform != "win32"

from fake_openvmm.machine import Failure, absolute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from typing import NoReturn

HYPERVISORS = ("kvm", "mshv")
"""What `--hypervisor` may name here (contract openvmm 1.1)."""
NET_IRQ = 10
"""Interrupt of the network device under these hypervisors (contract openvmm 1.2)."""
CALLER_OWNED_SHARES = True
"""Whether `--mount-owner caller` is possible here."""
PATH_LIMIT = 107
"""Bytes that the path of a UNIX socket may have."""
OPEN_FLAGS = os.O_CLOEXEC
"""What goes with every `os.open` here."""
BACKLOG = 128
CAPABILITY_LENGTH = 32
NAME_LIMIT = 15
IDENTITY_LIMIT = 4096


def descriptors() -> list[list[int]]:
    """Give every open descriptor as [number, device, inode, flags]; flags include close-on-exec.

    Take it before anything else is opened: it shows what was inherited.
    """
    import fcntl  # noqa: PLC0415 - only with a side file

    table: list[list[int]] = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            found = os.fstat(number)
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
            if fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                flags |= os.O_CLOEXEC
        except OSError:
            continue  # the directory that was being listed
        table.append([number, found.st_dev, found.st_ino, flags])
    return table


def facts() -> dict[str, object]:
    """Give what the harness wants to know of this process: numbers, session, working directory, environment names."""
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "sid": os.getsid(0),
        "pgid": os.getpgrp(),
        "uid": os.geteuid(),
        "cwd": os.readlink("/proc/self/cwd"),  # also when it is gone
        "environment": _environment(),
    }


def _environment() -> list[str]:
    """Give the names as exec got them; the interpreter may have added to its own copy since."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    return sorted(os.fsdecode(entry.partition(b"=")[0]) for entry in entries if entry)


def connect_channel(path: str) -> socket:
    """Connect to the harness."""
    import socket  # noqa: PLC0415 - only with a side file this early

    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(path)
    return channel


def default_signals(record: Callable[[int], None] | None) -> None:
    """Give SIGINT and SIGTERM their default action, as the VMM has no handler.

    With `record` the number is recorded first; the process still dies of the signal.
    """
    import signal  # noqa: PLC0415 - enum is loaded with it

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if record is None:
        return

    def die(number: int, frame: object) -> None:
        del frame
        record(number)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, die)


def die_by(number: int) -> NoReturn:
    """End this process by a signal."""
    import resource  # noqa: PLC0415 - for a simulated crash only
    import signal  # noqa: PLC0415

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    signal.raise_signal(number)
    while True:
        signal.pause()


def read_capability() -> bytes:
    """Read the capability from standard input: one non-blocking read to the end (contract openvmm 3.1).

    Raises:
        Failure: standard input is no pipe, holds too little or too much, isn't at its end, or holds zeros only.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        raise Failure("control authentication input is not a one-way pipe (InvalidInput)")
    os.set_blocking(0, False)
    found = b""
    while True:
        try:
            data = os.read(0, CAPABILITY_LENGTH + 1 - len(found))
        except BlockingIOError:
            raise Failure("control authentication writer was not closed (TimedOut)") from None
        if not data:
            break
        found += data
        if len(found) > CAPABILITY_LENGTH:
            raise Failure("control authentication payload has an invalid length (InvalidData)")
    if len(found) < CAPABILITY_LENGTH:
        raise Failure("control authentication payload has an invalid length (UnexpectedEof)")
    if not any(found):
        raise Failure("control authentication capability must not be zero (InvalidData)")
    return found


def endpoint_identity(path: str) -> str:
    """Make an endpoint's path absolute and its parent canonical; the last component stays as it is.

    Raises:
        Failure: no parent, a symlink as the last component, invalid UTF-8, or over 4,096 bytes.
    """
    parts = [part for part in absolute(path, "microVM console endpoint").split("/") if part not in ("", ".")]
    if not parts or parts[-1] == "..":
        raise Failure("microVM console endpoint must name a socket")
    try:
        parent = os.path.realpath("/" + "/".join(parts[:-1]), strict=True)
    except OSError as error:
        raise Failure(f"failed to canonicalize microVM console endpoint parent: {error}") from error
    found = os.path.join(parent, parts[-1])
    try:
        if stat.S_ISLNK(os.lstat(found).st_mode):
            raise Failure(f"microVM console endpoint must not be a symbolic link: {found}")
    except OSError:
        pass  # the usual case: nothing is there yet; any other fault shows at bind
    try:
        if len(found.encode()) > IDENTITY_LIMIT:
            raise Failure("microVM console endpoint identity exceeds 4096 bytes")
    except UnicodeEncodeError:
        raise Failure("microVM console endpoint path is not valid UTF-8") from None
    return found


def console_socket(*, local: bool, ipv6: bool) -> socket:
    """Give a stream socket for a boot console: local, else TCP."""
    import socket  # noqa: PLC0415 - for these kinds only

    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    return socket.socket(socket.AF_UNIX if local else family, socket.SOCK_STREAM)


def mounts() -> list[tuple[str, str, str]]:
    """Give (device, path inside the file system, mount point) of every mount, the latest last."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split(" ") for line in file]
    return [(row[2], _unescaped(row[3]), _unescaped(row[4])) for row in rows]


def _unescaped(field: str) -> str:
    for code in ("040", "011", "012", "134"):
        field = field.replace(f"\\{code}", chr(int(code, 8)))
    return field


def is_plain_directory(path: str) -> bool:
    """Whether `path` is a directory and no symlink."""
    return stat.S_ISDIR(os.lstat(path).st_mode)


def open_file(path: str) -> int:
    """Open a boot file to be read, as Rust's standard library does.

    Raises:
        OSError: it can't be opened.
    """
    return os.open(path, os.O_RDONLY | OPEN_FLAGS)


def publish(staging: str, destination: str, *, by_link: bool = False) -> None:
    """Give the staging file its final name without replacing anything: rename where the kernel can, else link.

    Raises:
        OSError: the destination exists, or the file system refuses.
    """
    if not by_link and _rename_no_replace(staging, destination):
        return
    os.link(staging, destination)
    os.unlink(staging)


def _rename_no_replace(source: str, destination: str) -> bool:
    import ctypes  # noqa: PLC0415 - once per run, at its end

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, no_replace = -100, 1
    if rename(here, os.fsencode(source), here, os.fsencode(destination), no_replace) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number), destination)


class Listener:
    """A listening UNIX socket that this process made and removes (contract openvmm 1.4).

    Attributes:
        path: where it is.
        socket: the listening socket, non-blocking.
        device, inode: of the path, as bound.
    """

    __slots__ = ("device", "inode", "path", "socket")

    def __init__(self, path: str, server: socket, device: int, inode: int) -> None:
        """Hold what was bound."""
        self.path = path
        self.socket = server
        self.device = device
        self.inode = inode

    @classmethod
    def bind(cls, path: str, *, private: bool, mode: int = 0o600, listen: Callable[[socket], None] | None) -> Listener:
        """Bind exclusively; a private one needs a private parent and gets mode 0600.

        Args:
            path: absolute, its parent canonical.
            private: whether the rules of the control endpoint hold.
            mode: another mode, for the harness.
            listen: makes the socket listen; None leaves it deaf.

        Raises:
            Failure: the parent isn't private, the path exists or is too long, or the socket changed under way.
        """
        import socket  # noqa: PLC0415 - nothing before this point needs it

        owner = os.geteuid()
        try:
            if private:
                _check_parent(os.path.dirname(path), owner)
            if len(os.fsencode(path)) > PATH_LIMIT:
                raise Failure(f"failed to bind {path}: path must be shorter than {PATH_LIMIT + 1} bytes")
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.bind(path)
            bound = os.lstat(path)
            made = cls(path, server, bound.st_dev, bound.st_ino)
            if private:
                made._protect(owner, mode)
            if listen is not None:
                listen(server)
            server.setblocking(False)
        except OSError as error:
            raise Failure(f"failed to bind {path}: {error.strerror}") from error
        return made

    def _protect(self, owner: int, mode: int) -> None:
        os.chmod(self.path, mode)
        now = os.lstat(self.path)
        if (
            not stat.S_ISSOCK(now.st_mode)
            or (now.st_dev, now.st_ino, now.st_uid) != (self.device, self.inode, owner)
            or stat.S_IMODE(now.st_mode) != mode
        ):
            self.remove()
            raise Failure("control endpoint must be an owned socket with mode 0600")

    def remove(self, *, whatever: bool = False) -> bool:
        """Close it and remove the path if that still is this socket, or `whatever` is there; tell whether it did."""
        self.socket.close()
        try:
            now = os.lstat(self.path)
            same = stat.S_ISSOCK(now.st_mode) and (now.st_dev, now.st_ino) == (self.device, self.inode)
            if not same and not whatever:
                return False
            os.unlink(self.path)
        except OSError:
            return False
        return True


def _check_parent(path: str, owner: int) -> None:
    parent = os.lstat(path)
    private = stat.S_IFDIR | stat.S_IRWXU
    if parent.st_mode != private or parent.st_uid != owner:
        raise Failure("control endpoint parent must be a directory of OpenVMM's own user with mode 0700")


def listen_here(server: socket) -> None:
    """Listen; the kernel shows this process as the server."""
    server.listen(BACKLOG)


def set_name(name: str) -> None:
    """Change the process's name as /proc shows it; lone surrogates stand for raw bytes.

    Raises:
        ValueError: it is empty or longer than the kernel keeps.
    """
    raw = name.encode(errors="surrogateescape")
    if not 0 < len(raw) <= NAME_LIMIT:
        raise ValueError(f"a process name has 1 to {NAME_LIMIT} bytes")
    with open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(raw)
