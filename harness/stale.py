"""Directories of runs that were killed: the next run removes them, once it is proven that nobody is in there any more.

Every process of a run holds a shared lock on a directory of that name in the run's own; the kernel lets go of it with
the process, however that ends. A directory without one is of unknown age and origin, and is left alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness import leftovers, witness
from harness.platform import hold_directory, is_own_directory, take_directory
from harness.removing import remove_all, remove_empty
from harness.settings import runs_directory

if TYPE_CHECKING:
    from harness.witness.contract import Host

OWNED = ".owned"

ATTEMPTS = 20
"""How often a run's directory is made again: each run that begins meanwhile can take it away once."""

_held: dict[str, int] = {}


def claim(session: str) -> None:
    """Make a run's directory, if it isn't there yet, and hold it for as long as this process lives.

    Raises:
        OSError: It can't be made or held.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            os.makedirs(os.path.join(session, OWNED), mode=0o700, exist_ok=True)
            if session not in _held and (held := hold_directory(os.path.join(session, OWNED))) is not None:
                _held[session] = held
        except OSError:
            # Until it is held it looks like a killed run's, and another run that begins now may sweep it.
            if not left:
                raise
        else:
            return


def release(session: str) -> None:
    """Let go of a run's directory."""
    if (held := _held.pop(session, None)) is not None:
        os.close(held)


def sweep(root: str | None = None, host: Host | None = None) -> list[str]:
    """Remove what killed runs left, their evidence aside.

    Args:
        root: Where directories of runs are.
        host: The operating system's half.

    Returns:
        The directories that were swept.
    """
    place, system = root or runs_directory(), host or witness.host()
    return [path for path in leftovers.sessions(place) if is_own_directory(path) and _sweep(path, system)]


def _sweep(path: str, host: Host) -> bool:
    held = take_directory(os.path.join(path, OWNED))
    if held is None:
        return False
    try:
        # What is mounted there belongs to somebody else, and a VMM that outlived its run is for a person to look at.
        if host.mounts(path) or _inhabited(path, host):
            return False
        remove_all(path, but=frozenset({leftovers.EVIDENCE, OWNED}))
        remove_empty(os.path.join(path, leftovers.EVIDENCE))
        os.rmdir(os.path.join(path, OWNED))
    except OSError:
        # Somebody came in at this moment.
        return False
    finally:
        # Where a directory goes only with the last handle of it, this one is that.
        os.close(held)
    remove_empty(path)
    return True


def _inhabited(path: str, host: Host) -> bool:
    inside = path + os.sep
    return any(inside in word for pid in host.processes() for word in host.arguments(pid))
