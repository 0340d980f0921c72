"""Stop, the stop through a kept handle, and the inspection without lock (656.stop, design: verdicts of reattach)."""

from __future__ import annotations

from collections.abc import Iterable

from nvx_ref.steps import Step
from tests.model.evidence import AGAIN, EXITED, FREE, UNKNOWN, examine, has_exited, look_at_claim
from tests.model.guards import Guard
from tests.model.locks import is_free
from tests.model.moves import Fact, Move, World, answer, at, go
from tests.model.recovery import terminate
from tests.model.state import CURRENT, NEITHER, NOBODY, Orchestrator, State, rest, write


@at("stop.request")
def request(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    yield Move(who, "", go(state, who, "stop.wait"), Step.STOP_REQUESTED)


@at("stop.wait")
def wait(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    if has_exited(state.launches[me.launch], me.pin):
        yield _exited(state, who)
    if me.pin != NEITHER:
        yield _timed_out(state, who)
        yield Move(who, "was asked to force it", go(state, who, "stop.force"))


@at("stop.force")
def force(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    yield from terminate(world, state, who, me, "stop.last", by="stop")


@at("stop.last")
def last(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    if has_exited(state.launches[me.launch], me.pin):
        yield _exited(state, who)
    elif Guard.EXIT_BEFORE_CLEAR not in world.guards:
        yield Move(who, "takes the signal for the exit", go(state, who, "clear.files", pin=NEITHER, noted=True))
    else:
        yield _timed_out(state, who)


def _exited(state: State, who: int) -> Move:
    return Move(who, "", go(state, who, "clear.files", pin=NEITHER, noted=True), Step.STOP_EXITED)


def _timed_out(state: State, who: int) -> Move:
    return answer(go(state, who, "", pin=NEITHER), who, "timed out")


@at("handle.hold")
def hold(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Wait for the exit by the handle alone; the lock comes back only to clear the record."""
    if has_exited(state.launches[me.launch], me.pin) and is_free(state, state.disk.lock):
        locked = go(state, who, "handle.clear", lock=state.disk.lock, holds=True, directory=CURRENT)
        yield Move(who, "sees its VMM exit, and takes the lock to clear the record", locked)


@at("handle.clear")
def clear(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    own = state.disk.record == me.launch
    if own or (Guard.CLEAR_CHECKS_LAUNCH not in world.guards and state.disk.record != NOBODY):
        yield Move(who, "removes the runtime files", go(write(state, capability=0), who, "handle.record"))
    else:
        yield Move(who, "leaves the record alone", go(state, who, "release", launch=NOBODY, pin=NEITHER))


@at("handle.record")
def clear_record(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    done = go(write(state, record=NOBODY), who, "release", launch=NOBODY, pin=NEITHER)
    yield Move(who, "removes the runtime record", done, Step.STOP_RECORD_CLEARED)


@at("inspect.first")
def inspect_first(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    if Guard.INSPECT_ORDER in world.guards:
        yield _read_journal(state, who, "inspect.second")
    else:
        yield _read_record(state, who, "inspect.second")


@at("inspect.second")
def inspect_second(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    if Guard.INSPECT_ORDER in world.guards:
        yield _read_record(state, who, "inspect.judge")
    else:
        yield _read_journal(state, who, "inspect.judge")


def _read_journal(state: State, who: int, to: str) -> Move:
    disk = state.disk
    text = "reads no journal" if disk.journal == NOBODY else "reads a journal"
    return Move(who, text, go(state, who, to, launch=disk.journal, noted=disk.identity))


def _read_record(state: State, who: int, to: str) -> Move:
    text = "reads no runtime record" if state.disk.record == NOBODY else "reads a runtime record"
    return Move(who, text, go(state, who, to, record=state.disk.record))


@at("inspect.judge")
def inspect_judge(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Say what was read; an unfinished launch of which anything may live is indeterminate."""
    unfinished = me.launch not in {NOBODY, me.record}
    number = me.launch if unfinished else me.record
    if number == NOBODY:
        yield _says(state, who, "stopped")
        return
    launch = state.launches[number]
    if unfinished and not me.noted:
        claim = look_at_claim(world, state, launch)
        found = EXITED if claim == FREE or not launch.this_boot else claim if claim == AGAIN else UNKNOWN
    else:
        found = examine(world, state, launch)
    if found == EXITED:
        yield _says(state, who, EXITED)
    elif found == UNKNOWN or (unfinished and found != AGAIN):
        yield _says(state, who, "indeterminate", number)
    elif found != AGAIN:
        yield _says(state, who, f"live:{found}", number)


def _says(state: State, who: int, verdict: str, number: int = NOBODY) -> Move:
    text = "answers: running" if verdict.startswith("live") else f"answers: {verdict}"
    return Move(who, text, rest(state, who), None, Fact("answers", f"inspect:{verdict}", number))
