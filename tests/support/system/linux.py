"""Linux: a FIFO that ends, signals, and Python's own calls for files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import NoReturn

import pytest

PYTHON = sys.executable
"""An interpreter that is the process itself, and starts no other."""
KILLED = -signal.SIGKILL
"""The status of a process that was ended from outside."""
ODD_NAME = "\n"
"""A file's name that can't be shown as it is."""
SOCKETS = {"control.sock"}
"""What an endpoint leaves in its sandbox's directory."""
SLOWER = 1
"""How many times longer a process takes to start than on Linux, roughly."""
WAYS = ("exit", "kill")
"""How an orchestrator ends at a step here."""
SYNC = (os, "fsync")
"""The call that makes a file's content safe, for whoever replaces it."""


class Lifeline:
    """Holds up whoever has opened it, until it is ended or its holder's process is.

    Args:
        path: Where it is.
    """

    def __init__(self, path: str) -> None:
        os.mkfifo(path, 0o600)
        self._writer = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def end(self) -> None:
        """Let them go."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1


def short_root() -> str:
    """Return a short directory for temporary files: the endpoint is a socket in one of them."""
    return "/tmp"


def environment(*places: str) -> dict[str, str]:
    """Return the environment of a child that finds the project, and what is in these places."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def end_at_once() -> NoReturn:
    """End this process as somebody else would."""
    signal.raise_signal(signal.SIGKILL)
    raise AssertionError


def freeze(child: subprocess.Popen[str]) -> None:
    """Stop a process where it is; it has stopped when this returns, on whichever processor it ran."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)


def thaw(child: subprocess.Popen[str]) -> None:
    """Let it go on."""
    child.send_signal(signal.SIGCONT)


def refuse_removal(patched: pytest.MonkeyPatch, names: Collection[str], error: int) -> None:
    """Have the removal of some names fail."""
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path in names:
            raise OSError(error, os.strerror(error))
        unlink(path, dir_fd=dir_fd)

    patched.setattr(os, "unlink", refuse)


def listen(endpoint: str) -> Callable[[], socket.socket]:
    """Serve an endpoint to one client; what this returns waits for it, and returns the connection."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(endpoint)
    listener.listen()

    def accept() -> socket.socket:
        with listener:
            return listener.accept()[0]

    return accept


def open_descriptors() -> set[str]:
    """Return what this process has open, as numbers."""
    return set(os.listdir("/proc/self/fd"))


def start_with(command: Collection[str], *, stdin: int, output: int, keep: Collection[int]) -> subprocess.Popen[bytes]:
    """Start a process that inherits some descriptors, whatever they are."""
    return subprocess.Popen(
        [*command], stdin=stdin, stdout=output, stderr=output, pass_fds=[*keep], start_new_session=True
    )


def as_inherited(fd: int) -> int:
    """Return the number by which a process knows what it inherited."""
    return fd
