"""The name of one crash: ``operation/way/call:argument#k``.

It says everything that a replay needs, holds nothing that differs from run to run, and never counts by a bare number:
``#k`` is the k-th time of that very call with that very argument in the operation.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import HarnessError

EXIT, KILL = "exit", "kill"
AUDIT_EXIT, AUDIT_KILL = "audit-exit", "audit-kill"
CALL_KILL = "syscall-kill"
PAIR = "pair"
ERRORS = ("ENOSPC", "EIO", "EMFILE", "EINTR", "EROFS")
PERSISTENT = "+"
"""After an error's name: every call from there on fails, not only that one."""

EXAMPLE = "for example start/kill/start.spawned#1"
EXAMPLE_PAIR = "for example start/pair/start.spawned#1,recover.verified#1"
_CALL_ERROR = "syscall-"
WAYS = (EXIT, KILL, AUDIT_EXIT, AUDIT_KILL, CALL_KILL, PAIR)


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """Where: a step, an event or a call, at its k-th time.

    Attributes:
        name: ``operation.step`` or ``call:argument``.
        hit: Which time, from 1.
    """

    name: str
    hit: int = 1

    def __str__(self) -> str:
        return f"{self.name}#{self.hit}"

    @property
    def at(self) -> tuple[str, int]:
        """As a request names it."""
        return self.name, self.hit


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One crash.

    Attributes:
        scene: The operation and what was before it.
        way: How.
        point: Where.
        then: Where the operation that follows the restart crashes as well.
    """

    scene: str
    way: str
    point: Point
    then: Point | None = None

    def __str__(self) -> str:
        second = f",{self.then}" if self.then else ""
        return f"{self.scene}/{self.way}/{self.point}{second}"

    @property
    def error(self) -> str | None:
        """The error that a call fails with, None where the orchestrator ends."""
        word = self.way.removeprefix(_CALL_ERROR).removesuffix(PERSISTENT)
        return word if self.way.startswith(_CALL_ERROR) and word in ERRORS else None

    @property
    def is_call(self) -> bool:
        """Whether it is about a system call."""
        return self.way.startswith(_CALL_ERROR)

    @property
    def is_event(self) -> bool:
        """Whether it is about an event that Python reports."""
        return self.way in {AUDIT_EXIT, AUDIT_KILL}


def failing(error: str, *, persistent: bool = False) -> str:
    """Return the way in which a call fails."""
    return f"{_CALL_ERROR}{error}{PERSISTENT if persistent else ''}"


def parse(text: str) -> Cell:
    """Return the cell of an id.

    Raises:
        HarnessError: It isn't one.
    """
    scene, _, rest = text.partition("/")
    way, _, where = rest.partition("/")
    known = way in WAYS or Cell("", way, Point("")).error is not None
    if not (scene and known and where):
        raise HarnessError(f"{text!r} is no crash cell: they are called operation/way/call:argument#k, {EXAMPLE}")
    if way != PAIR:
        return Cell(scene, way, _point(where, text))
    first, comma, second = where.partition(",")
    if not comma:
        raise HarnessError(f"{text!r} is no pair: the second step follows a comma, {EXAMPLE_PAIR}")
    return Cell(scene, way, _point(first, text), _point(second, text))


def _point(text: str, whole: str) -> Point:
    name, mark, hit = text.rpartition("#")
    if not (mark and name and hit.isdecimal() and int(hit) > 0):
        raise HarnessError(f"{whole!r} is no crash cell: {text!r} doesn't end in #k, {EXAMPLE}")
    return Point(name, int(hit))
