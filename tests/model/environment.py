"""What happens around the orchestrators: crashes, the VMM's life, and the faults of a world."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.evidence import is_unidentified
from tests.model.guards import Fault, Guard
from tests.model.moves import ENDS, EVENT, HOST, Move, World
from tests.model.state import (
    BOOTING,
    DYING,
    FORKED,
    GONE,
    IDLE,
    LIVE,
    MOVED,
    NAMED,
    NEITHER,
    NOBODY,
    OPENED,
    OWN,
    SERVING,
    STRANGER,
    STRAYED,
    TICK,
    TWIN,
    WORKER,
    Disk,
    Orchestrator,
    State,
    evolve,
    put,
    rest,
    write,
)


def crash(state: State, who: int) -> Move:
    """End one orchestrator where it stands; its locks and descriptors go, the children's copies stay."""
    return Move(who, "crashes", rest(state, who), kind=EVENT)


def fork_window(world: World, state: State, who: int, me: Orchestrator) -> Iterator[Move]:
    """Another thread forks a child: until its exec it shares the open lock and log."""
    if me.copied:
        if Guard.CHILD_KEEPS_LOCK not in world.guards and me.holds and me.copied_lock == me.lock:
            unlocked = put(state, who, holds=False, copied_lock=NOBODY)
            yield Move(who, "its forked child unlocks what it inherited", unlocked, kind=EVENT)
        ended = put(state, who, copied=False, copied_lock=NOBODY, copied_claim=NEITHER)
        yield Move(who, "its forked child reaches its exec", ended, kind=ENDS)
    elif me.at != IDLE and (me.holds or me.claim in {NAMED, MOVED}):
        lock = me.lock if me.holds else NOBODY
        claim = me.claim if me.claim in {NAMED, MOVED} else NEITHER
        forked = put(state, who, copied=True, copied_lock=lock, copied_claim=claim)
        yield Move(who, "another thread of it forks a child", forked, kind=EVENT)


def happenings(world: World, state: State) -> Iterator[Move]:
    """Return what may happen without any orchestrator."""
    for number, launch in enumerate(state.launches):
        yield from _life(world, state, number, launch.vmm)
        if launch.vmm == GONE and Fault.REUSE in world.faults:
            yield from _reuse(state, number)
    if Fault.ROTATE in world.faults and state.disk.log:
        yield from _rotate(state)
    yield from _host(world, state)


def _life(world: World, state: State, number: int, vmm: str) -> Iterator[Move]:
    if vmm == FORKED:
        yield _becomes(state, number, BOOTING, "the child executes the VMM", ENDS)
        yield _becomes(state, number, GONE, "the child ends before its exec")
    elif vmm == BOOTING:
        # A launch whose process is known may be counted on to serve some day; of an unknown one nothing may be.
        kind = EVENT if is_unidentified(state, number) else ENDS
        yield _becomes(state, number, SERVING, "the VMM serves its endpoint", kind)
        yield _becomes(state, number, GONE, "the VMM exits")
    elif vmm == SERVING:
        yield _becomes(state, number, GONE, "the VMM exits")
    elif vmm == DYING:
        yield _becomes(state, number, GONE, "the killed VMM is gone", ENDS)
    elif vmm == WORKER:
        yield _becomes(state, number, GONE, "the VMM's descendant exits")
    if vmm == SERVING and Fault.WORKER in world.faults:
        yield _becomes(state, number, WORKER, "the VMM exits, a descendant keeps the log")


def _becomes(state: State, number: int, vmm: str, text: str, kind: str = EVENT) -> Move:
    return Move(HOST, text, evolve(state, number, vmm=vmm), kind=kind)


def _reuse(state: State, number: int) -> Iterator[Move]:
    """Give the number to a stranger; not while a descendant lives, whose session has it still (the VMM leads one)."""
    launch = state.launches[number]
    if launch.number != OWN:
        yield Move(HOST, "the stranger exits", evolve(state, number, number=OWN), kind=EVENT)
        return
    yield Move(HOST, "a stranger gets the VMM's number", evolve(state, number, number=STRANGER), kind=EVENT)
    same = TICK if launch.this_boot else TWIN
    text = "within the same start tick" if launch.this_boot else "with the same start tick and inode"
    yield Move(HOST, f"a stranger gets the VMM's number {text}", evolve(state, number, number=same), kind=EVENT)


