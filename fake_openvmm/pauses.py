"""Points at which the harness holds, fails or ends the program, and the lifeline that ends it with the harness."""

from __future__ import annotations

import _thread
import os

from fake_openvmm.knobs import POINTS, SideFileError
from fake_openvmm.machine import Evidence, Failure, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_openvmm.machine import Json
    from fake_openvmm.transport import Channel

LOST_STATUS = 75
"""Status of a program that ended because its harness is gone."""


class Pauses:
    """The pauses of one run; without a side file `at` costs one lookup.

    The harness's end of the channel speaks JSON lines: it reads `{"hello": {"pid": N, "token": T}}`, then
    `{"paused": POINT, "hit": N}` and answers `{"resume": POINT}`; `{"pause": POINT}` asks for one more. Its end of file
    means that the harness is gone: the program ends at once, and its guest with it.
    """

    __slots__ = ("_channel", "_encode", "_evidence", "_gates", "_hits", "_kill", "_wanted", "tables")

    def __init__(self, evidence: Evidence | None = None, wanted: list[str] | None = None) -> None:
        """Hold at each point of `wanted` (`POINT` or `POINT#n`) once a channel is attached."""
        self._evidence = evidence or Evidence()
        self._wanted = set(wanted or ())
        for entry in self._wanted:
            _checked(entry)
        self._hits: dict[str, int] = {}
        self._gates: dict[str, _thread.LockType] = {}
        self._channel: Channel | None = None
        self._encode: Callable[[dict[str, object]], str] = str
        self._kill: Callable[[int], None] | None = None
        self.tables: dict[str, dict[str, Json]] = {}

    def attach(
        self,
        channel: Channel,
        encode: Callable[[dict[str, object]], str],
        decode: Callable[[str], Json],
    ) -> None:
        """Listen to the harness on `channel` in a thread of its own."""
        self._channel = channel
        self._encode = encode
        _thread.start_new_thread(self._listen, (channel, decode))

    def ends(self, tables: dict[str, dict[str, Json]], kill: Callable[[int], None]) -> None:
        """Take the knobs `exit_at`, `fail_at` and `crash_at`; `kill` sends a signal to this process itself."""
        for name, table in tables.items():
            for entry, value in table.items():
                _checked(entry)
                if not isinstance(value, str if name == "fail_at" else int):
                    raise SideFileError(f"knob {name!r} can't hold {value!r}")
        self.tables = tables
        self._kill = kill

    def holds(self, point: str) -> bool:
        """Whether the harness is to be waited for at this point, the first time or a later one."""
        return self._channel is not None and any(entry.partition("#")[0] == point for entry in self._wanted)

    def at(self, point: str) -> None:
        """Announce the point; hold, fail or end there if the side file says so.

        Raises:
            Failure: the knob `fail_at` names this point.
        """
        if not self._evidence and not self._wanted and not self.tables and self._channel is None:
            return
        if point not in POINTS:
            raise SideFileError(f"{point!r} is no pause point")
        hit = self._hits[point] = self._hits.get(point, 0) + 1
        self._evidence.event("at", point=point, hit=hit)
        if self._channel is not None and not self._wanted.isdisjoint((point, f"{point}#{hit}")):
            self._hold(self._channel, point, hit)
        for name, table in self.tables.items():
            value = table.get(f"{point}#{hit}", table.get(point))
            if value is not None:
                self._end(name, value)

    def _hold(self, channel: Channel, point: str, hit: int) -> None:
        gate = self._gates[point] = _thread.allocate_lock()
        gate.acquire()
        channel.sendall(self._encode({"paused": point, "hit": hit}).encode() + b"\n")
        gate.acquire()
        self._evidence.event("resumed", point=point, hit=hit)

    def _end(self, name: str, value: Json) -> None:
        if name == "exit_at" and isinstance(value, int):
            self._evidence.event("exit", status=value)
            os._exit(value)
        if name == "crash_at" and isinstance(value, int) and self._kill is not None:
            self._kill(value)
        raise Failure(str(value))

    def _listen(self, channel: Channel, decode: Callable[[str], Json]) -> None:
        with channel.makefile("r", encoding="utf-8") as lines:
            try:
                for line in lines:
                    self._told(decode(line))
            except (OSError, ValueError, SideFileError) as error:
                write_all(2, f"fake-openvmm: channel: {error}\n".encode())
        self._evidence.event("lost")
        os._exit(LOST_STATUS)

    def _told(self, message: Json) -> None:
        fields = message if isinstance(message, dict) else {}
        pause, resume = fields.get("pause"), fields.get("resume")
        if isinstance(pause, str):
            self._wanted.add(_checked(pause))
        elif isinstance(resume, str) and resume in self._gates:
            self._gates.pop(resume).release()
        else:
            raise ValueError(f"unexpected message {message!r}")


def _checked(entry: str) -> str:
    point, _, hit = entry.partition("#")
    if point not in POINTS or not (hit.isdecimal() or entry == point):
        raise SideFileError(f"{entry!r} is no pause point")
    return entry
