"""The lifecycle lock: one holder per sandbox, through removals and new provisions of the same name.

A lock on a file proves something only while the sandbox's path still leads to that file, so each holder looks again
*after* it has the lock. A lock file lives as long as its sandbox: it is unlinked only where there is no configuration,
and a provision never takes one over, it puts a new one in its place. So who waited for a file that has lost its name
by then knows that the sandbox was removed, even if the name has been provisioned anew.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from nvx_ref.deadline import Deadline
from nvx_ref.errors import AlreadyExists, Busy, NotFound, NvxError
from nvx_ref.platform import files
from nvx_ref.platform.descriptors import let_go
from nvx_ref.store import names


class Held(NamedTuple):
    """A taken lock.

    Args:
        directory: The sandbox's directory.
        fd: The locked file.
        created: Whether taking it created the directory.
    """

    directory: files.Directory
    fd: int
    created: bool


def take_provision(path: str, configuration: str, deadline: Deadline) -> Held:
    """Take the lock of a sandbox that may not exist; a directory that a removal deletes meanwhile is re-created.

    Without a configuration the lock is a new file. One that was there may be the lock of a sandbox whose removal was
    cut short, and whoever still waits for that must not get this one.

    Args:
        path: The sandbox's directory.
        configuration: The name with which the sandbox is provisioned already.
        deadline: By when.

    Raises:
        Busy: Another transition held it until the deadline.
        Refused: The path or the lock's name is something else. It is untouched.
    """
    while True:
        with contextlib.suppress(NotFound):
            directory, created = files.create_private(path)
            held = _try(directory, deadline, created=created)
            if held is not None and not _is_provisioned(directory, held.fd, configuration):
                held = _renew(held, configuration)
            if held is not None:
                return held
        _again(path, deadline)


def take_existing(path: str, configuration: str | None, deadline: Deadline) -> Held:
    """Take the lock of an existing sandbox; never creates its directory.

    Args:
        path: The sandbox's directory.
        configuration: The name without which the sandbox isn't provisioned; None takes what a removal left, too.
        deadline: By when.

    Raises:
        NotFound: It doesn't exist, or was removed while this waited. No lock file is left behind.
        Busy: Another transition held it until the deadline.
        Refused: The path or the lock's name is something else. It is untouched.
    """
    while True:
        directory = _open(path, configuration)
        with contextlib.suppress(NotFound):
            held = _try(directory, deadline, created=False)
            break
        # The directory was deleted between its opening and the lock file's.
        _again(path, deadline)
    if held is None:
        raise NotFound("the sandbox was removed", subject=path, detail="removed")
    if not _is_provisioned(held.directory, held.fd, configuration):
        release(held, configuration)
        raise not_provisioned(path)
    return held


def _open(path: str, configuration: str | None) -> files.Directory:
    try:
        directory = files.open_private(path)
    except NotFound:
        raise not_provisioned(path) from None
    # Looked at before the lock file is opened, which creates it: nothing is left where no sandbox is.
    if not _is_provisioned(directory, -1, configuration):
        directory.close()
        raise not_provisioned(path)
    return directory


def _is_provisioned(directory: files.Directory, fd: int, configuration: str | None) -> bool:
    try:
        return configuration is None or directory.stat(configuration) is not None
    except BaseException:
        _drop(directory, fd)
        raise


def not_provisioned(path: str) -> NotFound:
    """Return the error for a sandbox that isn't there."""
    return NotFound("no sandbox is provisioned here", subject=path, hint="provision it first", detail="not-provisioned")


def _again(path: str, deadline: Deadline) -> None:
    if not deadline.pause():
        raise _busy(path)


def _busy(path: str) -> Busy:
    return Busy(
        "another transition of this sandbox is still in progress",
        subject=path,
        hint="wait for it, or allow a longer timeout",
        detail="locked",
    )


def _try(directory: files.Directory, deadline: Deadline, *, created: bool) -> Held | None:
    """Take the lock in one directory; None, and the directory is closed, if the file has lost its name meanwhile."""
    fd = -1
    try:
        fd = directory.open_lock(names.LOCK)
        _wait(directory, fd, deadline)
        current = directory.is_current() and files.names_file(directory, names.LOCK, fd)
    except BaseException:
        if created:
            # Only if it is empty: whoever has made a lock file in it meanwhile keeps it.
            with contextlib.suppress(NvxError):
                directory.remove_self()
        _drop(directory, fd)
        raise
    if current:
        return Held(directory, fd, created)
    _drop(directory, fd)
    return None


def _renew(held: Held, configuration: str) -> Held | None:
    """Put a new lock file in the place of the held one; locked before it has the name, so nobody comes in between.

    After a crash the old or the new file has the name, and a temporary one may stay.

    Returns:
        The new lock; None, and everything is let go of, where the file system replaces an open file in two steps and
        somebody has made a lock file of their own between them.
    """
    directory = held.directory
    temporary = names.temporary(names.LOCK)
    fd = -1
    try:
        fd = directory.open_lock(temporary)
        try:
            # Nobody else knows the name, so there is nothing to wait for.
            _wait(directory, fd, Deadline(0.0))
            directory.rename(temporary, names.LOCK)
        except BaseException:
            with contextlib.suppress(NvxError):
                directory.remove(temporary)
            raise
    except BaseException as error:
        if fd >= 0:
            let_go(fd)
        release(held, configuration)
        if isinstance(error, AlreadyExists):
            return None
        raise
    # Also for the copies of children that another thread forked and that haven't reached their exec.
    with contextlib.suppress(NvxError):
        files.unlock(held.fd)
    let_go(held.fd)
    return Held(directory, fd, held.created)


def _wait(directory: files.Directory, fd: int, deadline: Deadline) -> None:
    while not files.try_lock(fd):
        if not deadline.pause():
            raise _busy(directory.path)


def _drop(directory: files.Directory, fd: int) -> None:
    if fd >= 0:
        let_go(fd)
    directory.close()


def release(held: Held, configuration: str | None) -> None:
    """Release the lock; from a directory without configuration its own lock file goes as well (620.scope6.f).

    A directory that taking the lock created, and that is empty by then, goes too: a provision that failed leaves
    nothing.

    Args:
        held: The lock.
        configuration: The configuration's name; None keeps the lock file whatever is there.
    """
    emptied = False
    try:
        if configuration is not None and held.directory.stat(configuration) is None:
            if held.directory.is_current() and files.names_file(held.directory, names.LOCK, held.fd):
                held.directory.remove(names.LOCK)
            emptied = held.created
    finally:
        # Also for the copies of children that another thread forked and that haven't reached their exec. Should that
        # fail, the lock goes with the descriptor, and what was done under it is done.
        with contextlib.suppress(NvxError):
            files.unlock(held.fd)
        let_go(held.fd)
        # Only now: where a removed file keeps its name until it is closed, the lock file would be in the way.
        try:
            if emptied:
                held.directory.remove_self()
        finally:
            held.directory.close()
