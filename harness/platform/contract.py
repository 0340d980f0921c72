"""What a test needs of every system: a door at which fakes knock, a line to each that came in, and terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.deadline import Deadline


class Line(Protocol):
    """This end of one fake's connection; nothing of it waits."""

    @property
    def client(self) -> int | None:
        """The number of the process at the other end, as the kernel says it; None where it isn't asked."""
        ...

    def read(self) -> bytes | None:
        """Return what has come: None if nothing, empty at the end."""
        ...

    def send(self, data: bytes) -> None:
        """Send a few words.

        Raises:
            ConnectionError: Nobody is there any more.
        """
        ...

    def close(self) -> None:
        """End it, which the fake notices as the end of what it reads."""
        ...


class Door(Protocol):
    """Where fakes connect, whether or not somebody looks."""

    def accept(self) -> Line | None:
        """Let the next one in that has come; None if there is none."""
        ...

    def wait(self, lines: Iterable[Line], deadline: Deadline | None) -> None:
        """Wait until somebody comes or says something, at most until the deadline; without one, only look."""
        ...

    def close(self) -> None:
        """Close it: a fake that hasn't been let in reads its end, as does one that comes later."""
        ...


class Terminal(Protocol):
    """A terminal, and a program that was started in its foreground."""

    def wait(self, text: str, deadline: Deadline) -> None:
        """Read what is shown until a text is there.

        Raises:
            Late: It doesn't come by the deadline.
        """
        ...

    def interrupt(self) -> None:
        """Type Ctrl-C."""
        ...

    def cut_off(self) -> None:
        """Type Ctrl-Break, which only Windows has.

        Raises:
            HarnessError: This is another system.
        """
        ...

    def close(self) -> None:
        """Close the window: the program is told so, in whatever way its system has."""
        ...

    def end(self, deadline: Deadline) -> tuple[int, str]:
        """Wait for the program's end; return its status, negative for a signal, and all that was shown.

        Raises:
            Late: It goes on; it was ended.
        """
        ...
