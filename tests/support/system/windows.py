"""Windows: a locked file that is let go, the kernel's own suspension, and the platform's calls for files."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from typing import NoReturn, Self

import pytest

assert sys.platform == "win32"

import msvcrt

from nvx_ref.platform.windows import handles
from nvx_ref.platform.windows.directory import Directory
from pipe_server import Server

PYTHON: str = getattr(sys, "_base_executable", sys.executable)
"""An interpreter that is the process itself: a virtual environment's own starts another."""
KILLED = 1
"""The status of a process that was ended from outside, as `Popen.kill` gives it."""
ODD_NAME = "\x7f"
"""A file's name that can't be shown as it is."""
SOCKETS: set[str] = set()
"""What an endpoint leaves in its sandbox's directory: it is a pipe, which is no file."""
SLOWER = 5
"""How many times longer a process takes to start than on Linux, roughly."""
WAYS = ("kill",)
"""How an orchestrator ends at a step here; both ways are swept by the scenarios."""
SYNC = (handles, "flush")
"""The call that makes a file's content safe, for whoever replaces it."""

_SUSPEND = 0x800
_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")
_kernel32.OpenProcess.restype = ctypes.c_ssize_t
_kernel32.GetCurrentProcess.restype = ctypes.c_ssize_t


class Lifeline:
    """Holds up whoever waits for its lock, until it is ended or its holder's process is.

    Args:
        path: Where it is.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOINHERIT)
        msvcrt.locking(self._file, msvcrt.LK_NBLCK, 1)

    def end(self) -> None:
        """Let them go."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def short_root() -> str:
    """Return this user's directory for temporary files."""
    return os.path.realpath(tempfile.gettempdir())


def environment(*places: str) -> dict[str, str]:
    """Return the environment of a child that finds the project, what is in these places, and this one's packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*places, *(place for place in sys.path if place)])}


def end_at_once() -> NoReturn:
    """End this process as somebody else would."""
    _kernel32.TerminateProcess(ctypes.c_ssize_t(_kernel32.GetCurrentProcess()), KILLED)
    raise AssertionError


def freeze(child: subprocess.Popen[str]) -> None:
    """Stop a process where it is."""
    _told(child.pid, _ntdll.NtSuspendProcess)


def thaw(child: subprocess.Popen[str]) -> None:
    """Let it go on."""
    _told(child.pid, _ntdll.NtResumeProcess)


def _told(pid: int, call: object) -> None:
    process = ctypes.c_ssize_t(_kernel32.OpenProcess(_SUSPEND, False, pid))
    try:
        status = call(process)  # type: ignore[operator]
        assert status >= 0, f"{status & 0xFFFF_FFFF:#x}"
    finally:
        _kernel32.CloseHandle(process)


def refuse_removal(patched: pytest.MonkeyPatch, names: Collection[str], error: int) -> None:
    """Have the removal of some names fail."""
    remove = Directory._remove

    def refuse(self: Directory, name: str, path: str) -> None:
        if name in names:
            raise OSError(error, os.strerror(error))
        remove(self, name, path)

    patched.setattr(Directory, "_remove", refuse)


class Stream:
    """A pipe's connection, in the words of a socket.

    Args:
        server: The server's end.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.settimeout = lambda _: None
        self.recv = server.receive_some
        self.sendall = server.send
        self.shutdown = lambda _: server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()


def listen(endpoint: str) -> Callable[[], Stream]:
    """Serve an endpoint to one client; what this returns waits for it, and returns the connection."""
    server = Server(endpoint)

    def accept() -> Stream:
        server.accept()
        return Stream(server)

    return accept


def open_descriptors() -> set[str]:
    """Return what this process has open, as numbers: what the C runtime gives one to."""
    found: set[str] = set()
    for number in range(2048):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.add(str(number))
    return found


def start_with(command: Collection[str], *, stdin: int, output: int, keep: Collection[int]) -> subprocess.Popen[bytes]:
    """Start a process that inherits some descriptors, whatever they are."""
    for fd in keep:
        os.set_inheritable(fd, True)
    try:
        return subprocess.Popen([*command], stdin=stdin, stdout=output, stderr=output, close_fds=False)
    finally:
        for fd in keep:
            os.set_inheritable(fd, False)


def as_inherited(fd: int) -> int:
    """Return the number by which a process knows what it inherited."""
    return msvcrt.get_osfhandle(fd)
