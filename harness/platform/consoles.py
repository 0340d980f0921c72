"""A console of Windows with a program in it, by pywinpty: what a user does who types Ctrl-C, or closes the window.

The pseudo console makes the program's process itself, so that one is in no job of the test's: what it leaves is found
by its launcher, its token and its log alone. Under Wine pywinpty doesn't run.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Protocol, cast

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

from harness import python  # noqa: E402
from harness.errors import HarnessError, Late, Unavailable  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.deadline import Deadline
    from harness.world import World

WIDTH, HEIGHT = 200, 50
INTERRUPT = "\x03"
LAST_WORDS = 5.0
"""Seconds that the reader of a closed console may take to end."""
QUIET = 0.5
"""Seconds without anything new after which an ended program has shown all: its window stays open."""

CONPTY = 0
"""The system's own pseudo console, and not the one that pywinpty brings for older systems."""

_BREAK = """
import ctypes, sys
kernel32 = ctypes.WinDLL("kernel32")
kernel32.FreeConsole()
if not kernel32.AttachConsole(int(sys.argv[1])):
    sys.exit("no console to attach to")
stay = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint32)(lambda kind: 1)
kernel32.SetConsoleCtrlHandler(stay, True)
sys.exit(not kernel32.GenerateConsoleCtrlEvent(1, 0))
"""
"""Sends Ctrl-Break to everybody in another process's console: a terminal has no character for it."""

_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Pty(Protocol):
    """What is used of `winpty.PTY`."""

    @property
    def pid(self) -> int | None:
        """The program's number."""
        ...

    def spawn(self, appname: str, cmdline: str, cwd: str, env: str) -> bool:
        """Start it."""
        ...

    def read(self, *, blocking: bool) -> str:
        """Read what is shown; raises at the end."""
        ...

    def write(self, to_write: str) -> int:
        """Type."""
        ...

    def cancel_io(self) -> bool:
        """End a read that waits."""
        ...


def make(width: int, height: int) -> Pty:
    """Make a pseudo console.

    Raises:
        Unavailable: There is none here.
    """
    if hasattr(ctypes.WinDLL("ntdll"), "wine_get_version"):
        raise Unavailable("a console", ("Windows itself, since pywinpty doesn't run under Wine",))
    try:
        winpty = importlib.import_module("winpty")
    except ImportError as error:
        raise Unavailable("a console", ("pywinpty (pip install pywinpty)",)) from error
    return cast("Pty", winpty.PTY(width, height, backend=CONPTY))


class Console:
    """See :class:`harness.platform.contract.Terminal`.

    Args:
        world: The test's world.
        command: The program and its arguments.

    Raises:
        Unavailable: There is no pseudo console here.
    """

    def __init__(self, world: World, command: Sequence[str]) -> None:
        self._words = python.as_text([*command])
        self._said = ""
        self._changed = threading.Condition()
        pty = make(WIDTH, HEIGHT)
        program = shutil.which(command[0]) or command[0]
        variables = "".join(f"{name}={value}\0" for name, value in world.environment().items())
        pty.spawn(program, f" {subprocess.list2cmdline(command[1:])}", world.root, variables)
        pin = world.host.pin(pty.pid) if pty.pid else None
        if pin is None:
            raise HarnessError(f"{self._words}: the console's program can't be held")
        self._pin = pin
        world.processes.own(pin.pid)
        self._pty: Pty | None = pty
        self._thread = threading.Thread(target=self._fill, args=(pty,), daemon=True)
        self._thread.start()

    def wait(self, text: str, deadline: Deadline) -> None:
        """See :class:`Terminal`."""
        with self._changed:
            if not self._changed.wait_for(lambda: text in self.shown, deadline.remaining()):
                raise Late(self._words, expected=repr(text), found=repr(self.shown), deadline=deadline)

    @property
    def shown(self) -> str:
        """All that was shown up to now, without what moves and colours it."""
        return _SEQUENCES.sub("", self._said).replace("\r", "")

    def interrupt(self) -> None:
        """See :class:`Terminal`."""
        if self._pty is not None:
            self._pty.write(INTERRUPT)

    def cut_off(self) -> None:
        """See :class:`Terminal`."""
        command = [python.interpreter(), "-I", "-S", "-c", _BREAK, str(self._pin.pid)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode:
            raise HarnessError(
                f"{self._words}: its console takes no Ctrl-Break: {done.stderr.decode(errors='replace')}"
            )

    def close(self) -> None:
        """See :class:`Terminal`: the pseudo console goes with its last reference, which is the reader's."""
        pty, self._pty = self._pty, None
        if pty is not None:
            pty.cancel_io()
            del pty
            self._thread.join(LAST_WORDS)

    def end(self, deadline: Deadline) -> tuple[int, str]:
        """See :class:`Terminal`."""
        if not self._pin.wait(deadline):
            self._pin.end()
            self.close()
            self._pin.close()
            raise Late(self._words, expected="its end", found="it still runs", deadline=deadline)
        status = self._pin.reap()
        with self._changed:
            while self._thread.is_alive() and self._changed.wait(QUIET):
                pass
        self.close()
        self._pin.close()
        return -1 if status is None else status, self.shown

    def _fill(self, pty: Pty) -> None:
        while True:
            try:
                piece = pty.read(blocking=True)
            except Exception:  # noqa: BLE001 - pywinpty raises its own at the end, by no name that versions share
                return
            with self._changed:
                self._said += piece
                self._changed.notify_all()
