"""Recovery and the judgement of the runtime record: what each operation begins with, under the lock."""

from __future__ import annotations

from collections.abc import Iterable

from nvx_ref.steps import Step
from tests.model.evidence import (
    AGAIN,
    EXITED,
    FREE,
    UNKNOWN,
    ask_endpoint,
    examine,
    has_exited,
    look_at_claim,
)
from tests.model.guards import Fault, Guard, Op
from tests.model.moves import Fact, Move, World, answer, at, go
from tests.model.state import DYING, LIVE, NOBODY, VMM, Orchestrator, State, evolve, put, write


@at("recover.read")
def read(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    """Read journal and runtime record (656.reattach.b)."""
    disk = state.disk
    if Guard.RECOVER_FIRST not in world.guards:
        yield Move(who, "looks at the runtime record alone", go(state, who, "judge.record"))
    elif disk.journal == NOBODY:
        yield Move(who, "finds no journal", go(state, who, "judge.record"))
    elif disk.journal == disk.record and Guard.LAUNCH_ID in world.guards:
        yield Move(who, "finds a commit that was cut short", go(state, who, "recover.drop"))
    else:
        found = "an interrupted launch with identity" if disk.identity else "an interrupted launch without identity"
        to = "recover.examine" if disk.identity else "recover.claim"
        yield Move(who, f"finds {found}", go(state, who, to, launch=disk.journal))


@at("recover.drop")
def drop(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    done = go(write(state, journal=NOBODY, identity=False), who, "judge.record")
    yield Move(who, "removes the journal", done, Step.RECOVER_CLEARED)
    if Fault.DISK in world.faults:
        yield Move(who, "can't remove the journal, and goes on", go(state, who, "judge.record"))


@at("recover.examine")
def examine_identity(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    found = examine(world, state, state.launches[me.launch])
    yield from _judged(world, state, who, found)


@at("recover.claim")
def examine_claim(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Look at the claim, then ask the probe, until one of them tells or the second is over (620.scope2.d, e)."""
    launch = state.launches[me.launch]
    if not launch.this_boot and Guard.MARKER_BOOT in world.guards:
        yield from _judged(world, state, who, EXITED)
        return
    claim = look_at_claim(world, state, launch)
    if claim == FREE:
        yield from _judged(world, state, who, EXITED)
        return
    served = ask_endpoint(world, state, launch)
    if served:
        yield from _judged(world, state, who, served)
    elif claim != AGAIN:
        yield from _judged(world, state, who, UNKNOWN)


def _judged(world: World, state: State, who: int, found: str) -> Iterable[Move]:
    if found == AGAIN:
        return
    if found == UNKNOWN and Guard.UNKNOWN_NOT_EXITED in world.guards:
        launch = state.orchestrators[who].launch
        if Guard.UNKNOWN_KEEPS not in world.guards:
            yield Move(who, "forgets what it can't tell", _forget(state, who, "release").state)
            return
        yield answer(state, who, "indeterminate", "answers: indeterminate, an unfinished launch", launch)
    elif found in {UNKNOWN, EXITED}:
        text = "takes the launch for exited" if found == UNKNOWN else "finds the launch exited"
        yield Move(who, text, go(state, who, "recover.clear"), Step.RECOVER_PROBED)
    else:
        text = "verifies the launch's VMM" if found == VMM else "takes a stranger for the launch's VMM"
        yield Move(who, text, go(state, who, "recover.end", pin=found), Step.RECOVER_VERIFIED)


@at("recover.end")
def end(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    yield from terminate(world, state, who, me, "recover.wait", by="recovery")


@at("recover.wait")
def wait(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    cleared = go(state, who, "recover.clear", pin="")
    if has_exited(state.launches[me.launch], me.pin):
        yield Move(who, "sees it exit", cleared, Step.RECOVER_TERMINATED)
    elif Guard.EXIT_BEFORE_CLEAR not in world.guards:
        yield Move(who, "takes the signal for the exit", cleared, Step.RECOVER_TERMINATED)
    else:
        gone = put(state, who, pin="")
        yield answer(gone, who, "indeterminate", "answers: indeterminate, exit pending", me.launch)


@at("recover.clear")
def clear(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    """Remove what the launch left, its journal last; next to a runtime record that is the journal alone."""
    if state.disk.record != NOBODY:
        yield _forget(state, who, "judge.record")
    elif Guard.RECORD_LAST in world.guards:
        yield Move(who, "removes the runtime files", go(write(state, capability=0), who, "recover.forget"))
    else:
        yield _forget(state, who, "recover.tidy")


@at("recover.forget")
def forget(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    yield _forget(state, who, "judge.record")


@at("recover.tidy")
def tidy(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    yield Move(who, "removes the runtime files", go(write(state, capability=0), who, "judge.record"))


def _forget(state: State, who: int, to: str) -> Move:
    forgotten = go(write(state, journal=NOBODY, identity=False), who, to, launch=NOBODY)
    return Move(who, "removes the journal", forgotten, Step.RECOVER_CLEARED)


@at("judge.record")
def judge(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Judge the runtime record, and let the operation decide."""
    number = state.disk.record
    if number == NOBODY:
        yield from _nothing_runs(state, who, me)
        return
    found = examine(world, state, state.launches[number])
    if found == UNKNOWN:
        if Guard.UNKNOWN_NOT_LIVE not in world.guards:
            found = VMM
        elif Guard.UNKNOWN_NOT_EXITED not in world.guards:
            found = EXITED
    if found == UNKNOWN:
        yield answer(state, who, "indeterminate", "answers: indeterminate, a recorded VMM", number)
    elif found == EXITED:
        fact = Fact("answers", EXITED, number)
        yield Move(who, "finds the recorded VMM exited", go(state, who, "clear.files", launch=number), None, fact)
    elif found != AGAIN:
        yield _runs(state, who, me, found)


def _nothing_runs(state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    if me.op in {Op.START, Op.HANDLE}:
        yield Move(who, "nothing runs", go(state, who, "launch.stale"), Step.START_RECOVERED)
    elif me.op == Op.REMOVAL:
        yield Move(who, "nothing runs", go(state, who, "removal.check"))
    else:
        yield answer(state, who, "not running")


def _runs(state: State, who: int, me: Orchestrator, pin: str) -> Move:
    number = state.disk.record
    if me.op == Op.STOP:
        fact = Fact("answers", f"live:{pin}", number)
        text = "holds the recorded VMM" if pin == VMM else "takes a stranger for the recorded VMM"
        return Move(who, text, go(state, who, "stop.request", launch=number, pin=pin), None, fact)
    return answer(state, who, f"live:{pin}", "answers: running", number)


@at("clear.files")
def clear_files(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    """Remove an exited VMM's runtime files, a leftover journal of its own too, then its record (656.stop.e)."""
    if Guard.RECORD_LAST in world.guards:
        yield Move(who, "removes the runtime files", go(write(state, capability=0), who, "clear.record"))
    else:
        yield _clear_record(state, who, "clear.tidy")


@at("clear.record")
def clear_record(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    yield _clear_record(state, who, "")


@at("clear.tidy")
def clear_tidy(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    yield Move(who, "removes the runtime files", _cleared(write(state, capability=0), who, me))


def _clear_record(state: State, who: int, to: str) -> Move:
    me = state.orchestrators[who]
    left = write(state, record=NOBODY)
    if state.disk.journal == me.launch:
        left = write(left, journal=NOBODY, identity=False)
    done = go(left, who, to) if to else _cleared(left, who, me)
    step = Step.STOP_RECORD_CLEARED if me.noted else Step.RECOVER_CLEARED
    return Move(who, "removes the runtime record", done, step)


def _cleared(state: State, who: int, me: Orchestrator) -> State:
    to = "launch.stale" if me.op in {Op.START, Op.HANDLE} else "removal.check" if me.op == Op.REMOVAL else "release"
    return go(state, who, to, launch=NOBODY, pin="", noted=False)


def terminate(world: World, state: State, who: int, me: Orchestrator, to: str, *, by: str) -> Iterable[Move]:
    """Kill what is pinned; without the guard, whatever has its number by now."""
    launch = state.launches[me.launch]
    target = me.pin
    if Guard.PINNED not in world.guards and launch.vmm not in LIVE and launch.number != "own":
        target = "stranger"
    step = Step.STOP_FORCED if by == "stop" else None
    if target != VMM:
        yield Move(who, "kills a stranger", go(state, who, to), step, Fact("signals", target, me.launch))
        return
    killed = evolve(state, me.launch, vmm=DYING) if launch.vmm in LIVE else state
    yield Move(who, "kills the VMM", go(killed, who, to), step, Fact("signals", f"{VMM}:{by}", me.launch))
