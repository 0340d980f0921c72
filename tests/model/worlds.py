"""The worlds that are checked, and for each guard the one in which it is missed.

A world's operations and faults may happen any number of times and at any moment, crashes and exits of the VMM as
well; only the number of orchestrators is bounded. What is left out of a world is checked in another one.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model import properties as promises
from tests.model.guards import Fault, Guard, Op
from tests.model.moves import World
from tests.model.properties import Property
from tests.model.state import beginning

ALL = frozenset(Guard)

LAUNCHES = (Op.START, Op.STOP, Op.REATTACH)
INSPECTIONS = (Op.START, Op.STOP, Op.INSPECT)
HANDLES = (Op.START, Op.STOP, Op.HANDLE)
REMOVALS = (Op.PROVISION, Op.REATTACH, Op.REMOVAL)
EVERYTHING = (Op.PROVISION, Op.START, Op.STOP, Op.REMOVAL)


def world(*faults: Fault, ops: tuple[Op, ...] = LAUNCHES, orchestrators: int = 2) -> World:
    """Return a world with every guard in force; without removal, it begins with a provisioned sandbox."""
    if {Op.HANDLE, Op.REMOVAL} <= set(ops):
        raise ValueError("a kept handle takes the lock back in one step, which a world with removals hasn't")
    return World(ALL, frozenset(faults), ops, beginning(orchestrators, provisioned=Op.REMOVAL not in ops))


QUICK = {
    "launches": world(Fault.FORK, Fault.DISK),
    "inspections": world(Fault.DISK, ops=INSPECTIONS),
    "handles": world(Fault.FORK, Fault.DISK, ops=HANDLES),
    "three handles": world(ops=HANDLES, orchestrators=3),
    "a moved log": world(Fault.ROTATE, Fault.FORK),
    "a moved log and a stranger's server": world(Fault.ROTATE, Fault.STRANGER_SERVES, Fault.DISK),
    "descendants": world(Fault.WORKER, Fault.FORK, Fault.STRANGER_SERVES),
    "identities": world(Fault.REUSE, Fault.HIDDEN, Fault.REBOOT, Fault.NAMESPACE),
    "no pidfs inodes": world(Fault.REUSE, Fault.NO_PIDFS, Fault.FORK),
    "copies": world(Fault.COPY, Fault.REUSE, Fault.FORK),
    "copies, looked at": world(Fault.COPY, Fault.DISK, ops=INSPECTIONS),
    "copies and moved logs": world(Fault.COPY, Fault.ROTATE, Fault.STRANGER_SERVES, Fault.REBOOT, orchestrators=1),
    "one orchestrator's whole life": world(
        Fault.REBOOT, Fault.ROTATE, Fault.DISK, Fault.FOREIGN, ops=EVERYTHING, orchestrators=1
    ),
    "removals": world(Fault.LINGER, Fault.FOREIGN, Fault.DISK, ops=REMOVALS),
}
"""Some 470,000 transitions: for every run."""

FULL = {
    "whole lives": world(Fault.DISK, Fault.LINGER, ops=EVERYTHING),
    "removals, forks and open files": world(Fault.FORK, Fault.LINGER, ops=REMOVALS),
    "three removals": world(ops=(Op.PROVISION, Op.REMOVAL), orchestrators=3),
    "inspections and handles": world(Fault.DISK, ops=(*INSPECTIONS, Op.HANDLE)),
    "identities and a moved log": world(Fault.REUSE, Fault.HIDDEN, Fault.REBOOT, Fault.NAMESPACE, Fault.ROTATE),
    "one orchestrator, nearly all faults": world(
        Fault.REBOOT, Fault.ROTATE, Fault.DISK, Fault.FORK, Fault.REUSE, ops=EVERYTHING, orchestrators=1
    ),
}
"""Another 1,000,000."""


class Missed(NamedTuple):
    """A guard that is taken out, and what the shortest scenario has to show for it."""

    guard: Guard
    world: World
    promise: Property
    shows: tuple[str, ...]
    """Parts of its lines, in their order; the last one is part of the last line."""
    spec: str


_MARKED = ("start.log_claimed", "start.marker_written", "forks the VMM's process", "crashes")
_RECORDED = ("start.marker_written", "start.spawned", "start.identity_recorded")
_PENDING = ("start.identity_recorded", "kills the VMM", "failed, and the VMM may still run", "the killed VMM is gone")
_REMOVED = ("opens the lock file", "removal.checked", "deletes the configuration")
_SECOND = ("start.marker_written", "forks the VMM's process")

MISSED = (
    Missed(
        Guard.MARKER_FIRST,
        world(),
        promises.TRUTH,
        ("start.log_claimed", "forks the VMM's process", "crashes", "finds no journal", "not running"),
        "620.scope2.a",
    ),
    Missed(
        Guard.CLAIM_INHERITED,
        world(),
        promises.ONE_VMM,
        (*_MARKED, "recover.probed", "finds the launch exited", *_SECOND),
        "620.scope2.c",
    ),
    Missed(
        Guard.LAUNCH_ID,
        world(),
        promises.COMMITTED,
        (
            "start.runtime_written",
            "crashes",
            "an interrupted launch with identity",
            "recover.verified",
            "kills the VMM",
        ),
        "656.launch.d",
    ),
    Missed(
        Guard.JOURNAL_LAST,
        world(),
        promises.TRUTH,
        ("start.endpoint_up", "start.journal_removed", "crashes", "finds no journal", "not running"),
        "656.launch.d",
    ),
    Missed(
        Guard.MARKER_BOOT,
        world(Fault.REBOOT),
        promises.REASON,
        ("start.marker_written", "the host restarts", "without identity", "indeterminate, an unfinished launch"),
        "620.scope3.n",
    ),
    Missed(
        Guard.MARKER_BOOT,
        world(Fault.REBOOT),
        promises.USABLE,
        ("start.marker_written", "the host restarts", "no steps without another crash"),
        "620.scope3.n",
    ),
    Missed(
        Guard.CLAIM_ON_OBJECT,
        world(Fault.ROTATE),
        promises.ONE_VMM,
        (*_MARKED, "the log is moved away and replaced", "finds the launch exited", *_SECOND),
        "620.scope2.d",
    ),
    Missed(
        Guard.CLAIM_RECHECK,
        QUICK["launches"],
        promises.REASON,
        ("start.log_claimed", "forks a child", "the killed VMM is gone", "indeterminate, an unfinished launch"),
        "656.recheck",
    ),
    Missed(
        Guard.LAUNCH_RECHECK,
        world(Fault.FORK),
        promises.REASON,
        ("forks a child", "failed_start.abandoned", "start.recovered", "indeterminate, a process has the log"),
        "656.recheck",
    ),
    Missed(
        Guard.CLAIM_BARS,
        world(Fault.WORKER),
        promises.DESCENDANTS,
        ("a descendant keeps the log", "recover.cleared", "start.log_claimed", *_SECOND),
        "620.scope6.g",
    ),
    Missed(
        Guard.PROBE_VERIFIED,
        world(Fault.STRANGER_SERVES),
        promises.STRANGERS,
        (*_MARKED, "a stranger serves the endpoint", "recover.verified", "kills a stranger"),
        "620.scope2.e",
    ),
    Missed(
        Guard.RECOVER_FIRST,
        world(),
        promises.TRUTH,
        (*_MARKED, "stop.locked", "looks at the runtime record alone", "not running"),
        "656.reattach.b",
    ),
    Missed(
        Guard.UNKNOWN_NOT_EXITED,
        world(),
        promises.TRUTH,
        (*_MARKED, "recover.probed", "takes the launch for exited", "not running"),
        "656.reattach.d",
    ),
    Missed(
        Guard.UNKNOWN_NOT_EXITED,
        world(Fault.ROTATE, Fault.HIDDEN),
        promises.ONE_VMM,
        (*_MARKED, "takes the launch for exited", "the log is moved away", *_SECOND),
        "656.reattach.d",
    ),
    Missed(
        Guard.UNKNOWN_KEEPS,
        world(),
        promises.TRACE,
        (*_MARKED, "finds an interrupted launch without identity", "forgets what it can't tell"),
        "656.reattach.d",
    ),
    Missed(
        Guard.UNKNOWN_NOT_LIVE,
        world(Fault.HIDDEN, Fault.REUSE),
        promises.TRUTH,
        ("start.runtime_written", "the VMM exits", "a stranger gets", "can't be examined any more", "answers: running"),
        "656.reattach.d",
    ),
    Missed(
        Guard.VERIFIED,
        world(Fault.REUSE),
        promises.STRANGERS,
        (*_RECORDED, "a stranger gets the VMM's number", "takes a stranger for", "kills a stranger"),
        "620.scope3.p",
    ),
    Missed(
        Guard.PINNED,
        world(Fault.REUSE),
        promises.STRANGERS,
        (*_RECORDED, "the VMM exits", "a stranger gets the VMM's number", "kills a stranger"),
        "620.scope3.p",
    ),
    Missed(
        Guard.PIDFS_INODE,
        world(Fault.REUSE, Fault.ROTATE),
        promises.USABLE,
        (*_RECORDED, "within the same start tick", "the log is moved away", "no steps without another crash"),
        "656.reattach.g",
    ),
    Missed(
        Guard.SECOND_WITNESS,
        world(Fault.REUSE, Fault.NO_PIDFS),
        promises.USABLE,
        (*_RECORDED, "within the same start tick", "no steps without another crash"),
        "656.reattach.g",
    ),
    Missed(
        Guard.WITNESS_RECHECK,
        QUICK["no pidfs inodes"],
        promises.REASON,
        ("start.marker_written", "forks a child", *_PENDING, "within the same start tick", "answers: indeterminate"),
        "656.recheck",
    ),
    Missed(
        Guard.HAS_LOG,
        world(Fault.REUSE, Fault.NO_PIDFS, Fault.ROTATE),
        promises.STRANGERS,
        ("within the same start tick", "the log is moved away", "recover.verified", "kills a stranger"),
        "656.reattach.g",
    ),
    Missed(
        Guard.PID_NAMESPACE,
        world(Fault.NAMESPACE),
        promises.TRACE,
        (*_RECORDED, "crashes", "another PID namespace", "finds the launch exited", "recover.cleared"),
        "620.scope3.p",
    ),
    Missed(
        Guard.BOOT_CHECK,
        world(Fault.REBOOT, Fault.REUSE),
        promises.STRANGERS,
        (*_RECORDED, "the host restarts", "same start tick and inode", "recover.verified", "kills a stranger"),
        "620.scope3.n",
    ),
    Missed(
        Guard.COPIED,
        world(Fault.COPY),
        promises.STRANGERS,
        ("start.marker_written", "crashes", "the directory is copied", "recover.verified", "kills the VMM"),
        "620.scope3.p",
    ),
    Missed(
        Guard.COPIED,
        world(Fault.COPY),
        promises.TRUTH,
        ("start.runtime_written", "the directory is copied", "answers: running"),
        "620.scope3.p",
    ),
    Missed(
        Guard.EXIT_BEFORE_CLEAR,
        world(),
        promises.FILES,
        (*_RECORDED, "kills the VMM", "takes the signal for the exit", "removes the runtime files"),
        "620.scope6.m",
    ),
    Missed(
        Guard.RECORD_LAST,
        world(),
        promises.RECORD,
        ("start.marker_written", "crashes", "finds the launch exited", "recover.cleared", "crashes"),
        "620.scope6.m",
    ),
    Missed(
        Guard.CLEAR_CHECKS_LAUNCH,
        QUICK["handles"],
        promises.TRACE,
        ("keeps the VMM's handle", "the VMM exits", *_RECORDED, "start.runtime_written", "stop.record_cleared"),
        "656.stop.e",
    ),
    Missed(
        Guard.INSPECT_ORDER,
        QUICK["inspections"],
        promises.TRUTH,
        ("reads no runtime record", "start.runtime_written", "start.journal_removed", "reads no journal", "stopped"),
        "620.scope3.l",
    ),
    Missed(
        Guard.LOCK_RECHECK,
        world(ops=REMOVALS),
        promises.HOLDER,
        ("creates the lock file", "opens the lock file", "provision.locked", "locks the file", "provision.locked"),
        "620.acc.14",
    ),
    Missed(
        Guard.UNLINKED_IS_REMOVED,
        world(ops=REMOVALS),
        promises.REMOVED,
        (*_REMOVED, "provision.locked", "unlinked, and starts over", "provision.configuration", "has the lock"),
        "620.scope6.e",
    ),
    Missed(
        Guard.FRESH_LOCK,
        world(ops=REMOVALS),
        promises.REMOVED,
        (*_REMOVED, "crashes", "provision.locked", "provision.configuration", "has the lock"),
        "620.scope6.e",
    ),
    Missed(
        Guard.CHILD_KEEPS_LOCK,
        world(Fault.FORK),
        promises.HOLDER,
        ("start.locked", "forks a child", "unlocks what it inherited", "start.locked"),
        "620.scope1.b",
    ),
    Missed(
        Guard.FOREIGN_FIRST,
        QUICK["removals"],
        promises.FOREIGN,
        ("somebody puts a file into the directory", "removal.checked", "deletes the configuration"),
        "620.scope6.i",
    ),
    Missed(
        Guard.CONFIG_LATE,
        world(ops=EVERYTHING, orchestrators=1),
        promises.CLEAN,
        ("start.capability_written", "crashes", "deletes the configuration", "crashes", "provision.configuration"),
        "620.scope6.h",
    ),
    Missed(
        Guard.RMDIR_ONLY,
        world(ops=REMOVALS),
        promises.UNDER_LOCK,
        ("removal.lock_unlinked", "provision.configuration", "deletes the configuration"),
        "620.scope6.l",
    ),
    Missed(
        Guard.RMDIR_ONLY,
        QUICK["removals"],
        promises.FOREIGN,
        ("removal.lock_unlinked", "somebody puts a file into the directory", "deletes the foreign entry"),
        "620.scope6.i",
    ),
    Missed(
        Guard.RELEASE_FIRST,
        QUICK["removals"],
        promises.OWN_WAIT,
        ("removal.locked", "removal.lock_unlinked", "gives up: deleted files that are still open"),
        "620.scope6.k",
    ),
    Missed(
        Guard.RELEASE_FIRST,
        QUICK["removals"],
        promises.REMOVABLE,
        ("provision.directory", "no steps without another crash"),
        "620.scope6.k",
    ),
)


class Spared(NamedTuple):
    """A guard that no modelled fault misses, the worlds that show it, and why that is so."""

    guard: Guard
    worlds: tuple[str, ...]
    reason: str


SPARED = (
    Spared(
        Guard.CLAIM_FIRST,
        ("launches", "a moved log"),
        "the claim has to be there before the spawn: a marker without it names a launch that was never spawned",
    ),
    Spared(
        Guard.LOG_RECHECK,
        ("a moved log",),
        "a log that is moved a moment later, with its claim taken, leaves the same launch to be recovered",
    ),
    Spared(
        Guard.UNLOCKED,
        ("launches",),
        "a forked child then keeps the lock until its exec: the next operation waits, and nothing else happens",
    ),
)
"""Kept by the design for clearness or speed; asserted, so that a new fault that misses one of them is seen."""
