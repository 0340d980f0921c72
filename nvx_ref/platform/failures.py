"""One way from the operating system's errors to the family that a caller sees."""

from __future__ import annotations

import errno
import os

from nvx_ref.errors import NotFound, NvxError, Refused

_HINTS = {
    errno.ENOSPC: "free some space on its file system",
    errno.EDQUOT: "free some space or raise this user's quota",
    errno.EROFS: "choose a directory on a writable file system",
    errno.EACCES: "give this user access to it",
    errno.EPERM: "give this user access to it",
    errno.EIO: "check the disk and the kernel's log",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOMEM: "free some memory",
    errno.ELOOP: "replace the link by the file itself",
    errno.ENOTDIR: "a part of the path isn't a directory",
    errno.EISDIR: "move the directory away",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOTSUP: "use a file system that can do it, such as ext4 or NTFS",
    errno.ETXTBSY: "end the program that runs from it",
}


def describe(error: OSError) -> str:
    """Return the system's own words for an error, with its symbol."""
    code: int | None = getattr(error, "winerror", None)
    if code is not None:
        return f"{error.strerror} (Windows error {code})"
    if error.errno is None:
        return str(error)
    return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"


def hint_for(error: OSError) -> str | None:
    """Return what a person can do about an error, where that is known."""
    return _HINTS.get(error.errno) if error.errno is not None else None


def failure(error: OSError, subject: str, doing: str) -> NvxError:
    """Return the error that a caller sees for one of the system's.

    Args:
        error: The system's error.
        subject: The file that it is about.
        doing: What failed, as a verb: ``open``, ``write``.

    Returns:
        :class:`NotFound` where nothing is there, else :class:`Refused`; ``detail`` is the error's symbol.
    """
    kind = NotFound if error.errno == errno.ENOENT else Refused
    symbol = errno.errorcode.get(error.errno) if error.errno is not None else None
    return kind(f"cannot {doing} it: {describe(error)}", subject=subject, hint=hint_for(error), detail=symbol)
