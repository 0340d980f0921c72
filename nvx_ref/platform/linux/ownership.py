"""Whose a file is: exclusive ownership of a scratch, and who may write a staged file."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys

from nvx_ref.platform.failures import failure

assert sys.platform == "linux"

OWNERSHIP_OFFSET = 1 << 62
_FLOCK = struct.Struct("@hhqqi4x")


def try_own(fd: int) -> bool:
    """Take a file for this open description, without waiting; False while another description owns it.

    It is a write lock of the open file description on one byte far past any content, so nothing that locks the content
    meets it. It ends when the last copy of the descriptor is closed: the VMM's, once it has inherited one.

    Args:
        fd: A descriptor that may write.

    Raises:
        Refused: The file system doesn't offer such locks.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, OWNERSHIP_OFFSET, 1, 0))
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise failure(error, f"descriptor {fd}", "own") from error
    return True


def staging_fault(path: str) -> str | None:
    """Say why a staged file, or the directory it is in, isn't only this account's to write; None if it is.

    Args:
        path: The file.

    Raises:
        NotFound, Refused: One of the two can't be looked at.
    """
    try:
        directory, file = os.stat(os.path.dirname(os.path.abspath(path))), os.stat(path)
    except OSError as error:
        raise failure(error, path, "look at") from error
    if directory.st_uid != os.geteuid() or stat.S_IMODE(directory.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write to its directory"
    if file.st_uid != os.geteuid():
        return f"it belongs to user {file.st_uid}"
    if stat.S_IMODE(file.st_mode) & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        return "it isn't read-only"
    return None
