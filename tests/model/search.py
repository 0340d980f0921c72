"""Breadth-first search: every reachable state, the shortest way into trouble, and the ways out of each state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from nvx_ref.steps import Step
from tests.model.actions import moves
from tests.model.guards import Op
from tests.model.locks import EXISTING
from tests.model.moves import EVENT, HOST, Move, World
from tests.model.properties import (
    REMOVABLE,
    USABLE,
    Property,
    broken_move,
    broken_state,
    excuse,
    is_removed,
    is_usable,
)
from tests.model.state import State, alive, canonical, put

NO_WAY_ON = "from here on, no steps without another crash get there"


class Line(NamedTuple):
    """One line of a scenario."""

    who: str
    step: Step | None
    text: str

    def __str__(self) -> str:
        return f"{self.who:<5}{'  '.join(part for part in (self.step, self.text) if part)}"


class Counterexample(NamedTuple):
    """The shortest way into a broken promise."""

    broken: Property
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        numbered = (f"{number:>3}  {line}" for number, line in enumerate(self.lines, 1))
        return "\n".join((f"broken: {self.broken.name} ({self.broken.source})", *numbered))


class Result(NamedTuple):
    """What a search found."""

    states: int
    transitions: int
    steps: frozenset[Step]
    places: frozenset[str]
    """Where an orchestrator has been."""
    texts: frozenset[str]
    """What has happened."""
    found: Counterexample | None
    wedged: dict[str, int]
    """How many states can't be left but by a change of the world, by the reason."""


class _Graph:
    """The states in the order in which they were found, and how."""

    def __init__(self, initial: State) -> None:
        first, _ = canonical(initial)
        self.states = [first]
        self.index = {first: 0}
        self.parents: list[tuple[int, Move, tuple[int, ...]]] = []
        self.ways_back: list[list[int]] = [[]]

    def add(self, state: State, source: int, move: Move) -> tuple[int, bool]:
        standing, order = canonical(state)
        number = self.index.get(standing)
        if number is not None:
            return number, False
        number = len(self.states)
        self.index[standing] = number
        self.states.append(standing)
        self.parents.append((source, move, order))
        self.ways_back.append([])
        return number, True

    def scenario(self, number: int, last: Move | None = None) -> tuple[Line, ...]:
        """Tell how a state is reached; who is called A stays A, though states don't distinguish the two."""
        path: list[tuple[Move, tuple[int, ...]]] = []
        while number:
            number, move, order = self.parents[number - 1]
            path.append((move, order))
        if last:
            path.insert(0, (last, ()))
        names = ["A", "B", "C"][: len(self.states[0].orchestrators)]
        lines: list[Line] = []
        for move, order in reversed(path):
            lines.append(Line("" if move.who == HOST else names[move.who], move.step, move.text))
            names = [names[who] for who in order]
        return tuple(lines)


def search(world: World, only: Property | None = None, *, liveness: bool = True, limit: int = 2_000_000) -> Result:
    """Explore a world; stops at the first broken promise.

    Args:
        world: What is explored.
        only: The one promise that ends the search if it is broken; else any does.
        liveness: Whether the ways out of each state are checked too.
        limit: How many states are at most explored before the search gives up, loudly.
    """
    graph = _Graph(world.initial)
    queue = deque([0])
    steps: set[Step | None] = set()
    texts: set[str] = set()
    transitions = 0

    def result(found: Counterexample | None, wedged: dict[str, int]) -> Result:
        places = frozenset(one.at for state in graph.states for one in state.orchestrators)
        happened = frozenset(step for step in steps if step)
        return Result(len(graph.states), transitions, happened, places, frozenset(texts), found, wedged)

    while queue:
        source = queue.popleft()
        state = graph.states[source]
        for move in moves(world, state):
            transitions += 1
            steps.add(move.step)
            texts.add(move.text)
            broken = broken_move(state, move)
            if broken and only in {None, broken}:
                return result(Counterexample(broken, graph.scenario(source, move)), {})
            number, new = graph.add(_watched(move.state), source, move)
            if liveness and move.kind != EVENT:
                graph.ways_back[number].append(source)
            if not new:
                continue
            broken = broken_state(graph.states[number])
            if broken and only in {None, broken}:
                return result(Counterexample(broken, graph.scenario(number)), {})
            queue.append(number)
        if len(graph.states) > limit:
            raise RuntimeError(f"over {limit} states: the world has no bound any more")
    return result(*_dead_ends(world, graph) if liveness else (None, {}))


def _watched(state: State) -> State:
    """Note who, while it looked, had a moment without any VMM, or while it waited for a lock, one without sandbox."""
    for who, one in enumerate(state.orchestrators):
        if one.quiet:
            continue
        looks = one.at.startswith("inspect") and not alive(state)
        waits = one.at.startswith("lock") and one.op == EXISTING and not state.disk.config
        if looks or waits:
            state = put(state, who, quiet=True)
    return state


def _dead_ends(world: World, graph: _Graph) -> tuple[Counterexample | None, dict[str, int]]:
    """Find states from which, without any further crash, the sandbox can't be used, or can't be removed."""
    goals: list[tuple[Property, Callable[[State], bool]]] = []
    if Op.START in world.ops:
        goals.append((USABLE, is_usable))
    if Op.REMOVAL in world.ops:
        goals.append((REMOVABLE, is_removed))
    wedged: dict[str, int] = {}
    for promise, is_goal in goals:
        for number in _lost(graph, is_goal):
            reason = excuse(world, graph.states[number], promise)
            if not reason:
                last = Line("", None, NO_WAY_ON)
                return Counterexample(promise, (*graph.scenario(number), last)), wedged
            wedged[reason] = wedged.get(reason, 0) + 1
    return None, wedged


def _lost(graph: _Graph, is_goal: Callable[[State], bool]) -> list[int]:
    leads = [is_goal(state) for state in graph.states]
    queue = deque(number for number, reached in enumerate(leads) if reached)
    while queue:
        for source in graph.ways_back[queue.popleft()]:
            if not leads[source]:
                leads[source] = True
                queue.append(source)
    return [number for number, reached in enumerate(leads) if not reached]
