"""What must hold: in every reachable state, for every move, and from every state on (design, always true)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.model.evidence import is_unidentified
from tests.model.guards import Fault
from tests.model.locks import EXISTING
from tests.model.moves import Move, World
from tests.model.state import (
    BOOTING,
    FORKED,
    HAVING_LOG,
    IDLE,
    LIVE,
    MOVED,
    NOBODY,
    SERVING,
    TICK,
    VMM,
    WORKER,
    Launch,
    Orchestrator,
    State,
    alive,
)


class Property(NamedTuple):
    """One promise."""

    name: str
    source: str


ONE_VMM = Property("at most one VMM of a sandbox runs", "design, always true 2; case T10")
DESCENDANTS = Property("no VMM runs beside a descendant of an earlier one", "design, always true 3")
TRACE = Property("every process of a launch is named by the journal or the runtime record", "620.today.1; design 2")
FILES = Property("a VMM's runtime files and configuration stay until it has exited", "design, always true 8")
RECORD = Property("no runtime file of a launch outlives its records", "design, always true 8; story N8")
HOLDER = Property("the lock has at most one holder", "620.scope1.b; case T41a")
STRANGERS = Property("no process is signalled but the launch's VMM", "620.scope3.p; design, always true 1")
COMMITTED = Property("recovery ends no committed launch", "design, always true 2")
TRUTH = Property("exited, live and not running are said only where they are so", "design, always true 4")
REASON = Property("indeterminate is said only where something may run", "656.recheck; 620.scope2.d")
REMOVED = Property("who waited through a removal gets not found", "620.scope6.e; case T41")
FOREIGN = Property("a removal that meets foreign entries has deleted nothing, and never those", "620.scope6.i")
UNDER_LOCK = Property("files are deleted under the lock alone", "620.scope1.b")
OWN_WAIT = Property("a removal never waits for a file that it has open itself", "620.scope6.k; case T43")
CLEAN = Property("a new sandbox starts without files of the removed one", "620.scope6.h")
USABLE = Property("the sandbox can be brought to run again", "design, last paragraph of what must always be true")
REMOVABLE = Property("the sandbox can be removed", "design, last paragraph of what must always be true")

OUTSIDE = frozenset(
    {IDLE, "lock.open", "lock.file", "lock.wait", "lock.judge", "handle.hold", "removal.close", "removal.tail"}
)
"""Where an orchestrator has no lock, or is about to let go of one whose file it has unlinked; as inspections have."""


def in_charge(state: State, one: Orchestrator) -> bool:
    """Tell whether an orchestrator acts as the holder of the lock."""
    if one.at == "release":
        return one.lock == state.disk.lock
    return one.at not in OUTSIDE and not one.at.startswith("inspect")


def broken_state(state: State) -> Property | None:
    """Return the first promise that the state itself breaks."""
    disk = state.disk
    holders = sum(in_charge(state, one) for one in state.orchestrators)
    if holders > 1:
        return HOLDER
    own = [number for number, launch in enumerate(state.launches) if not launch.abroad]
    having_log = [number for number in own if state.launches[number].vmm in HAVING_LOG]
    running = [number for number in having_log if state.launches[number].vmm != WORKER]
    if len(running) > 1:
        return ONE_VMM
    if len(having_log) > 1:
        return DESCENDANTS
    for number in running:
        if number not in {disk.journal, disk.record}:
            return TRACE
        if not (disk.capability and disk.config):
            return FILES
    if disk.capability == 2 and disk.journal == disk.record == NOBODY and not holders:
        return RECORD
    return None


def broken_move(state: State, move: Move) -> Property | None:
    """Return the promise that a move breaks by what it does."""
    fact = move.fact
    if fact is None:
        return None
    return _JUDGES[fact.kind](state, move, fact.what)


def _signals(state: State, move: Move, what: str) -> Property | None:
    if not what.startswith(VMM):
        return STRANGERS
    number = move.fact.launch if move.fact else NOBODY
    if state.launches[number].abroad:
        return STRANGERS
    return COMMITTED if what == "vmm:recovery" and state.launches[number].committed else None


def _answers(state: State, move: Move, what: str) -> Property | None:
    number = move.fact.launch if move.fact else NOBODY
    if what.startswith("inspect:"):
        return _inspects(state, move, what.removeprefix("inspect:"), number)
    if what in {"exited", "not running"}:
        return TRUTH if alive(state) else None
    if what.startswith("live"):
        return None if what == "live:vmm" and is_own_vmm(state, number) else TRUTH
    if what == "not found":
        me = state.orchestrators[move.who]
        return None if me.quiet or me.op != EXISTING or not state.disk.config else TRUTH
    if what == "lingering":
        return None if state.orchestrators[move.who].lock == NOBODY else OWN_WAIT
    if what == "indeterminate":
        return None if may_run(state, number) else REASON
    return None


def _inspects(state: State, move: Move, what: str, number: int) -> Property | None:
    if what in {"stopped", "exited"}:
        return None if state.orchestrators[move.who].quiet else TRUTH
    if what == "indeterminate":
        in_progress = any(in_charge(state, one) for one in state.orchestrators)
        return None if in_progress or may_run(state, number) else REASON
    return None if what == "live:vmm" and is_own_vmm(state, number) else TRUTH


def is_own_vmm(state: State, number: int) -> bool:
    """Tell whether a launch of this very directory has a VMM that runs."""
    return state.launches[number].vmm in LIVE and not state.launches[number].abroad


def may_run(state: State, number: int) -> bool:
    """Tell whether a careful observer of everything could doubt that nothing of the sandbox runs."""
    if any(launch.vmm in HAVING_LOG for launch in state.launches) or state.hidden:
        return True
    return number != NOBODY and unprovable(state, number)


def unprovable(state: State, number: int) -> bool:
    """Tell whether the one file that could prove a launch's end was taken away."""
    launch = state.launches[number]
    return launch.this_boot and (launch.log == MOVED or not state.disk.log)


