"""Exclusive ownership of a file for as long as any process holds its open description."""

from __future__ import annotations

import errno
import fcntl
import os
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
