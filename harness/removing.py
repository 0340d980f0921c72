"""Removing what tests made: what is only to be read goes too, which Windows removes only once it is writable."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from harness.deadline import Clock, until

if TYPE_CHECKING:
    from collections.abc import Callable


PATIENCE = 5.0
"""Seconds for which what another program has open is tried again: a virus scanner looks at what was just written, and
the file of a program that has just ended is still mapped."""

_IN_THE_WAY = frozenset({5, 32, 145})
"""Access denied, sharing violation, and a directory in which something is that is being deleted."""


def remove_file(path: str) -> None:
    """Remove a file."""
    try:
        os.unlink(path)
    except PermissionError:
        _again(os.unlink, path)


def remove_tree(path: str) -> None:
    """Remove a directory with everything in it."""
    shutil.rmtree(path, onerror=_again)


def remove_all(directory: str, *, but: frozenset[str]) -> None:
    """Remove what is in a directory, if it is there, as far as it can be removed, but for some names."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    for name in names:
        if name not in but:
            shutil.rmtree(os.path.join(directory, name), onerror=_if_possible)


def remove_empty(directory: str) -> None:
    """Remove a directory if it is there and nothing is in it."""
    with suppress(OSError):
        os.rmdir(directory)


def _again(function: Callable[[str], object], path: str, _error: object = None) -> None:
    """Do what failed once more, writable now; what another program of Windows is in the way of, for a while."""
    errors: list[OSError] = []

    def done() -> bool:
        errors.clear()
        try:
            os.chmod(path, 0o700)
            function(path)
        except OSError as error:
            errors.append(error)
        return not errors or getattr(errors[0], "winerror", None) not in _IN_THE_WAY

    until(done, Clock().after(PATIENCE))
    if errors and not isinstance(errors[0], FileNotFoundError):
        raise errors[0]


def _if_possible(function: Callable[[str], object], path: str, _error: object = None) -> None:
    if function in {os.unlink, os.rmdir}:
        with suppress(OSError):
            _again(function, path)
