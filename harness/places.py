"""Where a run's files go, and the environment of what it starts."""

from __future__ import annotations

import itertools
import os

from harness import stale
from harness.leftovers import EVIDENCE
from harness.removing import remove_all, remove_empty

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


def clear(session: str) -> None:
    """Let go of a run's directory when no process of the run is left, and remove it but for the evidence in it."""
    stale.release(session)
    # From here on another run that begins may take it for a killed one's, and be faster.
    remove_all(session, but=frozenset({EVIDENCE}))
    remove_empty(os.path.join(session, EVIDENCE))
    remove_empty(session)
