"""Linux, and what is like it."""
# ruff: noqa: PLC0415 - what a call needs is imported when it is made

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager
    from multiprocessing.process import BaseProcess
    from types import FrameType
    from typing import BinaryIO

    from harness.platform.contract import Door, Terminal
    from harness.sut.answers import Answers
    from harness.sut.process import Source
    from harness.witness.contract import Host
    from harness.world import World

CACHE = ("XDG_CACHE_HOME", ".cache")
"""The variable that names this user's cache, and where below the home it is otherwise."""

LONGEST_RUNS = 34
"""Bytes that the path of the place of runs may have, so that endpoints of scenarios stay under 80."""

OWN_GOLDENS: str | None = None
"""The directory below the goldens for texts that only this system says."""


def host() -> Host:
    """Return the witnesses' view of this system."""
    from harness.witness.linux import LinuxHost

    return LinuxHost()


def short_root() -> str:
    """Return the shortest writable directory for temporary files: socket paths have 107 bytes in all."""
    for place in ("/tmp", tempfile.gettempdir()):  # noqa: S108 - private directories are made below it
        if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    return tempfile.gettempdir()


def system_name() -> str:
    """Return what the final table calls this system, with a comma before it: nothing here."""
    return ""


def as_text(words: Sequence[str]) -> str:
    """Return a command as one line to paste into a shell."""
    import shlex

    return shlex.join(words)


def to_paste(words: Sequence[str]) -> str:
    """Return a command as one line to paste into a shell."""
    return as_text(words)


def split_command(text: str) -> list[str]:
    """Split a command into its words, as a shell does.

    Raises:
        ValueError: A quotation isn't closed.
    """
    import shlex

    return shlex.split(text)


def assignment(name: str, value: str) -> str:
    """Return the line that sets a variable in a shell."""
    return f"export {name}={as_text([value])}"


def rename_new(directory: str, temporary: str, path: str) -> None:
    """Rename, unless the path is taken by now; a hard link would change the change time that a seal holds."""
    import fcntl

    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not os.path.lexists(path):
            os.rename(temporary, path)
    finally:
        os.close(fd)


def left_pipes() -> list[str]:
    """Return the pipes of VMs that are left; there are none by name here."""
    return []


def open_shared(path: str) -> BinaryIO:
    """Open a file to be read that a VMM owns."""
    return open(path, "rb")


def answers_of(file: IO[bytes]) -> Answers:
    """Return the answers that come through a pipe, which tells when it can be read."""
    from harness.sut.answers import ReadyAnswers

    os.set_blocking(file.fileno(), False)
    return ReadyAnswers(file)


def choose_channel(root: str) -> str:
    """Choose where a test's channel is: a socket in its directory."""
    return os.path.join(root, "channel")


def listen(path: str, backlog: int) -> Door:
    """Open the door of a channel."""
    from harness.platform.sockets import SocketDoor

    return SocketDoor(path, backlog)


def fork_template(place: str, environment: dict[str, str]) -> AbstractContextManager[Source] | None:
    """Return what forks orchestrators, None where nothing forks.

    Args:
        place: A directory for its socket.
        environment: Its whole environment.
    """
    from harness.sut.forkserver import Template

    return Template(place, environment=environment)


def owner_of(path: str) -> str | None:
    """Return the name of the user whose a file or directory is; None if it is this one's, or gone."""
    import pwd

    try:
        owner = os.lstat(path).st_uid
    except OSError:
        return None
    if owner == os.geteuid():
        return None
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"


@contextmanager
def interrupts_held() -> Generator[None, None, None]:
    """Hold Ctrl-C up for as long as the block lasts, and in each process begun in it until that takes it."""
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Have the system keep Ctrl-C from this process from now on."""
    import signal

    # None comes while the handler is changed, which the interpreter would tell of.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def free_interrupts() -> None:
    """Have Ctrl-C arrive in this process, and what was held up for it since its beginning."""
    import signal

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def take_interrupts(handler: Callable[[int, FrameType | None], None]) -> None:
    """Have Ctrl-C, and what :func:`interrupt` sends, answered from now on."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    free_interrupts()


def interrupt(child: BaseProcess) -> None:
    """Tell a child that takes it what a terminal may have told it already."""
    child.terminate()


def require_held_exit() -> None:
    """Check, before anything is started for it, that processes can be held at their exit here at all."""


def held_exit(pid: int) -> AbstractContextManager[object]:
    """Return what holds a process at its exit for as long as its block lasts.

    Raises:
        Unavailable: This user can't.
    """
    from harness.faults.heldexit import HeldExit

    return HeldExit(pid)


def open_terminal(world: World, command: Sequence[str]) -> Terminal:
    """Start a program in the foreground of a terminal of its own.

    Args:
        world: The test's world.
        command: The program and its arguments.
    """
    from harness.platform.terminals import PosixTerminal

    return PosixTerminal(world, command)


def is_own_directory(path: str) -> bool:
    """Tell whether a path is a directory of this user; one that has gone is nobody's."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def hold_directory(path: str) -> int | None:
    """Take a directory's shared lock for as long as the descriptor is open; None where there are no such locks.

    Raises:
        OSError: It isn't there, or was removed while its lock was waited for.
    """
    import fcntl

    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        _require_same(held, path)
    except BaseException:
        os.close(held)
        raise
    return held


def take_directory(path: str) -> int | None:
    """Take a directory's lock alone; None while somebody has it, or if there is none."""
    import fcntl

    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _require_same(held, path)
    except OSError:
        os.close(held)
        return None
    return held


def _require_same(held: int, path: str) -> None:
    # Whoever had it alone before may have removed it, and somebody else made another of that name.
    if not os.path.samestat(os.fstat(held), os.stat(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
