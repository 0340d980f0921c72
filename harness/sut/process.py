"""Where the process of an orchestrator under test comes from: started with its command, or forked from a template."""

from __future__ import annotations

import subprocess
from typing import IO, TYPE_CHECKING, Protocol

from harness.errors import HarnessError
from harness.python import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.witness.contract import Host


class Running(Protocol):
    """A process that speaks the JSON lines."""

    @property
    def pid(self) -> int:
        """Its number, which stays its own until :meth:`wait` has returned."""
        ...

    @property
    def requests(self) -> IO[bytes]:
        """Where its requests go."""
        ...

    @property
    def answers(self) -> IO[bytes]:
        """Where its answers come from."""
        ...

    def wait(self) -> int:
        """Wait for its exit and return its status, negative for a signal."""
        ...


class Source(Protocol):
    """Something that makes such processes."""

    def begin(self, *, errors: str, cwd: str, host: Host) -> Running:
        """Make one.

        Args:
            errors: The file that takes its error output, appended.
            cwd: Its working directory.
            host: Starts what is started.
        """
        ...


class Started:
    """Starts a real process, from its command on.

    Args:
        command: What to start.
        environment: Its whole environment.
    """

    def __init__(self, command: Sequence[str], *, environment: dict[str, str]) -> None:
        self.command = list(command)
        self._environment = environment

    def begin(self, *, errors: str, cwd: str, host: Host) -> Running:
        """Start it; see :class:`Source`."""
        with open(errors, "ab") as file:
            child = host.start(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=cwd,
                env=self._environment,
            )
        return _Child(child)


class _Child:
    """See :class:`Running`."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self.pid = child.pid
        if child.stdin is None or child.stdout is None:
            raise HarnessError(f"{as_text(['pid', str(child.pid)])} has no pipes")
        self.requests = child.stdin
        self.answers = child.stdout

    def wait(self) -> int:
        """Wait for it; see :class:`Running`."""
        return self._child.wait()
