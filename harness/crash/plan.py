"""What a sweep covers: every scene is run once and counted, and the cells are what it was seen to pass.

So a step that somebody adds has its crash cases in the next run, and one that no scene passes is missed by name. A
counting run that sees nothing is an error: a tracer that was fooled must not look like an operation without calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from harness.crash.cells import AUDIT_EXIT, AUDIT_KILL, CALL_KILL, EXIT, KILL, PAIR, Cell, Point, failing
from harness.crash.run import count_calls, require_end
from harness.crash.scenes import SCENES, scene
from harness.crash.stage import Stage
from harness.crash.trace import Call
from harness.errors import Finding, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.crash.stage import Bench

T = TypeVar("T")

QUICK, FULL = "quick", "full"
STEPS, EVENTS, CALLS, ERRORS, PAIRS = "steps", "events", "calls", "errors", "pairs"
GROUPS = (STEPS, EVENTS, CALLS, ERRORS, PAIRS)

FAMILIES = {"reattach": "recover", "deprovision": "removal"}
"""What the steps of an operation begin with, where it isn't called the same."""

PARTS = {"start": 4, "refused-start": 3, "stop": 2}
"""Into how many parts a full sweep cuts a scene's cells, where it isn't one."""

MANY = {ERRORS: 2, PAIRS: 4}
"""How many times as many parts of these groups it makes of the scenes that have several."""

SAMPLES = {EVENTS: 3, CALLS: 8, ERRORS: 5}
"""How many cells of a scene a quick sweep takes of these groups."""

