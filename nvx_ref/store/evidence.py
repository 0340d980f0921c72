"""One judgement about a recorded process, shared by recovery, reattach and inspection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvx_ref.errors import Indeterminate
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.platform import process as system
from nvx_ref.platform.contract import ProcessGone
from nvx_ref.process import ProcessRef
from nvx_ref.store import names
from nvx_ref.store.claim import Claim, look, settle

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.platform import files
    from nvx_ref.platform.contract import FileId, ProcessIdentity
    from nvx_ref.store.records import Journal

FOREIGN_NAMESPACE = "pid-namespace"
"""The ``detail`` of a process that was recorded in another PID namespace: its number means nothing here."""


def examine(
    directory: files.Directory, process: ProcessIdentity, log: FileId, endpoint: str, deadline: Deadline | None
) -> ProcessRef | None:
    """Find a recorded VMM again.

    Args:
        directory: The sandbox's directory.
        process: The recorded identity.
        log: The recorded log.
        endpoint: The recorded endpoint.
        deadline: By when; a held claim is looked at again for a second of that. None: one look.

    Returns:
        A verified reference, which the caller closes, or None if the VMM has provably exited: its boot is over, its
        number is free or another's, it has ended, or, where the process itself can't tell (its PID namespace is
        another one, or the kernel has no pidfs inodes), its log's claim is free.

    Raises:
        Indeterminate: Neither could be proven. Nothing was signalled.
    """
    if process.boot != system.boot_identity():
        return None
    try:
        found = ProcessRef.open(process)
    except Indeterminate as error:
        if error.detail != FOREIGN_NAMESPACE:
            raise
        if _claim(directory, log, deadline) is Claim.FREE:
            return None
        raise
    if found is None:
        return None
    try:
        _require_own(found, directory, log, endpoint)
        known = process.pidfs_inode is not None and found.identity.pidfs_inode is not None
        same = known or _has_witness(found, directory, log, deadline)
    except BaseException:
        found.close()
        raise
    if not same:
        found.close()
        return None
    return found


def is_copied(directory: files.Directory, log: FileId, endpoint: str) -> bool:
    """Tell whether a record was written in another directory, of which this one is a copy.

    A directory that was renamed still has the log, and one whose log was rotated still has the endpoint.
    """
    if not endpoints.is_elsewhere(endpoint, directory.path):
        return False
    found = directory.stat(names.LOG)
    return found is None or found.id != log


def _require_own(found: ProcessRef, directory: files.Directory, log: FileId, endpoint: str) -> None:
    if is_copied(directory, log, endpoint):
        raise Indeterminate(
            f"a record here is of another directory's VM (process {found.identity.pid}, {endpoint}), so this seems to "
            "be a copy of that",
            hint="in a copy, remove launch.json and runtime.json; a sandbox that was moved goes back to its place",
            detail="copied",
        )


def require_unclaimed(directory: files.Directory, deadline: Deadline | None) -> None:
    """Raise if some process has a log of which no record says whose it is.

    What a VMM started may outlive it, and its record, with all that it inherited. A launch is refused until it ends.

    Args:
        directory: The sandbox's directory.
        deadline: By when; a held claim is looked at again for a second of that. None: one look.

    Raises:
        Indeterminate: It is so (``claim-held``).
    """
    log = directory.stat(names.LOG)
    if log is not None and _claim(directory, log.id, deadline) is Claim.HELD:
        raise Indeterminate(
            "nothing is recorded, and some process still has the log of an earlier launch, so a VMM may run",
            subject=directory.child_path(names.LOG),
            hint="find and end the process that has it open",
            detail="claim-held",
        )


def is_of_earlier_boot(journal: Journal) -> bool:
    """Tell whether a launch was begun in an earlier boot, so that no process of it is left (620.scope3.n).

    Nothing else tells so for one without a process: its log may be lost with the boot, and the log's device may have
    another number in the next one. A marker that doesn't name its boot is judged by the claim.
    """
    boot = journal.boot if journal.process is None else journal.process.boot
    return boot is not None and boot != system.boot_identity()


def _has_witness(found: ProcessRef, directory: files.Directory, log: FileId, deadline: Deadline | None) -> bool:
    """Ask the log whether a process with the recorded number and start time is the recorded one.

    Start ticks are equal in most forced reuses of a number, and this kernel gives no number that is never reused.
    The VMM would hold the claim, so a free one says that it has exited; and it has its log as its output, so a
    process that hasn't is another one, whoever holds the claim by then.

    Raises:
        Indeterminate: The claim is held, or proves nothing, and the process hasn't the log: the VMM may have exited
            or not. Or the process can't be looked at.
    """
    if _claim(directory, log, deadline) is Claim.FREE:
        return False
    try:
        has_log = found.holds_output(log)
    except ProcessGone:
        return False
    if has_log:
        return True
    if found.has_exited():
        return False
    raise Indeterminate(
        "it has the recorded number and start time, and not the launch's log, which may be another process's by now",
        subject=f"process {found.identity.pid}",
        hint="find and end the process that has openvmm.log open",
        detail="no-witness",
    )


def _claim(directory: files.Directory, log: FileId, deadline: Deadline | None) -> Claim:
    return look(directory, log) if deadline is None else settle(directory, log, deadline)
