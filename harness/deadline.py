"""Deadlines of the harness: monotonic, and stretched by one factor from the command line.

The harness has its own, because what it measures may be the reference's (or a deliberately broken one's).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_INTERVAL = 0.025
"""Seconds between two looks at something that the kernel doesn't announce (a lock, a claim, another's descriptor)."""

T = TypeVar("T")


class Deadline:
    """A point in monotonic time by which something must have happened.

    Args:
        at: The point.
        seconds: How long after its making that is, the scale included: what a text says of it, whatever was measured.

    Attributes:
        seconds: As given.
    """

    __slots__ = ("_at", "seconds")

    def __init__(self, at: float, seconds: float) -> None:
        self._at = at
        self.seconds = seconds

    def __str__(self) -> str:
        return f"{self.seconds:.10g} s"

    def remaining(self) -> float:
        """Return the seconds left, 0.0 once the deadline has passed."""
        return max(0.0, self._at - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Return the deadline so many seconds from now, or this one if that is sooner."""
        return Deadline(min(self._at, time.monotonic() + seconds), min(self.seconds, seconds))

    def milliseconds(self) -> int:
        """Return the milliseconds left, rounded up, as ``poll`` takes them."""
        return -int(-self.remaining() * 1000 // 1)

    def expired(self) -> bool:
        """Tell whether the deadline has passed."""
        return time.monotonic() >= self._at


class Clock:
    """Makes deadlines; ``scale`` is `--timeout-scale`, for slow machines."""

    __slots__ = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def after(self, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` times the scale from now."""
        return Deadline(time.monotonic() + seconds * self.scale, seconds * self.scale)


def until(look: Callable[[], T], deadline: Deadline) -> T:
    """Look every :data:`POLL_INTERVAL` until the answer is true or the deadline has passed; return the last answer.

    For what the kernel announces (an exit, a readable socket) there is an event, and no use for this.
    """
    while not (answer := look()) and not deadline.expired():
        threading.Event().wait(min(POLL_INTERVAL, deadline.remaining()))
    return answer
