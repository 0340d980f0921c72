"""Files that a user asked for: known to be writable before anything long begins, and written whole or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Generator

TRIED = 65536
"""Bytes that must fit beside a file that is to be written: a full disk is better known before the work than after."""


@contextmanager
def told_of(option: str, path: str, advice: str) -> Generator[None, None, None]:
    """Tell what the system refuses in the block as an error of an option.

    Args:
        option: The option, or the argument's name.
        path: What was given for it.
        advice: What to do.

    Raises:
        HarnessError: The system refused something.
    """
    try:
        yield
    except OSError as error:
        raise HarnessError(f"{option}: {path}: {error.strerror or error}; {advice}") from error


def said_of(error: Exception) -> str:
    """Return what an error says to a person: what the system refused and for which file, without its number."""
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, str | bytes) else reason


def require_writable(option: str, path: str) -> None:
    """Check that a file can be written later; nothing of it, or beside it, is changed.

    Raises:
        HarnessError: It can't: there is no such directory, no right to, no space, or something else of that name.
    """
    advice = "name another place"
    if not path:
        raise HarnessError(f"{option}: the path is empty; name a file")
    target = os.path.realpath(path)
    above = os.path.dirname(target)
    if not os.path.isdir(above):
        raise HarnessError(f"{option}: {path}: there is no directory {above}; make it, or {advice}")
    if os.path.lexists(target) and not os.path.isfile(target):
        raise HarnessError(f"{option}: {path} is no file that can be written whole; {advice}")
    with told_of(option, f"{path} can't be written", advice):
        if os.path.lexists(target):
            os.close(os.open(target, os.O_WRONLY))
        if not os.path.lexists(target) or os.access(above, os.W_OK):
            os.unlink(_beside(target, b"\0" * TRIED))


def write(option: str, path: str, data: bytes) -> None:
    """Write a file whole: what was there stays until the new one is complete.

    Raises:
        HarnessError: It can't be written.
    """
    target = os.path.realpath(path)
    with told_of(option, f"{path} can't be written", "name another place"):
        if os.path.lexists(target) and not os.access(os.path.dirname(target), os.W_OK):
            with open(target, "wb") as file:
                file.write(data)
            return
        staged = _beside(target, data)
        try:
            os.replace(staged, target)
        except OSError:
            os.unlink(staged)
            raise


def _beside(target: str, data: bytes) -> str:
    """Write a new file beside one, and return its path; nothing stays if it can't be written."""
    staged = f"{target}.{os.urandom(4).hex()}.tmp"
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.unlink(staged)
        raise
    return staged