RECORDS = ("write:.", "fsync:.", "rename", "unlink", "rmdir:", "vfork:", "clone")
"""What a quick sweep samples first of the calls: where what is on the disk changes hands."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell of a plan.

    Attributes:
        cell: The cell.
        call: Its call, if it is about one.
    """

    cell: Cell
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a sweep: what one worker does in one go.

    Attributes:
        scene: Of which scene.
        group: Which group of cells.
        index: The how many-th part, from 0.
        count: Of how many.
    """

    scene: str
    group: str
    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        number = f"-{self.index + 1}of{self.count}" if self.count > 1 else ""
        return f"{self.scene}-{self.group}{number}"

    def of(self, whole: Sequence[T]) -> list[T]:
        """Return this part of something."""
        return list(whole[self.index :: self.count])


def parts(sweep: str, scenes: Sequence[str] = tuple(SCENES), groups: Sequence[str] = GROUPS) -> list[Part]:
    """Return the parts of a sweep, the longest first."""
    found: list[Part] = []
    for name in scenes:
        for group in groups:
            several = PARTS.get(name, 1) if sweep == FULL else 1
            count = several * MANY.get(group, 1) if several > 1 else 1
            found += [Part(name, group, index, count) for index in range(count)]
    return sorted(found, key=lambda part: -PARTS.get(part.scene, 1))


@dataclass(slots=True)
class Counted:
    """What one scene passes.

    Attributes:
        steps: The steps.
        events: The events that Python reports.
        calls: The system calls.
        ways: What the orchestrator may be asked beyond a pause.
        known: The steps that it says it knows.
    """

    steps: list[Point] = field(default_factory=list[Point])
    events: list[Point] = field(default_factory=list[Point])
    calls: list[Call] = field(default_factory=list[Call])
    ways: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


class Planner:
    """Counts scenes, once in a run of any number of workers.

    Args:
        bench: What the cells of this worker share.
        sweep: ``quick`` or ``full``.
    """

    def __init__(self, bench: Bench, sweep: str) -> None:
        self._bench = bench
        self._sweep = sweep
        self._directory = os.path.join(bench.settings.directory, "counted")

    def cells(self, part: Part) -> list[Planned]:
        """Return the cells of a part.

        Raises:
            Finding: A counting run went wrong, or saw nothing.
            Unavailable: This machine, or this orchestrator, has no such cells.
        """
        if part.group == PAIRS:
            firsts = part.of(self._own_steps(part.scene))
            return [planned for first in firsts for planned in self._pairs(part.scene, first)]
        whole = {STEPS: self._of_steps, EVENTS: self._of_events, CALLS: self._of_calls, ERRORS: self._of_errors}
        return part.of(self._sampled(part.group, list(whole[part.group](part.scene))))

    def steps(self, name: str) -> list[Point]:
        """Return the steps that a scene passes.

        Raises:
            Finding: It passes none, or ends otherwise than it should.
            Unavailable: The orchestrator knows no steps.
        """
        if not self.vocabulary():
            raise Unavailable(f"{name} at steps", ("an orchestrator that announces steps",))
        found = self._counted(name, STEPS).steps
        family = FAMILIES.get(scene(name).op, scene(name).op)
        if not found and not any(step.startswith(f"{family}.") for step in self.vocabulary()):
            raise Unavailable(f"{name} at steps", ("an orchestrator that announces some there",))
        if not found:
            raise Finding(f"{name} counted", expected="steps", found="none was announced")
        return found

    def _own_steps(self, name: str) -> list[Point]:
        """Return the steps of a scene; in a quick sweep those that another scene of its operation hasn't."""
        found, like = self.steps(name), scene(name).like
        others = self.steps(like) if like and self._sweep != FULL else []
        return [step for step in found if step not in others]

    def vocabulary(self) -> tuple[str, ...]:
        """Return the steps that the orchestrator says it knows."""
        return self._counted(next(iter(SCENES)), STEPS).known

    def _of_steps(self, name: str) -> Iterator[Planned]:
        for step in self._own_steps(name):
            for way in (EXIT, KILL):
                yield Planned(Cell(name, way, step))

    def _of_events(self, name: str) -> Iterator[Planned]:
        counted = self._counted(name, STEPS)
        events = counted.events
        if "audit" not in counted.ways:
            raise Unavailable(f"{name} at events", ("an orchestrator that announces what its run-time reports",))
        if not events:
            raise Finding(f"{name} counted", expected="events of Python's audit hook", found="none was announced")
        for number, event in enumerate(events):
            ways = (AUDIT_EXIT, AUDIT_KILL)
            for way in ways if self._sweep == FULL else ways[number % 2 :][:1]:
                yield Planned(Cell(name, way, event))

    def _of_calls(self, name: str) -> Iterator[Planned]:
        for call in self._counted(name, CALLS).calls:
            if call.changes:
                yield Planned(Cell(name, CALL_KILL, Point(call.point, call.hit)), call)

    def _of_errors(self, name: str) -> Iterator[Planned]:
        for call in self._counted(name, CALLS).calls:
            for error in call.errors:
                yield Planned(Cell(name, failing(error), Point(call.point, call.hit)), call)

    def _pairs(self, name: str, first: Point) -> list[Planned]:
        """Pair a step with those that the operation after it passes: all of them, or the first after its lock."""
        found = self._kept(f"{name}.{first}", lambda: Counted(steps=self._count_second(name, first))).steps
        chosen = found if self._sweep == FULL else found[1:2] or found
        return [Planned(Cell(name, PAIR, first, then)) for then in chosen]

    def _count_second(self, name: str, first: Point) -> list[Point]:
        stage = Stage(self._bench, scene(name), f"{name}/count-{first}")
        try:
            stage.prepare()
            stage.strike(first.at, EXIT)
            again = stage.again()
            if again.answer is None:
                raise Finding(stage.where, expected="an answer to the second try", found="the orchestrator ended")
            return [Point(hit.step, hit.hit) for hit in again.steps]
        finally:
            stage.discard()

    def _counted(self, name: str, group: str) -> Counted:
        if group == CALLS:
            return self._kept(f"{name}.calls", lambda: Counted(calls=count_calls(self._bench, name)))
        return self._kept(f"{name}.steps", lambda: self._count_steps(name))

    def _count_steps(self, name: str) -> Counted:
        stage = Stage(self._bench, scene(name), f"{name}/count")
        try:
            stage.prepare()
            ended = stage.count()
            require_end(stage, ended.answer)
            hello = stage.hello
        finally:
            stage.discard()
        steps, events = ([Point(hit.step, hit.hit) for hit in hits] for hits in (ended.steps, ended.events))
        return Counted(steps, events, ways=hello.ways, known=hello.steps)

    def _kept(self, key: str, count: Callable[[], Counted]) -> Counted:
        path = os.path.join(self._directory, f"{key}.json")
        try:
            with open(path, "rb") as file:
                return msgspec.json.decode(file.read(), type=Counted)
        except FileNotFoundError:
            found = count()
        os.makedirs(self._directory, exist_ok=True)
        # Two workers may count at once; both see the same, and either file is whole.
        staged = f"{path}.{os.getpid()}"
        with open(staged, "wb") as file:
            file.write(msgspec.json.encode(found))
        os.replace(staged, path)
        return found

    def _sampled(self, group: str, whole: list[Planned]) -> list[Planned]:
        count = SAMPLES.get(group, len(whole))
        if self._sweep == FULL or len(whole) <= count:
            return whole
        first = spread([one for one in whole if one.cell.point.name.startswith(RECORDS)], count - count // 4)
        return first + spread([one for one in whole if one not in first], count - len(first))


def spread(whole: Sequence[T], count: int) -> list[T]:
    """Return so many of a sequence, evenly spread over it, always the same ones."""
    if len(whole) <= count:
        return list(whole)
    return [whole[(2 * number + 1) * len(whole) // (2 * count)] for number in range(count)]
