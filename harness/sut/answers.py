"""What a program says, waited for together with its end: by readiness, or by a thread where a pipe has none."""

from __future__ import annotations

import os
import selectors
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from harness.deadline import Deadline
    from harness.witness.contract import Pin

CHUNK = 65536


class Answers(Protocol):
    """The reading end of a program's answers."""

    def wait(self, pin: Pin, deadline: Deadline) -> bool:
        """Wait for something to read, or for the program's end; False once the deadline has passed."""
        ...

    def read(self) -> bytes | None:
        """Return what there is: None if nothing, empty at the end."""
        ...


class ReadyAnswers:
    """A pipe that tells when it can be read.

    Args:
        file: The pipe.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._open = True

    def wait(self, pin: Pin, deadline: Deadline) -> bool:
        """See :class:`Answers`."""
        with selectors.DefaultSelector() as selector:
            if self._open:
                selector.register(self._file, selectors.EVENT_READ)
            selector.register(pin.fileno(), selectors.EVENT_READ)
            return bool(selector.select(deadline.remaining()))

    def read(self) -> bytes | None:
        """See :class:`Answers`."""
        try:
            data = os.read(self._file.fileno(), CHUNK)
        except BlockingIOError:
            return None
        self._open = bool(data)
        return data
