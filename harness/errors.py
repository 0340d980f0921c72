"""What goes wrong in the harness itself, told apart from what it finds wrong in an orchestrator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from harness.deadline import Deadline


class Raised(Protocol):
    """What pytest knows of an exception."""

    @property
    def value(self) -> BaseException:
        """The exception."""
        ...


class HarnessError(Exception):
    """The harness can't do what a scenario asks of it."""


class OfOrchestrator(HarnessError):  # noqa: N818 - whose fault it is
    """The orchestrator under test does what makes it impossible to judge it."""


class Unavailable(HarnessError):  # noqa: N818 - what it says, not what it is
    """Something isn't on this machine.

    Args:
        what: What was asked for, for example ``--backend kvm``.
        missing: What it lacks, each with what would bring it.
    """

    def __init__(self, what: str, missing: tuple[str, ...]) -> None:
        super().__init__(f"{what} can't run here; missing: {'; '.join(missing)}")
        self.what = what
        self.missing = missing


class Unsupported(Unavailable):
    """The backend can't do what a scenario needs, on any machine: the scenario is skipped with the reason.

    Args:
        backend: The backend's name.
        reason: Why it can't.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"--backend {backend}", (reason,))
        self.args = (f"{backend}: {reason}",)


class Unmet(Unavailable):
    """The orchestrator under test doesn't declare what a scenario needs.

    Args:
        need: What its hello would have to declare, for example ``operation exec``.
    """

    def __init__(self, need: str) -> None:
        super().__init__("the scenario", (need,))
        self.need = need

    def __str__(self) -> str:
        return f"needs {self.need}, which the orchestrator doesn't declare"


class Finding(AssertionError):  # noqa: N818 - a test's failure, not a program's error
    """A witness saw what must not be, or missed what must be.

    Args:
        where: The step, operation or place that it is about.
        expected: What the contract allows there.
        found: What was there.
    """

    def __init__(self, where: str, *, expected: str, found: str) -> None:
        super().__init__(f"{where}: expected {expected}, found {found}")
        self.where = where
        self.expected = expected
        self.found = found


class Late(Finding):
    """What was expected did not happen by its deadline.

    Args:
        where: The step, operation or place that it is about.
        expected: What was waited for.
        found: What was there at the end.
        deadline: How long was waited, which the text says; None: to no deadline's end.
    """

    def __init__(self, where: str, *, expected: str, found: str, deadline: Deadline | None) -> None:
        super().__init__(where, expected=f"{expected} within {deadline}" if deadline else expected, found=found)


class Gone(Late):
    """What was expected can't happen any more: whoever was to do it is dead.

    Args:
        where: The step, operation or place that it is about.
        expected: What was waited for.
        found: What became of it.
    """

    def __init__(self, where: str, *, expected: str, found: str) -> None:
        super().__init__(where, expected=expected, found=found, deadline=None)


def is_finding(excinfo: Raised) -> bool:
    """Tell pytest to leave a module's own frames out of what it shows: a finding is about the orchestrator.

    For ``__tracebackhide__``. A fault of the harness keeps every frame.
    """
    return tells_all(excinfo.value)


def tells_all(error: object) -> bool:
    """Tell whether an error is about the orchestrator, so that its text is all that its author needs."""
    return isinstance(error, Finding | OfOrchestrator)