def _locks(state: State, move: Move, what: str) -> Property | None:
    del what
    return REMOVED if state.orchestrators[move.who].outlived else None


def _deletes(state: State, move: Move, what: str) -> Property | None:
    del state, move
    if what.startswith(("with foreign", "foreign")):
        return FOREIGN
    return UNDER_LOCK if what else None


def _provisions(state: State, move: Move, what: str) -> Property | None:
    del move, what
    disk = state.disk
    return CLEAN if disk.log or disk.capability or disk.journal != NOBODY or disk.record != NOBODY else None


_JUDGES: dict[str, Callable[[State, Move, str], Property | None]] = {
    "signals": _signals,
    "answers": _answers,
    "locks": _locks,
    "deletes": _deletes,
    "provisions": _provisions,
}


def is_usable(state: State) -> bool:
    """Tell whether the sandbox runs as it should, and nobody is at work."""
    record = state.disk.record
    return (
        record != NOBODY
        and state.disk.journal == NOBODY
        and state.launches[record].vmm == SERVING
        and state.launches[record].number == "own"
        and not state.launches[record].abroad
        and all(not in_charge(state, one) for one in state.orchestrators)
    )


def is_removed(state: State) -> bool:
    """Tell whether nothing is left."""
    return not state.disk.directory


def excuse(world: World, state: State, promise: Property) -> str:
    """Return why nothing more can be done about a state until the world changes, or nothing.

    Each of these is a wedge with a reason, which the orchestrator names in its answer.
    """
    if promise is REMOVABLE and state.disk.foreign:
        return "a foreign entry is in the directory"
    if state.hidden:
        return "processes can't be examined"
    for number, launch in enumerate(state.launches):
        if running := _running(launch):
            return running
        if launch.vmm in {FORKED, BOOTING} and is_unidentified(state, number):
            return "an unidentified VMM serves nothing"
        if number == state.disk.journal != state.disk.record and not state.disk.identity and unprovable(state, number):
            return "the log that could prove the launch's end was taken away"
        if launch.number == TICK and Fault.NO_PIDFS in world.faults and unprovable(state, number):
            return "a stranger has the VMM's number and start tick, and the log that could tell was taken away"
        if launch.away and unprovable(state, number):
            return "the log that could prove the end of another namespace's VMM was taken away"
    return ""


def _running(launch: Launch) -> str:
    if launch.vmm in LIVE and launch.abroad:
        return "the VMM of the directory of which this one is a copy runs"
    if launch.vmm == WORKER and not launch.abroad:
        return "a descendant of the VMM has the log"
    return "the VMM runs in another PID namespace" if launch.vmm in LIVE and launch.away else ""