def _rotate(state: State) -> Iterator[Move]:
    moved = _moved(state)
    yield Move(HOST, "the log is moved away", write(moved, log=False), kind=EVENT)
    yield Move(HOST, "the log is moved away and replaced", moved, kind=EVENT)


def _moved(state: State) -> State:
    launches = tuple(launch._replace(log=MOVED) if launch.log == NAMED else launch for launch in state.launches)
    for who, one in enumerate(state.orchestrators):
        claim = {NAMED: MOVED, OPENED: STRAYED}.get(one.claim, one.claim)
        copied = MOVED if one.copied_claim == NAMED else one.copied_claim
        state = put(state, who, claim=claim, copied_claim=copied)
    return state._replace(launches=launches)


def _host(world: World, state: State) -> Iterator[Move]:
    if Fault.FOREIGN in world.faults and state.disk.directory and not state.disk.foreign:
        yield Move(HOST, "somebody puts a file into the directory", write(state, foreign=True), kind=EVENT)
    if Fault.HIDDEN in world.faults:
        text = "processes can be examined again" if state.hidden else "processes can't be examined any more"
        yield Move(HOST, text, state._replace(hidden=not state.hidden), kind=EVENT)
    if Fault.STRANGER_SERVES in world.faults:
        text = "the stranger stops serving" if state.stranger_serves else "a stranger serves the endpoint"
        yield Move(HOST, text, state._replace(stranger_serves=not state.stranger_serves), kind=EVENT)
    if Fault.COPY in world.faults and all(one.at == IDLE for one in state.orchestrators):
        yield from _copy(state)
    if Fault.NAMESPACE in world.faults and all(one.at == IDLE for one in state.orchestrators):
        turned = tuple(launch._replace(away=not launch.away) for launch in state.launches)
        if turned:
            text = "the orchestrators restart in another PID namespace"
            yield Move(HOST, text, state._replace(launches=turned), kind=EVENT)
    if Fault.REBOOT in world.faults:
        yield from _reboot(state)


def _copy(state: State) -> Iterator[Move]:
    """Look at a copy from now on: its log is a file of its own, and what was launched in the original lives on."""
    known = {state.disk.journal, state.disk.record}
    if known == {NOBODY} or any(launch.abroad for launch in state.launches):
        return
    launches = tuple(
        launch._replace(abroad=True, log=MOVED) if number in known else launch._replace(vmm=GONE)
        for number, launch in enumerate(state.launches)
    )
    after = state._replace(orchestrators=(Orchestrator(),) * len(state.orchestrators), launches=launches)
    yield Move(HOST, "the directory is copied, and the copy is the sandbox from now on", after, kind=EVENT)


def _reboot(state: State) -> Iterator[Move]:
    """Restart the host: files that were not made durable may be gone, and a device may have another number."""
    disk = state.disk
    launches = tuple(
        launch._replace(this_boot=False, vmm=GONE if launch.vmm in {*LIVE, WORKER} else launch.vmm, number=OWN)
        for launch in state.launches
    )
    after = state._replace(
        orchestrators=(Orchestrator(),) * len(state.orchestrators),
        launches=launches,
        stranger_serves=False,
        hidden=False,
    )
    yield Move(HOST, "the host restarts", after, kind=EVENT)
    yield Move(HOST, "the host restarts, and the log's device has another number", _moved(after), kind=EVENT)
    if disk.log:
        lost = write(_moved(after), log=False)
        yield Move(HOST, "the host restarts, and the log is lost", lost, kind=EVENT)
    bare = Disk(directory=disk.directory, lock=disk.lock, config=disk.config, foreign=disk.foreign)
    yield Move(HOST, "the host restarts, and the launch's files are lost", after._replace(disk=bare), kind=EVENT)
