"""A start: from the first file to the runtime record, and the teardown of a start that failed (656.launch)."""

from __future__ import annotations

from collections.abc import Iterable

from nvx_ref.steps import Step
from tests.model.evidence import AGAIN, HELD, has_exited, look_at_log
from tests.model.guards import Fault, Guard, Op
from tests.model.moves import Move, World, answer, at, go
from tests.model.recovery import terminate
from tests.model.state import (
    BOOTING,
    FORKED,
    LIVE,
    MOVED,
    NAMED,
    NEITHER,
    NOBODY,
    OPENED,
    SERVING,
    STRAYED,
    VMM,
    Launch,
    Orchestrator,
    State,
    evolve,
    put,
    write,
)


@at("launch.stale")
def stale(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    """Look at the log's claim whatever the records say, then remove what an earlier launch left."""
    claim = look_at_log(world, state)
    if claim == HELD:
        yield answer(state, who, "indeterminate", "answers: indeterminate, a process has the log")
    elif claim != AGAIN:
        cleaned = go(write(state, capability=0), who, "launch.capability")
        yield Move(who, "", cleaned, Step.START_STALE_REMOVED)


@at("launch.capability")
def capability(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    yield Move(who, "", go(write(state, capability=1), who, "launch.log"), Step.START_CAPABILITY_WRITTEN)


@at("launch.log")
def log(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    to = "launch.claim" if Guard.CLAIM_FIRST in world.guards else "launch.marker"
    yield Move(who, "", go(write(state, log=True), who, to, claim=OPENED), Step.START_LOG_CREATED)


@at("launch.claim")
def claim_log(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Claim the file that is open, and compare it with the log's name afterwards."""
    # What has strayed has no name any more: whoever else has it keeps it, and is out of sight.
    claim = look_at_log(world, state) if me.claim == OPENED else ""
    if claim == AGAIN:
        return
    replaced = me.claim == STRAYED and Guard.LOG_RECHECK in world.guards
    if me.launch != NOBODY and Guard.MARKER_FIRST in world.guards and (replaced or claim == HELD):
        back = go(state, who, "abandon.clear", claim=NEITHER)
        yield Move(who, "can't claim the log, and takes the marker back", back)
    elif replaced:
        yield answer(put(state, who, claim=NEITHER), who, "failed", "answers: the log was replaced")
    elif claim == HELD:
        closed = put(state, who, claim=NEITHER)
        yield answer(closed, who, "indeterminate", "answers: indeterminate, a process has the log")
    else:
        early = {Guard.MARKER_FIRST, Guard.CLAIM_FIRST} <= world.guards
        claimed = NAMED if me.claim == OPENED else MOVED
        to = "launch.marker" if early else "launch.fork"
        yield Move(who, "", go(state, who, to, claim=claimed), Step.START_LOG_CLAIMED)


@at("launch.marker")
def marker(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    state, number = _launch(state, me)
    to = "launch.fork" if Guard.CLAIM_FIRST in world.guards else "launch.claim"
    to = to if Guard.MARKER_FIRST in world.guards else "launch.identity"
    marked = write(state, journal=number, identity=False, capability=2)
    yield Move(who, "", go(marked, who, to, launch=number), Step.START_MARKER_WRITTEN)
    if Fault.DISK in world.faults and Guard.MARKER_FIRST in world.guards:
        yield Move(who, "can't write the marker", go(state, who, "abandon.clear", claim=NEITHER))


def _launch(state: State, me: Orchestrator) -> tuple[State, int]:
    """Return the number of the orchestrator's launch, which begins here unless it has one."""
    if me.launch != NOBODY:
        return state, me.launch
    log_is = NAMED if me.claim in {NAMED, OPENED} else MOVED
    return state._replace(launches=(*state.launches, Launch(log=log_is))), len(state.launches)


@at("launch.fork")
def fork(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    state, number = _launch(state, me)
    forked = go(evolve(state, number, vmm=FORKED), who, "launch.spawn", launch=number)
    yield Move(who, "forks the VMM's process", forked)


@at("launch.spawn")
def spawn(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Learn of the exec, and let go of the own descriptor of the log: the claim is the VMM's alone."""
    if state.launches[me.launch].vmm != FORKED:
        to = "launch.identity" if Guard.MARKER_FIRST in world.guards else "launch.marker"
        yield Move(who, "", go(state, who, to, claim=NEITHER, pin=VMM), Step.START_SPAWNED)


@at("launch.identity")
def identity(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    yield Move(who, "", go(write(state, identity=True), who, "launch.endpoint"), Step.START_IDENTITY_RECORDED)
    if Fault.DISK in world.faults:
        yield Move(who, "can't record the identity", go(state, who, "abandon.end"))


@at("launch.endpoint")
def endpoint(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Wait until the VMM serves; an exit or the deadline ends the launch."""
    vmm = state.launches[me.launch].vmm
    if vmm == SERVING:
        yield Move(who, "", go(state, who, "launch.commit"), Step.START_ENDPOINT_UP)
    if vmm == BOOTING:
        yield Move(who, "waits for the endpoint until the deadline", go(state, who, "abandon.end"))
    if vmm not in LIVE:
        yield Move(who, "", go(state, who, "abandon.wait"), Step.FAILED_START_REPORT_AWAITED)


@at("launch.commit")
def commit(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    if Guard.JOURNAL_LAST in world.guards or state.disk.journal == NOBODY:
        done = evolve(write(state, record=me.launch), me.launch, committed=True)
        yield Move(who, "", go(done, who, "launch.journal"), Step.START_RUNTIME_WRITTEN)
        if Fault.DISK in world.faults:
            yield Move(who, "can't write the runtime record", go(state, who, "abandon.end"))
    else:
        early = write(state, journal=NOBODY, identity=False)
        yield Move(who, "", go(early, who, "launch.commit"), Step.START_JOURNAL_REMOVED)


@at("launch.journal")
def journal(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Remove the journal; a launch is committed even if that fails."""
    kept = {"launch": me.launch, "pin": VMM} if me.op == Op.HANDLE else {"launch": NOBODY, "pin": NEITHER}
    done = go(state, who, "release", **kept)
    yield Move(who, "", write(done, journal=NOBODY, identity=False), Step.START_JOURNAL_REMOVED)
    if Fault.DISK in world.faults and state.disk.journal != NOBODY:
        yield Move(who, "can't remove the journal: started", done)


@at("abandon.end")
def abandon(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """End the VMM through the hold of its own child."""
    yield from terminate(world, state, who, me, "abandon.wait", by="abandon")


@at("abandon.wait")
def abandon_wait(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    gone = has_exited(state.launches[me.launch], me.pin)
    if gone or Guard.EXIT_BEFORE_CLEAR not in world.guards:
        text = "sees it exit" if gone else "takes the signal for the exit"
        yield Move(who, text, go(state, who, "abandon.clear"))
    else:
        yield answer(go(state, who, "", pin=NEITHER), who, "failed", "answers: failed, and the VMM may still run")


@at("abandon.clear")
def abandon_clear(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    yield Move(who, "removes the runtime files", go(write(state, capability=0), who, "abandon.forget"))


@at("abandon.forget")
def abandon_forget(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    done = go(write(state, journal=NOBODY, identity=False), who, "release", launch=NOBODY, pin=NEITHER)
    yield Move(who, "", done, Step.FAILED_START_ABANDONED)
