"""What test runs left on this machine: processes, sockets or pipes, mounts, state. After a nightly run nothing may."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from harness import witness
from harness.platform import left_pipes, owner_of
from harness.settings import runs_directory

if TYPE_CHECKING:
    from harness.witness.contract import Host

SESSION = re.compile(r"nvx-[0-9a-f]{8}")
"""The name of a run's directory."""

EVIDENCE = "evidence"
PROGRAMS = frozenset({"openvmm", "openvmm.exe"})
SHOWN = 4
"""How many words of a command are shown."""


def sessions(root: str) -> list[str]:
    """Return the directories of this user's runs."""
    return [path for path in _all_sessions(root) if owner_of(path) is None]


def find(host: Host | None = None, root: str | None = None) -> list[str]:
    """Return everything that this user's runs left, one line each.

    Args:
        host: The operating system's half.
        root: Where directories of runs are.
    """
    system, place = host or witness.host(), root or runs_directory()
    found = [f"process {pid}: {words}" for pid, words in _processes(system, place) if system.owner(pid) is None]
    for path in sessions(place):
        found += [f"mount {point}" for point in system.mounts(path)]
        found += [f"socket {socket}" for socket in system.sockets(path)]
        found += [f"state {os.path.join(path, name)}" for name in _names(path) if name != EVIDENCE]
    return found + [f"pipe {name}" for name in left_pipes()]


def others(host: Host | None = None, root: str | None = None) -> list[str]:
    """Return what other users have here, one line for each: it may run, and is theirs to judge.

    Args:
        host: The operating system's half.
        root: Where directories of runs are.
    """
    system, place = host or witness.host(), root or runs_directory()
    owners = [owner_of(path) for path in _all_sessions(place)]
    busy = [system.owner(pid) for pid, _ in _processes(system, place)]
    names = sorted({name for name in [*owners, *busy] if name is not None})
    return [
        f"{_count(owners.count(name), 'run')} and {_count(busy.count(name), 'process', 'es')} of {name}"
        for name in names
    ]


def keep(target: str, root: str | None = None) -> int:
    """Copy the evidence of failures out of the directories of runs.

    Args:
        target: Where it goes, made if there is any.
        root: Where directories of runs are.

    Returns:
        How many runs had some.
    """
    count = 0
    for path in sessions(root or runs_directory()):
        kept = os.path.join(path, EVIDENCE)
        if os.path.isdir(kept):
            _copy(kept, os.path.join(target, os.path.basename(path)))
            count += 1
    return count


def _copy(kept: str, target: str) -> None:
    for place, _, names in os.walk(kept, onerror=_unless_gone):
        into = os.path.join(target, os.path.relpath(place, kept))
        os.makedirs(into, exist_ok=True)
        for name in names:
            # A run that goes on removes what it kept of a test that passes.
            with suppress(FileNotFoundError):
                shutil.copy2(os.path.join(place, name), os.path.join(into, name))


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _all_sessions(root: str) -> list[str]:
    return [os.path.join(root, name) for name in _names(root) if SESSION.fullmatch(name)]


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        # A run has ended meanwhile, or there was none.
        return []


def _processes(host: Host, root: str) -> list[tuple[int, str]]:
    inside = os.path.join(root, "nvx-")
    found: list[tuple[int, str]] = []
    for pid in host.processes():
        words = host.arguments(pid)
        if pid == os.getpid() or not words:
            continue
        is_vmm = os.path.basename(words[0]) in PROGRAMS
        if is_vmm or any(word.startswith(inside) and SESSION.match(os.path.relpath(word, root)) for word in words):
            found.append((pid, " ".join(words[:SHOWN])))
    return found


def _count(number: int, word: str, ending: str = "s") -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}{ending}"
