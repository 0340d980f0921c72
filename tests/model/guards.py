"""What the protocol relies on, each of it removable, and what may go wrong in a world.

A guard is one decision of the specification or of the design. The model takes any of them out, and then finds the
shortest way into trouble; a guard for which it finds none would be a rule without a reason.
"""

from __future__ import annotations

from enum import StrEnum


class Guard(StrEnum):
    """One rule of the protocol; the comment under each names where it comes from."""

    # An enum's own hash is Python code, and these are looked up some million times in one check.
    __hash__ = str.__hash__

    MARKER_FIRST = "the marker is written before the spawn"
    """620.scope2.a; design, always true 2."""
    CLAIM_FIRST = "the claim is taken before the marker is written"
    """Design, always true 2."""
    LOG_RECHECK = "after claiming, the log's name is compared with the claimed file"
    """Design, always true 3."""
    CLAIM_INHERITED = "the VMM inherits the claim on its log"
    """620.scope2.c; design, always true 3."""
    LAUNCH_ID = "journal and runtime record are compared by launch id"
    """Design, always true 2: the same id is a commit cut short, and nothing is killed."""
    JOURNAL_LAST = "the commit removes the journal after the runtime record is written"
    """656.launch.d; design, always true 2."""
    MARKER_BOOT = "the marker says in which boot it was written"
    """620.scope3.n, for a journal without a process: found by this model, see ``Fault.REBOOT``."""
    CLAIM_ON_OBJECT = "the claim counts on the very file that was claimed"
    """Design, always true 3; case T07a."""
    CLAIM_RECHECK = "a held claim is looked at again for a second"
    """656.recheck; case T40."""
    LAUNCH_RECHECK = "a launch and a removal look at a held claim again for a second, too"
    """Design, always true 3: "also by ``begin_launch``"."""
    CLAIM_BARS = "neither a launch nor a removal goes on while a process has the log"
    """620.scope6.g; design, always true 3: "also by begin_launch"."""
    PROBE_VERIFIED = "a server of the endpoint has to have the claimed log"
    """620.scope2.e; case T14."""
    RECOVER_FIRST = "an operation recovers before it decides"
    """656.reattach.b; design, always true 2."""
    UNKNOWN_NOT_EXITED = "what can't be told isn't taken for exited"
    """656.reattach.d; design, always true 4."""
    UNKNOWN_KEEPS = "what can't be told keeps every record"
    """656.reattach.d; design, always true 4."""
    UNKNOWN_NOT_LIVE = "what can't be told isn't taken for live"
    """Design, always true 4; case T03."""
    VERIFIED = "a process is compared with the record before it is acted on"
    """620.scope3.p; design, always true 1; case T01."""
    PINNED = "a signal goes through the pin, not to the number"
    """Design, always true 1; case T06."""
    PIDFS_INODE = "the pidfs inode decides where two processes share number and start tick"
    """Design, always true 1; case T02."""
    SECOND_WITNESS = "without a pidfs inode a free claim says that the process is another one"
    """Case T02, kernels without pidfs inodes."""
    WITNESS_RECHECK = "that free claim is looked for for a second, too"
    """656.recheck, found by this model: a fork would make a stranger the VMM."""
    HAS_LOG = "where that claim isn't free either, the process has to have the launch's log"
    """Case T02, found by this model: whoever else has the log, it isn't the stranger."""
    PID_NAMESPACE = "a number of another PID namespace isn't asked"
    """Design, verdicts of reattach, second row."""
    BOOT_CHECK = "a record of an earlier boot is exited before any process is looked at"
    """620.scope3.n; case T04."""
    COPIED = "a record of another directory's launch, of which this one has neither endpoint nor log, is nobody's"
    """Decision 0010: a copy's stop would end the original's VM."""
    EXIT_BEFORE_CLEAR = "files go once the exit was seen, not once the signal was sent"
    """Design, always true 8."""
    RECORD_LAST = "of the runtime files the record goes last"
    """Design, always true 8; story N8 of the contract."""
    CLEAR_CHECKS_LAUNCH = "clearing leaves the record of another launch alone"
    """656.stop.e."""
    INSPECT_ORDER = "an inspection without lock reads the journal before the runtime record"
    """Design, verdicts of reattach: ``inspect()``; the order was found by this model."""
    LOCK_RECHECK = "after locking, the name is compared with the locked file"
    """620.acc.14; case T41a."""
    UNLINKED_IS_REMOVED = "a waiter whose lock file has lost its name was waiting for a removed sandbox"
    """620.scope6.e; case T41."""
    FRESH_LOCK = "a provision replaces the lock file by one of its own"
    """620.scope6.e, after a crash of the removal: found by this model."""
    UNLOCKED = "a release unlocks, it doesn't only close"
    """656.recheck's window seen from the lock."""
    CHILD_KEEPS_LOCK = "a forked child closes its copy of the lock, it doesn't unlock"
    """656.recheck's window seen from the lock."""
    FOREIGN_FIRST = "a removal looks for foreign entries before it deletes anything"
    """620.scope6.i."""
    CONFIG_LATE = "a removal deletes the configuration after everything that a launch left"
    """Design, always true 8."""
    RMDIR_ONLY = "once its lock is released, a removal deletes nothing but an empty directory"
    """620.scope6.l; case T19."""
    RELEASE_FIRST = "a removal lets go of its lock file before it removes the directory"
    """620.scope6.k."""


class Fault(StrEnum):
    """What may happen at any moment of a world, any number of times, besides crashes and exits of the VMM."""

    __hash__ = str.__hash__

    FORK = "another thread forks a child that holds copies of lock and claim until its exec"
    ROTATE = "somebody moves the log away, with or without a new file in its place"
    REUSE = "a VMM's number, after its exit, goes to a stranger, perhaps within the same start tick"
    NO_PIDFS = "the kernel has no pidfs inodes"
    HIDDEN = "processes can't be examined for a while"
    NAMESPACE = "the orchestrators restart in another PID namespace"
    REBOOT = "the host restarts; files that aren't durable may be lost, and device numbers change"
    WORKER = "a descendant of the VMM outlives it and keeps the log"
    STRANGER_SERVES = "a stranger's process answers at the endpoint"
    DISK = "a write of the identity fails, a journal can't be deleted"
    FOREIGN = "somebody puts a file of their own into the directory"
    COPY = "somebody copies the directory, and the copy is the sandbox from then on"
    LINGER = "a deleted file that is still open keeps its directory"


class Op(StrEnum):
    """What an idle orchestrator may begin."""

    __hash__ = str.__hash__

    PROVISION = "provision"
    START = "start"
    STOP = "stop"
    REATTACH = "reattach"
    REMOVAL = "removal"
    INSPECT = "inspect"
    HANDLE = "handle"
    """A start whose caller keeps the VMM's handle after it has released the lock, and stops by it later."""
