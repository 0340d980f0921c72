"""Removal: the sandbox's files, its configuration, its lock and its directory, in an order that can be repeated.

Nothing is deleted before everything has been looked at. A removal that is cut short leaves either a provisioned
sandbox, whose removal can be asked for again, or a directory without configuration, which the next removal or
provision takes over.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nvx_ref.errors import AlreadyExists, ForeignEntries, Indeterminate, NvxError, Refused, TimedOut
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileKind
from nvx_ref.platform.descriptors import let_go
from nvx_ref.steps import Step
from nvx_ref.store import claim, cleanup, names
from nvx_ref.store.claim import Claim

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.store.locked import LockedStore

_ORDER = (*cleanup.OF_A_LAUNCH, *cleanup.OF_A_RUN, names.LOG, names.JOURNAL, names.RUNTIME)


def remove(store: LockedStore, deadline: Deadline) -> None:
    """Remove a sandbox; see :meth:`nvx_ref.store.LockedStore.remove`."""
    directory = store.directory
    _require_stopped(store, deadline)
    found = directory.names()
    _require_ours(store, found)
    store.observe(Step.REMOVAL_CHECKED)
    staged = [name for name in found if names.is_staging(name) or names.is_temporary(name)]
    for name in (*staged, *_ORDER, *store.caller.others, store.caller.configuration):
        if directory.remove(name):
            store.observe(Step.REMOVAL_FILE)
    directory.remove(names.LOCK)
    store.observe(Step.REMOVAL_LOCK_UNLINKED)
    # Released before the directory goes: a file system that keeps a deleted file's name while it is open (NFS,
    # Windows) would keep the directory as well.
    store.release_removed()
    if _remove_directory(directory, store.caller, deadline):
        store.observe(Step.REMOVAL_DIRECTORY)


def _require_stopped(store: LockedStore, deadline: Deadline) -> None:
    """Check that no VMM of the sandbox can run (620.scope6.g)."""
    directory = store.directory
    if not store.recovered or directory.stat(names.JOURNAL) is not None:
        raise Refused(
            "whether a VMM of it runs hasn't been settled",
            subject=directory.path,
            hint="recover the sandbox first",
            detail="not-recovered",
        )
    if directory.stat(names.RUNTIME) is not None:
        raise AlreadyExists(
            "a VMM is recorded", subject=store.path_of(names.RUNTIME), hint="stop it first", detail="running"
        )
    log = directory.stat(names.LOG)
    if log is not None and claim.settle(directory, log.id, deadline) is Claim.HELD:
        raise Indeterminate(
            "some process still has it, so a VMM may run",
            subject=store.path_of(names.LOG),
            hint="find and end the process that has it open",
            detail="claim-held",
        )


def _require_ours(store: LockedStore, found: list[str]) -> None:
    """Refuse undeclared names, and declared ones that are something that nobody here creates."""
    strangers = set(names.foreign(found, store.caller))
    for name in found:
        entry = store.directory.stat(name)
        expected = {FileKind.REGULAR, FileKind.SOCKET} if name == names.SOCKET else {FileKind.REGULAR}
        if entry is not None and entry.kind not in expected:
            strangers.add(name)
    if strangers:
        raise _foreign(store.path, strangers, "nothing was removed")


def _foreign(path: str, strangers: set[str], consequence: str) -> ForeignEntries:
    listed = sorted(strangers)
    shown = ", ".join(ascii(name)[1:-1] for name in listed[:10]) + (", ..." if len(listed) > 10 else "")  # noqa: PLR2004
    return ForeignEntries(
        f"it holds what isn't the sandbox's: {shown}; {consequence}",
        names=tuple(listed),
        subject=path,
        hint="move it away, then remove the sandbox again",
        detail="foreign",
    )


def _remove_directory(directory: files.Directory, caller: names.CallerFiles, deadline: Deadline) -> bool:
    """Remove the emptied directory; False if a provision has taken it over instead.

    The lock is released by now, so this may meet its next holders: a waiter that is about to learn that the sandbox
    is gone, a provision, or what one of them left when it was killed.
    """
    while True:
        if directory.remove_self():
            return True
        left = directory.names()
        if caller.configuration in left:
            return False
        strangers = set(names.foreign(left, caller))
        if strangers:
            raise _foreign(directory.path, strangers, "they appeared during the removal, and the rest is gone")
        for name in left:
            if names.is_lingering(name):
                # Busy as long as some process has it open; the next round tries again.
                with contextlib.suppress(NvxError):
                    directory.remove(name)
        with contextlib.suppress(NvxError):
            _take_over(directory, caller)
        if not deadline.pause():
            # With nothing in it: on Windows a program's working directory can't be removed.
            raise TimedOut(
                "everything of it was removed but the directory, which "
                + (f"still holds {', '.join(left)}" if left else "some program works in, or has open"),
                subject=directory.path,
                hint="remove the sandbox again" if left else "leave it in every shell, then remove the sandbox again",
                detail="lingering",
            )


def _take_over(directory: files.Directory, caller: names.CallerFiles) -> None:
    """Remove what a killed waiter or provision left, if nobody holds the lock."""
    if all(names.is_lingering(name) for name in directory.names()):
        return
    fd = directory.open_lock(names.LOCK)
    try:
        if not (files.try_lock(fd) and directory.is_current() and files.names_file(directory, names.LOCK, fd)):
            return
        if directory.stat(caller.configuration) is not None:
            return
        cleanup.remove_staged(directory)
        directory.remove(names.LOCK)
    finally:
        let_go(fd)
