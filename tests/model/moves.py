"""What a transition is, and the world in which it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from nvx_ref.steps import Step
from tests.model.guards import Fault, Guard, Op
from tests.model.state import NOBODY, Orchestrator, State, put

HOST = -1
"""The actor of what no orchestrator does."""

STEP = "step"
ENDS = "ends"
"""What the kernel does in the end, whatever else happens: a killed process is gone, a forked child reaches its exec."""
EVENT = "event"
"""What may happen or not: crashes, exits, faults."""


class Fact(NamedTuple):
    """What a move did that no later state shows, for the properties that are about moves."""

    kind: str
    """``signals``, ``answers``, ``locks``, ``deletes`` or ``provisions``."""
    what: str
    launch: int = NOBODY


class Move(NamedTuple):
    """One transition."""

    who: int
    text: str
    state: State
    step: Step | None = None
    fact: Fact | None = None
    kind: str = STEP


class World(NamedTuple):
    """What is checked: the guards in force, the faults that happen, the operations that are asked for."""

    guards: frozenset[Guard]
    faults: frozenset[Fault]
    ops: tuple[Op, ...]
    initial: State

    @property
    def removes(self) -> bool:
        """Whether lock files come and go, so that taking the lock has steps of its own."""
        return Op.REMOVAL in self.ops

    def without(self, guard: Guard) -> World:
        """Return the world in which one guard is taken out."""
        return self._replace(guards=self.guards - {guard})


Handler = Callable[[World, State, int, Orchestrator], Iterable[Move]]
HANDLERS: dict[str, Handler] = {}
"""What an orchestrator may do next, by where it is."""


def at(name: str) -> Callable[[Handler], Handler]:
    """Register what an orchestrator does at one place."""

    def register(handler: Handler) -> Handler:
        HANDLERS[name] = handler
        return handler

    return register


def go(state: State, who: int, to: str, **changes: object) -> State:
    """Return the state in which an orchestrator is elsewhere."""
    return put(state, who, at=to, **changes)


def answer(state: State, who: int, verdict: str, text: str = "", launch: int = NOBODY) -> Move:
    """Tell the caller what was found, and let go of the lock next."""
    return Move(who, text or f"answers: {verdict}", go(state, who, "release"), None, Fact("answers", verdict, launch))
