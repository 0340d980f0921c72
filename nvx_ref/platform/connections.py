"""What connections have in common on every system: any thread may close one, and whoever works with it goes first."""

from __future__ import annotations

from _thread import allocate_lock
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvx_ref.closing import Closing
from nvx_ref.errors import SessionFailed
from nvx_ref.platform.failures import describe

if TYPE_CHECKING:
    from collections.abc import Generator


class SharedConnection(Closing):
    """A connection whose number is given up, and so may come to mean another file, only once nobody works with it.

    Args:
        endpoint: Where it leads, for messages.
    """

    __slots__ = ("_closing", "_endpoint", "_lock", "_users")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = allocate_lock()
        self._users = 0
        self._closing = False

    def close(self) -> None:
        """Close it, which also ends a wait in another thread; idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            idle = self._users == 0
        self._interrupt()
        if idle:
            self._give_up()

    @contextmanager
    def _in_use(self) -> Generator[None]:
        """Keep it from being given up while a thread works with it."""
        with self._lock:
            if self._closing:
                raise self._is_closed()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                last = self._closing and self._users == 0
            if last:
                self._give_up()

    def _is_closed(self) -> SessionFailed:
        return SessionFailed("the control connection is closed", subject=self._endpoint, detail="closed")

    def _broken(self, error: OSError) -> SessionFailed:
        reason = "the VMM closed the control connection" if self._is_end(error) else f"it broke: {describe(error)}"
        return SessionFailed(reason, subject=self._endpoint, detail="connection-closed")

    def _is_end(self, error: OSError) -> bool:
        """Tell whether an error only says that the other end has closed."""
        raise NotImplementedError

    def _interrupt(self) -> None:
        """End the waits of others."""
        raise NotImplementedError

    def _give_up(self) -> None:
        """Give back what the system has of it."""
        raise NotImplementedError
