"""What can be found out about a launch: its process, its claim, its endpoint (design, verdicts of reattach)."""

from __future__ import annotations

from tests.model.guards import Fault, Guard
from tests.model.moves import World
from tests.model.state import (
    HAVING_LOG,
    LIVE,
    MOVED,
    NAMED,
    OWN,
    SERVING,
    STRANGER,
    TICK,
    VMM,
    Launch,
    State,
)

EXITED = "exited"
UNKNOWN = "unknown"
AGAIN = "again"
"""Not settled yet: the look is repeated until what is in the way, a forked child, is gone."""

FREE = "free"
HELD = "held"
UNPROVEN = "unproven"


def look_at_claim(world: World, state: State, launch: Launch) -> str:
    """Look at the claim of one launch's log: ``FREE``, ``HELD``, ``UNPROVEN`` or ``AGAIN``."""
    if Guard.CLAIM_ON_OBJECT in world.guards and (launch.log == MOVED or not state.disk.log):
        return UNPROVEN
    if not state.disk.log:
        return UNPROVEN
    return _look(world, state, Guard.CLAIM_RECHECK)


def look_at_log(world: World, state: State) -> str:
    """Look at the claim of the file that is the log now: ``FREE``, ``HELD`` or ``AGAIN``."""
    if not state.disk.log or Guard.CLAIM_BARS not in world.guards:
        return FREE
    return _look(world, state, Guard.LAUNCH_RECHECK)


def _look(world: World, state: State, recheck: Guard) -> str:
    inherits = Guard.CLAIM_INHERITED in world.guards
    if inherits and any(launch.log == NAMED and launch.vmm in HAVING_LOG for launch in state.launches):
        return HELD
    if any(one.claim == NAMED for one in state.orchestrators):
        return HELD
    if any(one.copied_claim == NAMED for one in state.orchestrators):
        return AGAIN if recheck in world.guards else HELD
    return FREE


def examine(world: World, state: State, launch: Launch) -> str:
    """Find a recorded process again: ``EXITED``, ``UNKNOWN``, ``AGAIN``, or whom a pin on it would hold."""
    if not launch.this_boot and Guard.BOOT_CHECK in world.guards:
        return EXITED
    if launch.away and Guard.PID_NAMESPACE in world.guards:
        claim = look_at_claim(world, state, launch)
        return claim if claim == AGAIN else EXITED if claim == FREE else UNKNOWN
    found = _by_number(world, state, launch)
    return UNKNOWN if _is_copied(world, launch) and found not in {EXITED, AGAIN} else found


def _is_copied(world: World, launch: Launch) -> bool:
    return launch.abroad and Guard.COPIED in world.guards


def _by_number(world: World, state: State, launch: Launch) -> str:
    if launch.away:
        return EXITED
    if launch.number == OWN:
        if launch.vmm not in LIVE:
            return EXITED
        return UNKNOWN if state.hidden else VMM
    if state.hidden:
        return UNKNOWN
    if Guard.VERIFIED not in world.guards:
        return STRANGER
    if launch.number == STRANGER:
        return EXITED
    if launch.number == TICK:
        return _by_inode(world, state, launch)
    return STRANGER


def _by_inode(world: World, state: State, launch: Launch) -> str:
    """Judge a stranger that has the recorded number and start tick."""
    if Guard.PIDFS_INODE in world.guards and Fault.NO_PIDFS not in world.faults:
        return EXITED
    if Guard.SECOND_WITNESS in world.guards:
        claim = look_at_claim(world, state, launch)
        if claim == AGAIN and Guard.WITNESS_RECHECK in world.guards:
            return AGAIN
        if claim == FREE:
            return EXITED
    return UNKNOWN if Guard.HAS_LOG in world.guards else STRANGER


def ask_endpoint(world: World, state: State, launch: Launch) -> str:
    """Ask who serves the launch's endpoint: whom a pin on the peer would hold, if that is accepted, or ``""``."""
    if _is_copied(world, launch):
        return ""
    if launch.vmm == SERVING and not launch.away and not state.hidden:
        return VMM
    if state.stranger_serves and Guard.PROBE_VERIFIED not in world.guards:
        return STRANGER
    return ""


def has_exited(launch: Launch, pin: str) -> bool:
    """Tell whether the pinned process's exit event has come; a stranger's may come at any time."""
    return pin != VMM or launch.vmm not in LIVE


def is_unidentified(state: State, number: int) -> bool:
    """Tell whether nothing on disk says which process the launch's VMM is."""
    disk = state.disk
    return number != disk.record and not (number == disk.journal and disk.identity)
