"""Everything that the stand-in asks of Windows before its machine runs."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import sys

assert sys.platform == "win32"

import _winapi
import msvcrt

from fake_openvmm.machine import Failure
from fake_openvmm.windows.pipes import PipeListener
from fake_openvmm.windows.users import own_sid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from typing import NoReturn

    from fake_openvmm.windows.channel import Channel

HYPERVISORS = ("whp",)
NET_IRQ = 5
CALLER_OWNED_SHARES = False
OPEN_FLAGS = os.O_BINARY | os.O_NOINHERIT
BACKLOG = 1
CAPABILITY_LENGTH = 32

_PIPE = re.compile(r"//\./pipe/openvmm-microvm-[A-Za-z0-9._-]+")
_KIND_PIPE, _KIND_DISK = 3, 1
_ALL_HANDLES, _LENGTH_MISMATCH = 64, 0xC000_0004
_PARAMETERS, _DIRECTORY = 0x20, 0x48
_ACCESS_VIOLATION = 0xC000_0005
_ENDED_FROM_OUTSIDE = 1

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.GetHandleInformation.argtypes = [ctypes.c_ssize_t, ctypes.c_void_p]
_kernel32.GetFileType.argtypes = [ctypes.c_ssize_t]
_kernel32.GetCurrentProcess.restype = ctypes.c_ssize_t
_kernel32.TerminateProcess.argtypes = [ctypes.c_ssize_t, ctypes.c_uint32]


def descriptors() -> list[list[int]]:
    """Give every open handle of a file or pipe as [handle, volume, index, flags]; flags are the handle's own.

    Take it before anything else is opened: it shows what was inherited, beside what the interpreter opened itself.
    """
    table: list[list[int]] = []
    own = _directory_handle()
    flags = ctypes.c_uint32()
    for handle in _handles():
        if handle == own or not _kernel32.GetHandleInformation(handle, ctypes.byref(flags)):
            continue
        kind = _kernel32.GetFileType(handle)
        if kind == _KIND_DISK:
            found = _status(handle)
            table.append([handle, found.st_dev, found.st_ino, flags.value])
        elif kind == _KIND_PIPE:
            table.append([handle, 0, 0, flags.value])
    return table


def _status(handle: int) -> os.stat_result:
    """What `os.stat` says of the file."""
    here = _winapi.GetCurrentProcess()
    copied = _winapi.DuplicateHandle(here, handle, here, 0, False, _winapi.DUPLICATE_SAME_ACCESS)
    fd = msvcrt.open_osfhandle(copied, os.O_RDONLY | os.O_NOINHERIT)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _handles() -> list[int]:
    """The values of this process's handles, from the kernel's table of all: they can be any multiples of four."""
    size = 1 << 20
    while True:
        buffer = ctypes.create_string_buffer(size)
        status = ctypes.WinDLL("ntdll").NtQuerySystemInformation(_ALL_HANDLES, buffer, size, None) & 0xFFFF_FFFF
        if status != _LENGTH_MISMATCH:
            break
        size *= 2
    if status:
        raise OSError(f"the kernel's table of handles can't be read ({status:#x})")
    raw = buffer.raw
    count, me = int.from_bytes(raw[:8], "little"), os.getpid().to_bytes(8, "little")
    rows = (raw[at : at + 24] for at in range(16, 16 + 40 * count, 40))
    return sorted(int.from_bytes(row[16:24], "little") for row in rows if row[8:16] == me)


def _directory_handle() -> int:
    """The handle of the working directory, which every process has of its own."""
    basic = (ctypes.c_size_t * 6)()
    ctypes.WinDLL("ntdll").NtQueryInformationProcess(
        ctypes.c_ssize_t(_kernel32.GetCurrentProcess()), 0, basic, ctypes.sizeof(basic), None
    )
    parameters = ctypes.c_size_t.from_address(basic[1] + _PARAMETERS).value
    return ctypes.c_size_t.from_address(parameters + _DIRECTORY).value


def facts() -> dict[str, object]:
    """Give what the harness wants to know of this process: numbers, working directory, environment names."""
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "cwd": os.getcwd(),
        "environment": sorted(os.environ),
        "standard": [msvcrt.get_osfhandle(number) for number in (0, 1, 2)],
    }


def connect_channel(path: str) -> Channel:
    """Connect to the harness."""
    from fake_openvmm.windows.channel import Channel  # noqa: PLC0415 - only with a side file

    return Channel(path)


def default_signals(record: Callable[[int], None] | None) -> None:
    """There is nothing to do: a detached process gets no console's signals."""
    del record


