"""A point in monotonic time by which something must have happened."""

from __future__ import annotations

import math
import time
from _thread import allocate_lock

from nvx_ref.errors import Refused

MAX_SECONDS = 30 * 24 * 3600.0
"""The longest bound that anybody may ask for, in seconds."""

POLL_INTERVAL = 0.025
"""Seconds between two looks at a lock, a claim or (without pidfds) a process: the store's one retry interval."""


class Deadline:
    """A monotonic deadline; the wall clock plays no part in it.

    Everything that may wait takes one of these, never seconds, so that a caller's bound covers all the waits below
    it together.
    """

    __slots__ = ("_at",)

    def __init__(self, at: float) -> None:
        self._at = at

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now.

        Args:
            seconds: The bound, finite, over 0 and at most :data:`MAX_SECONDS`.

        Raises:
            Refused: The bound is out of range. Nothing has run by then.
        """
        if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
            raise Refused(f"a timeout must be over 0 and at most {MAX_SECONDS:.0f} seconds, not {seconds}")
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds left, 0.0 once the deadline has passed."""
        return max(0.0, self._at - time.monotonic())

    def expired(self) -> bool:
        """Tell whether the deadline has passed."""
        return time.monotonic() >= self._at

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and ``seconds`` from now."""
        return Deadline(min(self._at, time.monotonic() + seconds))

    def pause(self, seconds: float = POLL_INTERVAL) -> bool:
        """Let an interval pass between two looks, where the kernel offers no event to wait for.

        Args:
            seconds: The interval.

        Returns:
            False at once if the deadline has passed; True once it is time for another look, the last one at the
            deadline itself.
        """
        remaining = self.remaining()
        if remaining <= 0:
            return False
        never = allocate_lock()
        never.acquire()
        never.acquire(timeout=min(seconds, remaining))
        return True

    def __repr__(self) -> str:
        return f"Deadline(in {self._at - time.monotonic():.3f} s)"
