"""What the tests' own processes and faults need of the operating system, under one name on each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import wine

if sys.platform == "win32":
    from system.windows import (
        KILLED,
        ODD_NAME,
        PYTHON,
        SLOWER,
        SOCKETS,
        SYNC,
        WAYS,
        Lifeline,
        as_inherited,
        end_at_once,
        environment,
        freeze,
        listen,
        open_descriptors,
        refuse_removal,
        short_root,
        start_with,
        thaw,
    )
else:
    from system.linux import (
        KILLED,
        ODD_NAME,
        PYTHON,
        SLOWER,
        SOCKETS,
        SYNC,
        WAYS,
        Lifeline,
        as_inherited,
        end_at_once,
        environment,
        freeze,
        listen,
        open_descriptors,
        refuse_removal,
        short_root,
        start_with,
        thaw,
    )

__all__ = [
    "FIFO",
    "KILLED",
    "ODD_NAME",
    "PYTHON",
    "SLOWER",
    "SOCKETS",
    "SYNC",
    "WAYS",
    "Lifeline",
    "as_inherited",
    "end_at_once",
    "environment",
    "forks",
    "freeze",
    "listen",
    "only_linux",
    "open_descriptors",
    "refuse_removal",
    "short_root",
    "start_with",
    "symlink",
    "thaw",
    "unix",
]


def unix(reason: str) -> pytest.MarkDecorator:
    """Skip a test on Windows, for a reason."""
    return pytest.mark.skipif(sys.platform == "win32", reason=f"Windows: {reason}")


def only_linux(reason: str) -> None:
    """Skip a module on Windows, before it imports what only Linux has."""
    if sys.platform == "win32":
        pytest.skip(f"Windows: {reason}", allow_module_level=True)


forks = unix("there is no fork")
FIFO = pytest.param("fifo", marks=unix("there are no FIFOs"))


def symlink(path: Path, target: str | Path) -> None:
    """Make a symbolic link; skips where this user may not, and under Wine, where it would be none, the test fails."""
    if wine.version() is not None:
        pytest.xfail(f"Wine: {wine.NO_LINKS}")
    try:
        path.symlink_to(target)
    except OSError as error:
        if sys.platform != "win32":
            raise
        pytest.skip(f"this user may not make links: {error}")
