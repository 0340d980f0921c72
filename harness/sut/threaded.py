"""Answers that come through a pipe of Windows, which nothing can be asked whether it can be read."""

from __future__ import annotations

import os
import sys
from collections import deque
from threading import Thread
from typing import IO, TYPE_CHECKING

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

from harness.witness.windows import Event  # noqa: E402

if TYPE_CHECKING:
    from harness.deadline import Deadline
    from harness.witness.contract import Pin

CHUNK = 65536
LAST_WORDS = 10.0
"""Seconds that what an ended program has written may take to come through; a child may keep the pipe open."""


class ThreadedAnswers:
    """A pipe that can only be read by waiting: a thread does, and rings an event that the waits have among theirs.

    Args:
        file: The pipe.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._pieces: deque[bytes] = deque()
        self._event = Event()
        self._ended = False
        self._thread = Thread(target=self._fill, daemon=True)
        self._thread.start()

    def wait(self, pin: Pin, deadline: Deadline) -> bool:
        """See :class:`Answers`."""
        ended = self._ended and not self._pieces
        found = self._event.wait([pin.fileno()], deadline, alone=ended)
        if pin.has_exited():
            # What it wrote last is still on its way through the thread, which ends with the pipe.
            self._thread.join(LAST_WORDS)
        return found

    def read(self) -> bytes | None:
        """See :class:`Answers`."""
        self._event.clear()
        if self._pieces:
            data = self._pieces.popleft()
            if self._pieces or self._ended:
                self._event.ring()
            return data
        return b"" if self._ended else None

    def _fill(self) -> None:
        while True:
            try:
                data = os.read(self._file.fileno(), CHUNK)
            except (OSError, ValueError):
                data = b""
            if not data:
                break
            self._pieces.append(data)
            self._event.ring()
        self._ended = True
        self._event.ring()
