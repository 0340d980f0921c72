"""One judgement about a recorded process, shared by recovery, reattach and inspection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvx_ref.errors import Indeterminate
from nvx_ref.platform import process as system
from nvx_ref.process import ProcessRef
from nvx_ref.store.claim import Claim, look, settle

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.platform import files
    from nvx_ref.platform.contract import FileId, ProcessIdentity

FOREIGN_NAMESPACE = "pid-namespace"
"""The ``detail`` of a process that was recorded in another PID namespace: its number means nothing here."""


def examine(
    directory: files.Directory, process: ProcessIdentity, log: FileId, deadline: Deadline | None
) -> ProcessRef | None:
    """Find a recorded VMM again.

    Args:
        directory: The sandbox's directory.
        process: The recorded identity.
        log: The recorded log.
        deadline: How long a held claim may be looked at again; None: one look.

    Returns:
        A verified reference, which the caller closes, or None if the VMM has provably exited: its boot is over, its
        number is free or another's, it has ended, or, where the process itself can't tell, its log's claim is free.

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
    # Start ticks are equal in most forced reuses of a number. Where the kernel gives no number that is never
    # reused, a free claim is the second witness: the VMM would hold its log.
    unique = process.pidfs_inode is not None and found.identity.pidfs_inode is not None
    if not unique and look(directory, log) is Claim.FREE:
        found.close()
        return None
    return found


def _claim(directory: files.Directory, log: FileId, deadline: Deadline | None) -> Claim:
    return look(directory, log) if deadline is None else settle(directory, log, deadline)
