"""The states of the model: small tuples, equal whenever nothing could tell two situations apart.

Launches and lock files are numbered by who refers to them, not by age, and the two orchestrators are interchangeable.
So any number of operations, crashes and restarts ends in finitely many states, and no counter bounds a run.
"""

from __future__ import annotations

from operator import eq
from typing import Any, NamedTuple

# Strings, not enums: they are hashed and compared in every one of some 100,000 states.
UNBORN = "unborn"
FORKED = "forked"
"""Between fork and exec: it has the claim already and nobody can find it by its program."""
BOOTING = "booting"
SERVING = "serving"
DYING = "dying"
"""Killed, and not gone yet."""
WORKER = "worker"
"""The VMM has exited, a descendant of it still has the log."""
GONE = "gone"
LIVE = frozenset({FORKED, BOOTING, SERVING, DYING})
HAVING_LOG = LIVE | {WORKER}

NAMED = "named"
"""The file that the log's name leads to."""
MOVED = "moved"
"""A file that was the log and isn't any more."""
OPENED = "opened"
"""The named file, opened and not claimed yet."""
STRAYED = "strayed"
"""A file that was the log when it was opened, and isn't any more; not claimed either."""
NEITHER = ""

OWN = "own"
"""The launch's number names its VMM, or nothing once that has exited."""
STRANGER = "stranger"
TICK = "tick"
"""A stranger with the same number and the same start tick."""
TWIN = "twin"
"""A stranger after a reboot, whose number, start tick and pidfs inode all are the recorded ones."""

CURRENT = "current"
STALE = "stale"

IDLE = "idle"
VMM = "vmm"
NOBODY = -1


class Launch(NamedTuple):
    """One launch, for as long as anything refers to it or a process of it runs."""

    vmm: str = UNBORN
    log: str = NAMED
    number: str = OWN
    this_boot: bool = True
    away: bool = False
    """Recorded in another PID namespace than the one in which the orchestrators run now."""
    committed: bool = False
    abroad: bool = False
    """Of another directory, of which the sandbox's is a copy: its log is that one's, and so is its endpoint."""


class Orchestrator(NamedTuple):
    """One process that operates on the sandbox; between two operations it remembers nothing."""

    at: str = IDLE
    """What it does next."""
    op: str = ""
    directory: str = NEITHER
    """Whether the directory that it has open is still the sandbox's."""
    lock: int = NOBODY
    """The lock file that it has open."""
    holds: bool = False
    made: bool = False
    """Whether it created the directory."""
    outlived: bool = False
    """The sandbox was removed while it had the lock file open (watched by a property, unknown to the protocol)."""
    claim: str = NEITHER
    launch: int = NOBODY
    pin: str = NEITHER
    """Whom it would signal: the VMM of its launch, or a stranger."""
    record: int = NOBODY
    """The launch in the runtime record that an inspection read."""
    noted: bool = False
    """What it saw earlier in the same operation: an identity, a foreign entry."""
    quiet: bool = False
    """During its inspection there was a moment without any VMM (watched by a property)."""
    copied: bool = False
    """A child that another thread of it forked hasn't reached its exec; survives a crash of its parent."""
    copied_lock: int = NOBODY
    copied_claim: str = NEITHER


class Disk(NamedTuple):
    """The sandbox's directory, as its names lead to it."""

    directory: bool = False
    lock: int = NOBODY
    config: bool = False
    capability: int = 0
    """1: of a launch without a marker, 2: of one that has left a trace."""
    log: bool = False
    journal: int = NOBODY
    identity: bool = False
    """Whether the journal has the VMM's identity."""
    record: int = NOBODY
    foreign: bool = False


class State(NamedTuple):
    """Everything."""

    orchestrators: tuple[Orchestrator, ...]
    disk: Disk
    launches: tuple[Launch, ...] = ()
    lock_files: int = 0
    """How many lock files anybody has open or has a name for."""
    hidden: bool = False
    stranger_serves: bool = False


