"""Directories of runs that were killed: the next run removes them, once it is proven that nobody is in there any more.

Every process of a run holds a shared lock on a directory of that name in the run's own; the kernel lets go of it with
the process, however that ends. A directory without one is of unknown age and origin, and is left alone.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from typing import TYPE_CHECKING

from harness import leftovers, witness
from harness.settings import runs_directory

if TYPE_CHECKING:
    from harness.witness.contract import Host

OWNED = ".owned"

_held: dict[str, int] = {}


def claim(session: str) -> None:
    """Make a run's directory, if it isn't there yet, and hold it for as long as this process lives."""
    os.makedirs(os.path.join(session, OWNED), mode=0o700, exist_ok=True)
    if sys.platform == "win32":
        return
    if session in _held:
        return
    import fcntl  # noqa: PLC0415 - not on Windows

    _held[session] = os.open(os.path.join(session, OWNED), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(_held[session], fcntl.LOCK_SH)


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
    if sys.platform == "win32":
        return []
    place, system = root or runs_directory(), host or witness.host()
    return [path for path in leftovers.sessions(place) if _is_ours(path) and _sweep(path, system)]


def _is_ours(path: str) -> bool:
    if sys.platform == "win32":
        return False
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _sweep(path: str, host: Host) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl  # noqa: PLC0415 - not on Windows

    try:
        held = os.open(os.path.join(path, OWNED), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # What is mounted there belongs to somebody else, and a VMM that outlived its run is for a person to look at.
        if host.mounts(path) or _inhabited(path, host):
            return False
        for name in sorted(os.listdir(path)):
            if name not in {leftovers.EVIDENCE, OWNED}:
                shutil.rmtree(os.path.join(path, name), ignore_errors=True)
        os.rmdir(os.path.join(path, OWNED))
        if not os.listdir(path):
            os.rmdir(path)
    except OSError:
        # Somebody holds it, or came in at this moment.
        return False
    finally:
        os.close(held)
    return True


def _inhabited(path: str, host: Host) -> bool:
    inside = path + os.sep
    return any(inside in word for pid in host.processes() for word in host.arguments(pid))
