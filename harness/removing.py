"""Removing what tests made: what is only to be read goes too, which Windows removes only once it is writable."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
    """Remove what is in a directory, as far as it can be removed, but for some names."""
    for name in sorted(os.listdir(directory)):
        if name not in but:
            shutil.rmtree(os.path.join(directory, name), onerror=_if_possible)


def remove_empty(directory: str) -> None:
    """Remove a directory if it is there and nothing is in it."""
    with suppress(OSError):
        os.rmdir(directory)


def _again(function: Callable[[str], object], path: str, _error: object = None) -> None:
    os.chmod(path, 0o700)
    function(path)


def _if_possible(function: Callable[[str], object], path: str, _error: object = None) -> None:
    if function in {os.unlink, os.rmdir}:
        with suppress(OSError):
            _again(function, path)
