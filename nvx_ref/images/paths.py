"""Paths that are kept, and errors that name them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvx_ref.errors import NvxError, Refused

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_PATH_BYTES = 4095


def kept_path(path: str, *, what: str) -> str:
    """Return the absolute form of a path that a record may keep.

    It is joined, not normalised, so that a symbolic link in it stays visible.

    Args:
        path: As the caller gave it; a relative one is taken from the working directory.
        what: The option or role, for the error.

    Raises:
        Refused: It is empty, too long, holds a NUL, isn't UTF-8, or names a descriptor: those die with their process
            and are never persisted (622.scope3.h).
    """
    if not path or "\0" in path:
        raise Refused("a path is needed, without a NUL", subject=what, detail="path")
    try:
        full = os.path.join(os.getcwd(), path)
        size = len(full.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Refused("its path isn't UTF-8, which records need", subject=repr(path), detail="path") from error
    if size > MAX_PATH_BYTES:
        raise Refused(f"its path is over {MAX_PATH_BYTES} bytes", subject=what, detail="path")
    lexical = os.path.normpath(full)
    if lexical.startswith(("/proc/", "/dev/")) and "/fd/" in lexical:
        raise Refused(
            "a descriptor's path means something in one process only", subject=path, hint="name the file", detail="path"
        )
    return full


@contextmanager
def about(subject: str) -> Generator[None]:
    """Name the file in every error of the family that leaves without a subject."""
    try:
        yield
    except NvxError as error:
        if error.subject is None:
            error.subject = subject
        raise
