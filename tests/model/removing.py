"""Provision and removal (620.scope6)."""

from __future__ import annotations

from collections.abc import Iterable

from nvx_ref.steps import Step
from tests.model.evidence import AGAIN, HELD, look_at_log
from tests.model.guards import Fault, Guard
from tests.model.locks import EXISTING, is_empty, is_free, without_directory
from tests.model.moves import Fact, Move, World, answer, at, go
from tests.model.state import NOBODY, STALE, Disk, Orchestrator, State, put, rest, write


@at("provision.check")
def check_provision(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    if state.disk.config:
        yield answer(state, who, "already provisioned")
    else:
        yield Move(who, "finds no configuration", go(state, who, "provision.config"))


@at("provision.config")
def write_config(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    done = go(write(state, config=True), who, "release")
    yield Move(who, "", done, Step.PROVISION_CONFIGURATION, Fact("provisions", ""))
    yield answer(state, who, "refused", "refuses the image")


@at("removal.check")
def check_removal(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    """Look at everything before anything is deleted (620.scope6.g, i)."""
    claim = look_at_log(world, state)
    if claim == AGAIN:
        return
    if claim == HELD:
        yield answer(state, who, "indeterminate", "answers: indeterminate, a process has the log")
    elif state.disk.foreign and Guard.FOREIGN_FIRST in world.guards:
        yield answer(state, who, "foreign entries")
    else:
        to = "removal.files" if Guard.CONFIG_LATE in world.guards else "removal.config"
        yield Move(who, "", go(state, who, to, noted=state.disk.foreign), Step.REMOVAL_CHECKED)


@at("removal.files")
def remove_files(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    """Delete a launch's files: there is no record any more, whose turn would come last."""
    disk = state.disk
    if disk.capability:
        yield _deletes(state, who, "capability", capability=0)
    elif disk.log:
        yield _deletes(state, who, "log", log=False)
    elif Guard.CONFIG_LATE in world.guards and disk.config:
        yield Move(who, "has deleted every other file", go(state, who, "removal.config"))
    else:
        yield Move(who, "has deleted every file", go(state, who, "removal.unlink"))


@at("removal.config")
def remove_config(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    to = "removal.unlink" if Guard.CONFIG_LATE in world.guards else "removal.files"
    if not state.disk.config:
        yield Move(who, "finds no configuration", go(state, who, to))
        return
    for other, one in enumerate(state.orchestrators):
        if one.op == EXISTING and one.lock != NOBODY:
            state = put(state, other, outlived=True)
    deleted = _deletes(state, who, "configuration", config=False)
    yield deleted._replace(state=go(deleted.state, who, to))


def _deletes(state: State, who: int, what: str, **changes: object) -> Move:
    noted = "with foreign entries" if state.orchestrators[who].noted else ""
    return Move(who, f"deletes the {what}", write(state, **changes), Step.REMOVAL_FILE, Fact("deletes", noted))


@at("removal.unlink")
def unlink_removed(world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    to = "removal.close" if Guard.RELEASE_FIRST in world.guards else "removal.tail"
    yield Move(who, "", go(write(state, lock=NOBODY), who, to), Step.REMOVAL_LOCK_UNLINKED)
    if Fault.DISK in world.faults:
        yield answer(state, who, "failed", "can't unlink the lock file")


@at("removal.close")
def close(_world: World, state: State, who: int, _me: Orchestrator) -> Iterable[Move]:
    """Close the lock file; a copy of a forked child goes on locking it, but nobody can reach it any more."""
    yield Move(who, "closes the lock file", go(state, who, "removal.tail", lock=NOBODY, holds=False))


@at("removal.tail")
def tail(world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    """Remove the directory, unless a provision has taken it over; finish what a killed one left."""
    disk = state.disk
    if me.directory == STALE:
        yield Move(who, "finds the directory removed", rest(state, who))
    elif Guard.RMDIR_ONLY not in world.guards and (disk.config or disk.foreign):
        yield _uproot(state, who, disk)
    elif disk.config:
        yield Move(who, "leaves the directory to a provision", rest(state, who))
    elif disk.foreign:
        yield Move(who, "answers: foreign entries have appeared", rest(state, who))
    elif disk.lock == NOBODY:
        if is_empty(world, state):
            yield Move(who, "", rest(without_directory(state), who), Step.REMOVAL_DIRECTORY)
        else:
            text = "gives up: deleted files that are still open keep the directory"
            yield Move(who, text, rest(state, who), None, Fact("answers", "lingering"))
    elif is_free(state, disk.lock) and me.lock == NOBODY:
        swept = go(state, who, "removal.sweep", lock=disk.lock, holds=True)
        yield Move(who, "locks the lock file that somebody left", swept)


@at("removal.sweep")
def sweep(_world: World, state: State, who: int, me: Orchestrator) -> Iterable[Move]:
    if state.disk.config or state.disk.lock != me.lock:
        yield Move(who, "lets go of it", go(state, who, "removal.tail", lock=NOBODY, holds=False))
    else:
        yield Move(who, "unlinks it", go(write(state, lock=NOBODY), who, "removal.close"))


def _uproot(state: State, who: int, disk: Disk) -> Move:
    what = "configuration" if disk.config else "foreign entry"
    removed = write(state, config=False, foreign=False, lock=NOBODY, log=False, capability=0)
    return Move(who, f"deletes the {what}", removed, None, Fact("deletes", f"{what} without the lock"))
