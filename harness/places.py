"""Where a run's files go, and the environment of what it starts."""

from __future__ import annotations

import itertools
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

from harness import stale

_numbers = itertools.count()


def environment() -> dict[str, str]:
    """Return this process's environment without what would steer what is started."""
    steering = ("NVX_", "PYTHON", "PYTEST_", "COV")
    return {name: value for name, value in os.environ.items() if not name.startswith(steering)}


def make_root(session: str) -> str:
    """Make one test's directory below the session's, and return its path."""
    path = os.path.join(session, f"{os.getpid()}.{next(_numbers)}")
    stale.claim(session)
    os.mkdir(path, 0o700)
    return path


def shown(value: object) -> str:
    """Return a fact as a failure text shows it."""
    return value if isinstance(value, str) else repr(value)


def remove_file(path: str) -> None:
    """Remove a file: one that is only to be read, which Windows doesn't remove, becomes writable first."""
    try:
        os.unlink(path)
    except PermissionError:
        _again(os.unlink, path)


def remove_tree(path: str) -> None:
    """Remove a directory with everything in it, likewise."""
    shutil.rmtree(path, onerror=_again)


def _again(function: Callable[[str], object], path: str, _error: object = None) -> None:
    os.chmod(path, 0o700)
    function(path)
