"""A point that the guest passes when the harness lets it and its delay is over, while the machine goes on serving."""

from __future__ import annotations

import _thread
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.pauses import Pauses
    from fake_openvmm.system import Wake


class Gate:
    """One point of `pauses`, held in a thread of its own if the harness holds it, plus a delay in seconds.

    Raises:
        Failure: as `Pauses.at` does; for a held point from `passed`.
    """

    __slots__ = ("_error", "_held", "_opens_at", "_wake")

    def __init__(self, pauses: Pauses, point: str, wake: Wake, seconds: float) -> None:
        self._error: BaseException | None = None
        self._held = pauses.holds(point)
        self._wake = wake
        self._opens_at = time.monotonic() + seconds
        if self._held:
            _thread.start_new_thread(self._hold, (pauses, point))
        else:
            pauses.at(point)

    @property
    def due(self) -> float | None:
        """Monotonic seconds at which only the delay has kept it shut, None while the harness holds it."""
        return None if self._held else self._opens_at

    def passed(self) -> bool:
        """Whether the guest goes on."""
        if self._error is not None:
            raise self._error
        return not self._held and time.monotonic() >= self._opens_at

    def _hold(self, pauses: Pauses, point: str) -> None:
        try:
            pauses.at(point)
        except BaseException as error:  # noqa: BLE001 - it belongs to the machine's own thread
            self._error = error
        self._held = False
        self._wake.ring()
