"""A terminal of POSIX with a program in its foreground."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING

from harness import python
from harness.ending import has_ended
from harness.errors import Gone, HarnessError, Late

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.deadline import Deadline
    from harness.world import World

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

_LEAD = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the standard input the terminal of this session, takes back what a run in the background ignores, and becomes
the program: as a shell would have it."""

INTERRUPT = b"\x03"


class PosixTerminal:
    """See :class:`harness.platform.contract.Terminal`.

    Args:
        world: The test's world.
        command: The program and its arguments.
    """

    def __init__(self, world: World, command: Sequence[str]) -> None:
        self._master, slave = os.openpty()
        self._said = b""
        self._words = python.as_text([*command])
        try:
            self._child = subprocess.Popen(
                [python.interpreter(), "-I", "-S", "-c", _LEAD, *command],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                cwd=world.root,
                env=world.environment(),
            )
        finally:
            os.close(slave)
        world.processes.own(self._child.pid)

    def wait(self, text: str, deadline: Deadline) -> None:
        """See :class:`Terminal`."""
        while text.encode() not in self._said:
            if not self._read(deadline):
                shown = repr(self._said.decode(errors="backslashreplace"))
                if not deadline.expired():
                    raise Gone(self._words, expected=repr(text), found=f"{shown}, and nobody who says more")
                raise Late(self._words, expected=repr(text), found=shown, deadline=deadline)

    def interrupt(self) -> None:
        """See :class:`Terminal`."""
        os.write(self._master, INTERRUPT)

    def cut_off(self) -> None:
        """See :class:`Terminal`; nothing is typed for it here.

        Raises:
            HarnessError: Always.
        """
        raise HarnessError("Ctrl-Break is typed on Windows only")

    def close(self) -> None:
        """See :class:`Terminal`."""
        os.close(self._master)
        self._master = -1

    def end(self, deadline: Deadline) -> tuple[int, str]:
        """See :class:`Terminal`."""
        while self._master >= 0 and self._read(deadline):
            pass
        if not has_ended(self._child, deadline):
            self._child.kill()
            self._child.wait()
            if self._master >= 0:
                self.close()
            raise Late(self._words, expected="its end", found="it still runs", deadline=deadline)
        status = self._child.wait()
        if self._master >= 0:
            self.close()
        return status, self._said.decode(errors="backslashreplace").replace("\r\n", "\n")

    def _read(self, deadline: Deadline) -> bool:
        ready, _, _ = select.select([self._master], [], [], deadline.remaining())
        if not ready:
            return False
        try:
            part = os.read(self._master, 4096)
        except OSError:
            # Nobody has the other side any more.
            return False
        self._said += part
        return bool(part)