def beginning(orchestrators: int, *, provisioned: bool) -> State:
    """Return the state in which nothing has happened yet, or a sandbox was just provisioned."""
    everyone = (Orchestrator(),) * orchestrators
    if provisioned:
        return State(everyone, Disk(directory=True, lock=0, config=True), (), 1)
    return State(everyone, Disk())


def put(state: State, who: int, /, **changes: Any) -> State:
    """Return the state with one orchestrator changed."""
    return _replaced(state, who, state.orchestrators[who]._replace(**changes))


def rest(state: State, who: int, /, **changes: Any) -> State:
    """Return the state with one orchestrator idle: it forgets everything but the child that it forked."""
    one = state.orchestrators[who]
    idle = Orchestrator(copied=one.copied, copied_lock=one.copied_lock, copied_claim=one.copied_claim)
    return _replaced(state, who, idle._replace(**changes))


def _replaced(state: State, who: int, one: Orchestrator) -> State:
    everyone = state.orchestrators
    return state._replace(orchestrators=(*everyone[:who], one, *everyone[who + 1 :]))


def write(state: State, /, **changes: Any) -> State:
    """Return the state with the directory changed."""
    return state._replace(disk=state.disk._replace(**changes))


def evolve(state: State, which: int, /, **changes: Any) -> State:
    """Return the state with one launch changed."""
    launches = list(state.launches)
    launches[which] = launches[which]._replace(**changes)
    return state._replace(launches=tuple(launches))


def alive(state: State) -> bool:
    """Tell whether a VMM of the sandbox runs."""
    return any(launch.vmm in LIVE for launch in state.launches)


_AS_IS = tuple(tuple(range(count)) for count in range(4))


def canonical(state: State) -> tuple[State, tuple[int, ...]]:
    """Return the one state that stands for all that nothing can tell apart, and where each orchestrator came from."""
    everyone = state.orchestrators
    order = tuple(sorted(range(len(everyone)), key=everyone.__getitem__))
    if order != _AS_IS[len(order)]:
        state = state._replace(orchestrators=tuple([everyone[who] for who in order]))
    # The usual case, one launch that is recorded and one lock file that has its name, is in order by itself.
    launches, disk = state.launches, state.disk
    if launches and not (len(launches) == 1 and (disk.journal == 0 or disk.record == 0)):
        state = _renumber_launches(state)
    if state.lock_files and not (state.lock_files == 1 and disk.lock == 0):
        state = _renumber_locks(state)
    return state, order


def _renumber_launches(state: State) -> State:
    disk = state.disk
    order: dict[int, int] = {NOBODY: NOBODY}
    referred = [disk.journal, disk.record]
    for one in state.orchestrators:
        referred += (one.launch, one.record)
    for number, launch in enumerate(state.launches):
        if launch.vmm in HAVING_LOG:
            referred.append(number)
    for number in referred:
        if number not in order:
            order[number] = len(order) - 1
    if _stands(order, len(state.launches)):
        return state
    return state._replace(
        orchestrators=tuple(
            one._replace(launch=order[one.launch], record=order[one.record]) for one in state.orchestrators
        ),
        disk=disk._replace(journal=order[disk.journal], record=order[disk.record]),
        launches=tuple(state.launches[number] for number in order if number != NOBODY),
    )


def _renumber_locks(state: State) -> State:
    order: dict[int, int] = {NOBODY: NOBODY}
    for number in (state.disk.lock, *[one.lock for one in state.orchestrators]):
        if number not in order:
            order[number] = len(order) - 1
    if _stands(order, state.lock_files):
        return state
    return state._replace(
        # A copy of a lock file that nobody else can reach any more locks nobody out.
        orchestrators=tuple(
            one._replace(lock=order[one.lock], copied_lock=order.get(one.copied_lock, NOBODY))
            for one in state.orchestrators
        ),
        disk=state.disk._replace(lock=order[state.disk.lock]),
        lock_files=len(order) - 1,
    )


def _stands(order: dict[int, int], count: int) -> bool:
    return len(order) == count + 1 and all(map(eq, order, order.values()))
