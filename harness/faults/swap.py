"""Image swaps: what may happen to a path between a launcher's check and the VMM's open.

Each swap leaves another object under the name, or another content or other times in the same object. It is applied
while the VMM is held before its open, and undone at the test's end if it needs that. What the scenario then judges is
which object the VMM opened, by device and inode, never by name.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.platform import KERNEL

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Swap:
    """One way to change what a path names or holds.

    Attributes:
        name: What it is called in test ids and findings.
        apply: Does it to a path, with the path of a decoy that it may use up; returns what undoes it.
        replaces: Whether the path names another object afterwards; otherwise the object is there and was changed.
    """

    name: str
    apply: Callable[[str, str], Callable[[], None]]
    replaces: bool


def _rename(path: str, decoy: str) -> Callable[[], None]:
    os.replace(decoy, path)
    return _nothing


def _symlink(path: str, decoy: str) -> Callable[[], None]:
    beside = _beside(path)
    os.symlink(decoy, beside)
    os.replace(beside, path)
    return _nothing


def _hard_link(path: str, decoy: str) -> Callable[[], None]:
    beside = _beside(path)
    os.link(decoy, beside)
    os.replace(beside, path)
    return _nothing


def _bind_mount(path: str, decoy: str) -> Callable[[], None]:
    _mount("mount", "--bind", decoy, path)
    # A VMM that a failed scenario has left may hold it: detached, it goes with that, and hides no finding.
    return lambda: _mount("umount", "--lazy", path)


def _rewrite(path: str, decoy: str) -> Callable[[], None]:
    with open(decoy, "rb") as file:
        data = file.read()
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.truncate(0)
        file.write(data)
    return _nothing


def _restore_times(path: str, decoy: str) -> Callable[[], None]:
    del decoy
    found = os.stat(path)
    os.chmod(path, 0o600)
    os.utime(path, ns=(1, 1))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.chmod(path, found.st_mode & 0o777)
    return _nothing


RENAME = Swap("rename", _rename, replaces=True)
SYMLINK = Swap("symlink", _symlink, replaces=True)
HARD_LINK = Swap("hard-link", _hard_link, replaces=True)
BIND_MOUNT = Swap("bind-mount", _bind_mount, replaces=True)
REWRITE = Swap("rewrite", _rewrite, replaces=False)
RESTORE_TIMES = Swap("restore-times", _restore_times, replaces=False)

SWAPS = (RENAME, SYMLINK, HARD_LINK, BIND_MOUNT)
"""What replaces the object under a name."""

CHANGES = (REWRITE, RESTORE_TIMES)
"""What changes the object that a name has: a launch that runs already doesn't notice, the next one refuses."""


def can_mount() -> bool:
    """Tell whether this process may mount here, which a bind mount needs."""
    status = "/proc/self/status"
    if KERNEL != "linux" or not os.path.exists(status):
        return False
    with open(status, encoding="ascii") as file:
        effective = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> 21 & 1)


def _beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".{secrets.token_hex(4)}")


def _mount(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HarnessError(f"{' '.join(command)}: {done.stderr.strip()}")


def _nothing() -> None:
    """Nothing needs to be undone."""
