"""Windows, and Wine, which isn't Windows: what ran there says so."""
# ruff: noqa: PLC0415 - what a call needs is imported when it is made

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from multiprocessing.process import BaseProcess
    from types import FrameType
    from typing import BinaryIO

    from harness.platform.contract import Door, Terminal
    from harness.sut.answers import Answers
    from harness.sut.process import Source
    from harness.witness.contract import Host
    from harness.world import World

CACHE = ("LOCALAPPDATA", "AppData/Local")
"""The variable that names this user's cache, and where below the home it is otherwise."""

LONGEST_RUNS = 200
"""Bytes that the path of the place of runs may have: endpoints are no files here."""

OWN_GOLDENS: str | None = "windows"
"""The directory below the goldens for texts that only this system says."""

_PIPES = "//./pipe/"
_SWEEPING = 30.0
"""Seconds for which somebody who looks whether a run is over may have its directory."""
_NO_DIRECTORY = 66
_OF_A_VM = re.compile(r"openvmm-microvm-[0-9a-f]{32}(-boot)?")


def host() -> Host:
    """Return the witnesses' view of this system."""
    from harness.witness.windows import WindowsHost

    return WindowsHost()


def short_root() -> str:
    """Return this user's directory for temporary files, by its long name: programs are handed what names lead to."""
    return os.path.realpath(tempfile.gettempdir())


def system_name() -> str:
    """Return what the final table calls this system, with a comma before it."""
    import ctypes

    wine = hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
    return ", Windows (Wine)" if wine else ", Windows"


def as_text(words: Sequence[str]) -> str:
    """Return a command as one line to paste, quoted by the rules of the C runtime."""
    import subprocess

    return subprocess.list2cmdline(words)


def to_paste(words: Sequence[str]) -> str:
    """Return a command as one line to paste into PowerShell."""
    from harness.words import as_powershell

    return as_powershell(words)


def split_command(text: str) -> list[str]:
    """Split a command into its words, as a program that is started with it does.

    Raises:
        ValueError: A quotation isn't closed.
    """
    from harness.words import split_as_runtime

    return split_as_runtime(text)


def assignment(name: str, value: str) -> str:
    """Return the line that sets a variable in PowerShell."""
    quoted = value.replace("'", "''")
    return f"$env:{name} = '{quoted}'"


def rename_new(directory: str, temporary: str, path: str) -> None:
    """Rename, unless the path is taken by now: a rename replaces nothing here."""
    del directory
    with suppress(FileExistsError):
        os.rename(temporary, path)


def left_pipes() -> list[str]:
    """Return the pipes of VMs that are left, by name; Wine lists none."""
    try:
        names = os.listdir(_PIPES)
    except OSError as error:
        if error.winerror != _NO_DIRECTORY:
            raise
        return []
    return [name for name in names if _OF_A_VM.fullmatch(name)]


def open_shared(path: str) -> BinaryIO:
    """Open a file to be read that a VMM owns: that takes a reader who minds nobody's deleting it."""
    from harness.witness.windows import open_shared as opened

    return opened(path)


def answers_of(file: IO[bytes]) -> Answers:
    """Return the answers that come through a pipe, which a thread waits for."""
    from harness.sut.threaded import ThreadedAnswers

    return ThreadedAnswers(file)


def choose_channel(root: str) -> str:
    """Choose where a test's channel is: a pipe of a name that nobody can guess."""
    import secrets

    from harness.platform.pipes import PREFIX

    del root
    return f"{PREFIX}{secrets.token_hex(16)}"


def listen(path: str, backlog: int) -> Door:
    """Open the door of a channel."""
    from harness.platform.pipes import PipeDoor

    del backlog
    return PipeDoor(path)


def fork_template(place: str, environment: dict[str, str]) -> AbstractContextManager[Source] | None:
    """Return what forks orchestrators: nothing does here."""
    del place, environment
    return None


def owner_of(path: str) -> str | None:
    """None: other users' files aren't told from this one's here."""
    del path
    return None


def interrupts_held() -> AbstractContextManager[None]:
    """Ctrl-C can't be held up here."""
    from contextlib import nullcontext

    return nullcontext()


def ignore_interrupts() -> None:
    """Have the system keep Ctrl-C from this process from now on."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def free_interrupts() -> None:
    """Nothing is held up here."""


def take_interrupts(handler: Callable[[int, FrameType | None], None]) -> None:
    """Have Ctrl-C answered from now on."""
    import signal

    signal.signal(signal.SIGINT, handler)


def interrupt(child: BaseProcess) -> None:
    """Every process of a console gets its Ctrl-C by itself."""
    del child


def require_held_exit() -> None:
    """Check, before anything is started for it, that processes can be held at their exit here at all.

    Raises:
        Unavailable: This is Wine.
    """
    from harness.faults import debugged

    debugged.require()


def held_exit(pid: int) -> AbstractContextManager[object]:
    """Return what holds a process at its exit for as long as its block lasts.

    Raises:
        Unavailable: This user can't.
    """
    from harness.faults.debugged import DebuggedExit

    return DebuggedExit(pid)


def open_terminal(world: World, command: Sequence[str]) -> Terminal:
    """Start a program in a console of its own; see :mod:`harness.platform.consoles`.

    Args:
        world: The test's world.
        command: The program and its arguments.

    Raises:
        Unavailable: There is no pseudo console here.
    """
    from harness.platform.consoles import Console

    return Console(world, command)


def is_own_directory(path: str) -> bool:
    """Tell whether a path is a directory, and no link or junction, of this user; one that has gone is nobody's."""
    import stat

    from harness.witness.access import owned

    try:
        status = os.lstat(path)
        is_link = status.st_file_attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT
        return stat.S_ISDIR(status.st_mode) and not is_link and owned(path)
    except FileNotFoundError:
        return False


def hold_directory(path: str) -> int | None:
    """Take a directory for as long as the descriptor is open: a handle that :func:`take_directory` doesn't share.

    Whoever has it alone is waited for, as a lock is elsewhere.

    Raises:
        OSError: It isn't there, or somebody keeps it.
    """
    from harness.deadline import Clock, until
    from harness.witness.windows import SHARE_ALL, SHARING_VIOLATION, open_directory

    def hold() -> int | None:
        try:
            return open_directory(path, share=SHARE_ALL)
        except OSError as error:
            if error.winerror != SHARING_VIOLATION:
                raise
            return None

    return until(hold, Clock().after(_SWEEPING)) or open_directory(path, share=SHARE_ALL)


def take_directory(path: str) -> int | None:
    """Take a directory alone; None while somebody has it, or if there is none. It can be removed meanwhile."""
    from harness.witness.windows import SHARE_DELETE, open_directory

    try:
        return open_directory(path, share=SHARE_DELETE)
    except OSError:
        return None
