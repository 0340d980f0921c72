"""The lifecycle lock: one holder per sandbox, through removals and new provisions of the same name.

A lock on a file proves something only while the sandbox's path still leads to that file, so each holder looks again
*after* it has the lock. A removal marks the lock file before it unlinks it (the tombstone): who had been waiting for
that file learns from the mark that the sandbox is gone, even if the name has been provisioned anew by then.
"""

from __future__ import annotations

import contextlib
import os
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from nvx_ref.errors import Busy, NotFound
from nvx_ref.platform import files
from nvx_ref.platform.failures import failure
from nvx_ref.store import names

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline

_TOMBSTONE = b"removed\n"


class Standing(Enum):
    """What a locked file is worth."""

    CURRENT = auto()
    """The sandbox's path leads to it: this is the lock."""
    REMOVED = auto()
    """The sandbox that it belonged to was removed."""
    STALE = auto()
    """It was unlinked for another reason: look for the current one."""


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


def take_provision(path: str, deadline: Deadline) -> Held:
    """Take the lock of a sandbox that may not exist; a directory that a removal deletes meanwhile is re-created.

    Raises:
        Busy: Another transition held it until the deadline.
        Refused: The path or the lock's name is something else. It is untouched.
    """
    while True:
        with contextlib.suppress(NotFound):
            directory, created = files.create_private(path)
            held, _ = _try(directory, deadline, created=created)
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
        try:
            held, standing = _try(directory, deadline, created=False)
        except NotFound:
            # The directory was deleted between its opening and the lock file's.
            held, standing = None, Standing.STALE
        if standing is Standing.REMOVED:
            raise NotFound("the sandbox was removed", subject=path, detail="removed")
        if held is not None:
            if _is_provisioned(held.directory, held.fd, configuration):
                return held
            release(held, configuration)
            raise not_provisioned(path)
        _again(path, deadline)


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


def _try(directory: files.Directory, deadline: Deadline, *, created: bool) -> tuple[Held | None, Standing]:
    """Take the lock in one directory; closes the directory unless the lock is held."""
    fd = -1
    try:
        fd = directory.open_lock(names.LOCK)
        _wait(directory, fd, deadline)
        standing = _judge(directory, fd)
    except BaseException:
        _drop(directory, fd)
        raise
    if standing is Standing.CURRENT:
        return Held(directory, fd, created), standing
    _drop(directory, fd)
    return None, standing


def _wait(directory: files.Directory, fd: int, deadline: Deadline) -> None:
    while not files.try_lock(fd):
        if not deadline.pause():
            raise _busy(directory.path)


def _drop(directory: files.Directory, fd: int) -> None:
    if fd >= 0:
        os.close(fd)
    directory.close()


def _judge(directory: files.Directory, fd: int) -> Standing:
    marked = is_marked(fd)
    if directory.is_current() and files.names_file(directory, names.LOCK, fd):
        if marked:
            # The removal that left the mark was cut short or failed: the file is the lock again.
            unmark(fd)
        return Standing.CURRENT
    return Standing.REMOVED if marked else Standing.STALE


def mark(fd: int) -> None:
    """Write the tombstone, before the lock file is unlinked for good.

    Best effort: without it (a full disk) a waiter still finds the file unlinked, and looks for the current one.
    """
    with contextlib.suppress(OSError):
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, _TOMBSTONE)


def unmark(fd: int) -> None:
    """Retract the tombstone."""
    files.truncate(fd)


def is_marked(fd: int) -> bool:
    """Tell whether the locked file carries the tombstone; a part of it is none."""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        return os.read(fd, len(_TOMBSTONE) + 1) == _TOMBSTONE
    except OSError as error:
        raise failure(error, names.LOCK, "read") from error


def release(held: Held, configuration: str | None) -> None:
    """Release the lock; from a directory without configuration its own lock file goes as well (620.scope6.f).

    A directory that taking the lock created, and that is empty by then, goes too: a provision that failed leaves
    nothing.

    Args:
        held: The lock.
        configuration: The configuration's name; None keeps the lock file whatever is there.
    """
    try:
        if configuration is not None and held.directory.stat(configuration) is None:
            if held.directory.is_current() and files.names_file(held.directory, names.LOCK, held.fd):
                held.directory.remove(names.LOCK)
            if held.created:
                held.directory.remove_self()
    finally:
        try:
            # Also for the copies of children that another thread forked and that haven't reached their exec.
            files.unlock(held.fd)
        finally:
            _drop(held.directory, held.fd)
