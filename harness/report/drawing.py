"""What the page draws: where each thing goes, as numbers; the template turns them into shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.commandline import JOINTS
from harness.report.model import COMMAND_LINE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.report.model import Row, Timeline

WIDTH = 1000
"""Units that every drawing is wide."""

MARGIN = 170
"""Units at the left for the names of lanes."""

END = 24
"""Units that stay free at the right."""

LANE = 32
LABEL = 60
"""Characters that a lane says of its last moment."""

RANKS = {"harness": 0, "orchestrator": 1, "vmm": 2, "witness": 9}
"""Which lanes come first: those that act."""

AXIS = 28
TICKS = 6
STEPS_OF_TICKS = (1, 2, 5)
SECOND = 1_000_000
MILLISECOND = 1000
BARS = 8
"""How many command lines are drawn: the longest ones."""

FAMILIES = ("console", "machine", "devices", "sandbox", "shares", "network", "caller", JOINTS)


@dataclass(slots=True)
class Dot:
    """One moment in a drawing."""

    x: float
    y: float
    text: str


@dataclass(slots=True)
class Lane:
    """One line of a timeline: whose it is, its dots, and what it says of the last one."""

    name: str
    y: float
    kind: str
    dots: list[Dot] = field(default_factory=list[Dot])
    last: str = ""


@dataclass(slots=True)
class Tick:
    """One mark of an axis."""

    x: float
    text: str


@dataclass(slots=True)
class Axis:
    """A whole timeline."""

    lanes: list[Lane]
    ticks: list[Tick]
    height: float
    width: int = WIDTH
    left: int = MARGIN
    right: int = WIDTH - END


@dataclass(slots=True)
class Piece:
    """One family's part of a bar."""

    family: str
    number: int
    x: float
    width: float
    size: int


@dataclass(slots=True)
class Bar:
    """Where the bytes of one command line go."""

    scenario: str
    node: str
    backend: str
    pieces: list[Piece]
    used: int
    limit: int = COMMAND_LINE_LIMIT


def axis(timeline: Timeline) -> Axis:
    """Lay a timeline out on one axis.

    Args:
        timeline: It has at least one moment.
    """
    last = max(moment.offset for moment in timeline.moments) or 1
    first = min(moment.offset for moment in timeline.moments)
    span = max(last - first, 1)
    lanes: dict[str, Lane] = {}
    names = dict.fromkeys(moment.lane for moment in timeline.moments)
    for place, name in enumerate(sorted(names, key=lambda name: RANKS.get(kind_of(name), len(RANKS)))):
        lanes[name] = Lane(name, AXIS + LANE * (place + 0.5), kind_of(name))
    for moment in timeline.moments:
        lane = lanes[moment.lane]
        x = MARGIN + (WIDTH - MARGIN - END) * (moment.offset - first) / span
        lane.dots.append(Dot(round(x, 1), lane.y, f"{shown(moment.offset)} {moment.text}"))
        lane.last = moment.text if len(moment.text) <= LABEL else f"{moment.text[: LABEL - 1]}…"
    ticks = [
        Tick(round(MARGIN + (WIDTH - MARGIN - END) * (at - first) / span, 1), shown(at)) for at in _ticks(first, last)
    ]
    return Axis([*lanes.values()], ticks, AXIS + LANE * len(lanes) + 6)


def kind_of(lane: str) -> str:
    """Return what a lane is the lane of, by its name's first word."""
    return lane.partition(" ")[0].lower()


def shown(microseconds: int) -> str:
    """Return a duration for people."""
    if microseconds >= SECOND:
        return f"{microseconds / SECOND:.3f} s"
    return f"{microseconds / MILLISECOND:.1f} ms"


def bars(rows: Iterable[Row]) -> list[Bar]:
    """Return the longest command lines of some scenarios, each length once, the longest first."""
    measured = {sum(row.command_line.values()): row for row in rows if row.command_line}
    return [_bar(measured[used], used) for used in sorted(measured, reverse=True)[:BARS]]


def _bar(row: Row, used: int) -> Bar:
    pieces: list[Piece] = []
    x = 0.0
    for number, family in enumerate(FAMILIES):
        if size := row.command_line.get(family, 0):
            width = WIDTH * size / COMMAND_LINE_LIMIT
            pieces.append(Piece(family, number, round(x, 1), round(width, 1), size))
            x += width
    return Bar(row.scenario, row.node, row.backend, pieces, used)


def _ticks(first: int, last: int) -> Sequence[int]:
    rough = max(1, (last - first) // TICKS)
    size = next(step * 10**power for power in range(12) for step in STEPS_OF_TICKS if step * 10**power >= rough)
    begin = -(-first // size) * size
    return range(begin, last + 1, size)