def die_by(number: int) -> NoReturn:
    """End this process as a crash or an end from outside does."""
    status = _ENDED_FROM_OUTSIDE if number in (9, 15) else _ACCESS_VIOLATION
    _kernel32.TerminateProcess(_kernel32.GetCurrentProcess(), status)
    raise AssertionError("a process ends when it is ended")


def read_capability() -> bytes:
    """Read the capability from standard input without waiting (contract openvmm 3.1).

    Raises:
        Failure: standard input is no pipe, holds too little or too much, isn't at its end, or holds zeros only.
    """
    handle = msvcrt.get_osfhandle(0)
    if _kernel32.GetFileType(handle) != _KIND_PIPE:
        raise Failure("control authentication input is not a one-way pipe (InvalidInput)")
    found = b""
    while len(found) <= CAPABILITY_LENGTH:
        try:
            waiting = int(_winapi.PeekNamedPipe(handle, 0)[0])
        except BrokenPipeError:
            break
        if not waiting:
            raise Failure("control authentication writer was not closed (TimedOut)")
        found += os.read(0, min(waiting, CAPABILITY_LENGTH + 1 - len(found)))
    if len(found) > CAPABILITY_LENGTH:
        raise Failure("control authentication payload has an invalid length (InvalidData)")
    if len(found) < CAPABILITY_LENGTH:
        raise Failure("control authentication payload has an invalid length (UnexpectedEof)")
    if not any(found):
        raise Failure("control authentication capability must not be zero (InvalidData)")
    return found


def endpoint_identity(path: str) -> str:
    """Give an endpoint as it is compared: the name of a pipe in lower case, as Windows takes it.

    Raises:
        Failure: it is no pipe of OpenVMM's.
    """
    if _PIPE.fullmatch(path.replace("\\", "/")) is None:
        raise Failure("microVM console endpoint must be a pipe named //./pipe/openvmm-microvm-NAME")
    return path.replace("\\", "/").lower()


def console_socket(*, local: bool, ipv6: bool) -> socket:
    """Give a stream socket for a boot console over TCP.

    Raises:
        Failure: a local one, which Windows has no sockets for.
    """
    import socket  # noqa: PLC0415 - for these kinds only

    if local:
        raise Failure("a boot console can't connect to a pipe: not supported by this stand-in")
    return socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM)


def mounts() -> list[tuple[str, str, str]]:
    """Windows has no table of mounts over directories."""
    return []


def is_plain_directory(path: str) -> bool:
    """Whether `path` is a directory and no link or junction."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and not found.st_file_attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT


def open_file(path: str) -> int:
    """Open a boot file to be read, as Rust's standard library does.

    Raises:
        OSError: it can't be opened.
    """
    from fake_openvmm.windows.system import open_image  # noqa: PLC0415 - once all options were checked

    return open_image(path, writable=False)


def publish(staging: str, destination: str, *, by_link: bool = False) -> None:
    """Give the staging file its final name; Windows never replaces anything by that.

    Raises:
        OSError: the destination exists, or the file system refuses.
    """
    if by_link:
        os.link(staging, destination)
        os.unlink(staging)
    else:
        os.rename(staging, destination)


class Listener:
    """A served pipe (contract openvmm 1.4).

    Attributes:
        path: its name.
        socket: the pipe's one instance.
        device, inode: nothing on Windows.
    """

    __slots__ = ("device", "inode", "path", "socket")

    def __init__(self, path: str, server: PipeListener) -> None:
        """Hold what was made."""
        self.path = path
        self.socket = server
        self.device = self.inode = 0

    @classmethod
    def bind(
        cls, path: str, *, private: bool, mode: int = 0o600, listen: Callable[[PipeListener], None] | None
    ) -> Listener:
        """Make the first and only instance of a pipe, for this user and the system alone.

        Raises:
            Failure: the name is taken.
        """
        del private, mode
        try:
            server = PipeListener(path, f"D:P(A;;GA;;;SY)(A;;GA;;;{own_sid()})")
            if listen is not None:
                listen(server)
        except OSError as error:
            raise Failure(f"failed to bind {path}: {error.strerror}") from error
        return cls(path, server)

    def remove(self, *, whatever: bool = False) -> bool:
        """Close it, which removes its name."""
        del whatever
        self.socket.close()
        return True


def listen_here(server: PipeListener) -> None:
    """Take hosts; the kernel shows this process as the server."""
    server.listen()


def set_name(name: str) -> None:
    """A process's name is its program's file.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"Windows can't call a process {name!r}")
