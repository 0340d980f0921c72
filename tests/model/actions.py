"""All transitions of a state, in a fixed order, so that every run finds the same shortest scenario."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import launching, locks, recovery, removing, stopping
from tests.model.environment import crash, fork_window, happenings
from tests.model.guards import Fault
from tests.model.moves import HANDLERS, Move, World
from tests.model.state import IDLE, State

ROOMS = (launching, locks, recovery, removing, stopping)
"""Imported for their handlers."""


def moves(world: World, state: State) -> Iterator[Move]:
    """Return everything that may happen next."""
    forks = Fault.FORK in world.faults
    for who, me in enumerate(state.orchestrators):
        yield from HANDLERS[me.at](world, state, who, me)
        if me.at != IDLE:
            yield crash(state, who)
        if forks:
            yield from fork_window(world, state, who, me)
    yield from happenings(world, state)
