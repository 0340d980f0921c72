"""The lifecycle lock, as ``Store.lock_provision`` and ``Store.lock_existing`` take it (620.scope6.d to f, k, l).

Where no removal is in the world, the lock file never changes and taking the lock is one step; its own races are then
out of sight, and checked in the worlds with removal.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvx_ref.steps import Step
from tests.model.guards import Fault, Guard, Op
from tests.model.moves import Fact, Move, World, at, go
from tests.model.state import CURRENT, IDLE, NEITHER, NOBODY, STALE, Orchestrator, State, put, rest, write

EXISTING = "existing"
"""Start, stop and reattach: which one is decided with the lock in hand, since until then they do the same."""

LOCKED = {
    Op.PROVISION: Step.PROVISION_LOCKED,
    Op.START: Step.START_LOCKED,
    Op.STOP: Step.STOP_LOCKED,
    Op.REMOVAL: Step.REMOVAL_LOCKED,
}


@at(IDLE)
def begin(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    if Op.INSPECT in world.ops:
        yield Move(who, "begins to inspect, without lock", go(state, who, "inspect.first", op=Op.INSPECT))
    if not world.removes:
        if is_free(state, state.disk.lock):
            holding = put(state, who, lock=state.disk.lock, holds=True, directory=CURRENT)
            yield from _enter(world, holding, who)
        return
    if Op.PROVISION in world.ops:
        yield Move(who, "wants to provision", go(state, who, "lock.open", op=Op.PROVISION))
    if existing_operations(world):
        yield Move(who, "wants an operation on the existing sandbox", go(state, who, "lock.open", op=EXISTING))
    yield Move(who, "wants to remove the sandbox", go(state, who, "lock.open", op=Op.REMOVAL))


@at("lock.open")
def open_directory(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    disk = state.disk
    if me.op == Op.PROVISION:
        text = "opens the directory" if disk.directory else "creates the directory"
        opened = go(write(state, directory=True), who, "lock.file", directory=CURRENT, made=not disk.directory)
        yield Move(who, text, opened, None if disk.directory else Step.PROVISION_DIRECTORY)
    elif disk.directory and (disk.config or me.op == Op.REMOVAL):
        yield Move(who, "opens the directory", go(state, who, "lock.file", directory=CURRENT))
    else:
        yield _not_found(state, who)


@at("lock.file")
def open_file(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    if me.directory == STALE:
        yield Move(who, "finds its directory removed, and starts over", go(state, who, "lock.open", directory=NEITHER))
    elif state.disk.lock == NOBODY:
        made = _new_file(state)
        opened = go(made, who, "lock.wait", lock=made.disk.lock)
        yield Move(who, "creates the lock file", opened)
    else:
        yield Move(who, "opens the lock file", go(state, who, "lock.wait", lock=state.disk.lock))


@at("lock.wait")
def wait(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    if is_free(state, me.lock):
        yield Move(who, "locks the file that it has open", go(state, who, "lock.judge", holds=True))


@at("lock.judge")
def judge(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Decide what the locked file is worth: the lock, a removed sandbox's, or one to be replaced."""
    names_it = me.directory == CURRENT and state.disk.lock == me.lock
    if names_it or Guard.LOCK_RECHECK not in world.guards:
        if me.op == Op.PROVISION and not state.disk.config and Guard.FRESH_LOCK in world.guards:
            yield from _enter(world, _renew(state, who), who, "replaces the lock file by a locked new one")
        elif me.op == EXISTING and not state.disk.config:
            yield Move(who, "answers: not found", go(state, who, "release"), None, Fact("answers", "not found"))
        else:
            yield from _enter(world, state, who)
    elif me.op != Op.PROVISION and Guard.UNLINKED_IS_REMOVED in world.guards:
        text, fact = "finds its lock file removed: not found", Fact("answers", "not found")
        yield Move(who, text, rest(state, who), None, fact)
    else:
        yield Move(who, "finds its lock file unlinked, and starts over", _drop(state, who, "lock.open"))


@at("release")
def release(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Unlock; from a directory without configuration the own lock file goes first (620.scope6.f).

    The unlock is explicit, so it ends the copies of forked children as well.
    """
    if me.op == Op.HANDLE and me.pin and me.launch >= 0:
        kept = rest(_unlock(world, state, who), who, at="handle.hold", op=Op.HANDLE, launch=me.launch, pin=me.pin)
        yield Move(who, "releases the lock, and keeps the VMM's handle", kept)
    elif world.removes and not state.disk.config and me.directory == CURRENT and state.disk.lock == me.lock:
        yield Move(who, "unlinks its lock file", write(state, lock=NOBODY))
    elif me.made and me.directory == CURRENT and is_empty(world, state):
        yield Move(who, "removes the directory that it made", without_directory(state))
    else:
        yield Move(who, "releases the lock", rest(_unlock(world, state, who), who))


def existing_operations(world: World) -> tuple[str, ...]:
    """Return the operations that take the lock of an existing sandbox."""
    return tuple(op for op in world.ops if op not in {Op.PROVISION, Op.REMOVAL, Op.INSPECT})


def is_free(state: State, number: int) -> bool:
    """Tell whether nobody, a forked child included, has a lock on the file."""
    return not any((one.holds and one.lock == number) or one.copied_lock == number for one in state.orchestrators)


def _enter(world: World, state: State, who: int, how: str = "") -> Iterable[Move]:
    me = state.orchestrators[who]
    for op in existing_operations(world) if me.op in {EXISTING, ""} else (me.op,):
        first = "provision.check" if op == Op.PROVISION else "recover.read"
        step = LOCKED.get(Op.START if op == Op.HANDLE else Op(op))
        text = "has the lock, to reattach" if step is None else how
        yield Move(who, text, go(state, who, first, op=op), step, Fact("locks", op))


def _renew(state: State, who: int) -> State:
    """Put a new lock file, locked already, in the place of the own one: a rename, so nobody comes in between."""
    renewed = _new_file(state)
    return put(renewed, who, lock=renewed.disk.lock)


def _new_file(state: State) -> State:
    return write(state, lock=state.lock_files)._replace(lock_files=state.lock_files + 1)


def _not_found(state: State, who: int) -> Move:
    return Move(who, "answers: not found", rest(state, who), None, Fact("answers", "not found"))


def is_empty(world: World, state: State) -> bool:
    """Tell whether the directory can be removed; a deleted file that is open may linger in it (NFS, Windows)."""
    disk = state.disk
    if disk.lock != NOBODY or disk.config or disk.foreign or disk.log or disk.capability:
        return False
    return Fault.LINGER not in world.faults or not any(
        one.lock != NOBODY and one.directory == CURRENT for one in state.orchestrators
    )


def without_directory(state: State) -> State:
    """Return the state in which the path leads nowhere, and who has the directory open has a stale one."""
    state = write(state, directory=False)
    for other, one in enumerate(state.orchestrators):
        if one.directory != NEITHER:
            state = put(state, other, directory=STALE)
    return state


def _drop(state: State, who: int, to: str) -> State:
    me = state.orchestrators[who]
    return rest(state, who, at=to, op=me.op, outlived=me.outlived)


def _unlock(world: World, state: State, who: int) -> State:
    if Guard.UNLOCKED not in world.guards:
        return put(state, who, holds=False)
    return put(state, who, holds=False, copied_lock=NOBODY)
