"""Images and boot files that are a scenario's own, to be replaced, rewritten and removed."""

from __future__ import annotations

import contextlib
import os
import shutil

from harness.sandbox import Sandbox
from harness.world import World

ROLES = ("distro", "scratch", "kernel", "initrd")
SPOILT = 1 << 16
"""Bytes at the beginning of a decoy that are of no image, kernel or archive."""


class Files:
    """One sandbox's own copies, each behind a link, as a store of images with a current version has them.

    Args:
        world: The test's world.
        box: A sandbox that isn't provisioned yet; it uses the copies.
        roles: Which files are copied.
    """

    def __init__(self, world: World, box: Sandbox, roles: tuple[str, ...] = ROLES) -> None:
        self.world = world
        self.place = os.path.join(world.root, "images", f"{box.name}-own")
        os.makedirs(self.place, mode=0o700)
        wanted = {**box.request()}
        self.paths: dict[str, str] = {}
        self._sources = {role: str(wanted[role]) for role in roles}
        for role in roles:
            self.paths[role] = os.path.join(self.place, role)
            self._show(self.copy(role, "first"), self.paths[role])
        box.extra.update(self.paths)

    def copy(self, role: str, name: str) -> str:
        """Make one more copy of a file, and return its path."""
        path = os.path.join(self.place, f"{role}.{name}")
        # An earlier copy can't be written to, and may be somewhere else by now.
        with contextlib.suppress(FileNotFoundError):
            self.world.remove(path)
        shutil.copyfile(self._sources[role], path)
        os.chmod(path, 0o600 if role == "scratch" else 0o444)
        return path

    def decoy(self, role: str) -> str:
        """Make a file of the same length that nothing boots from, and return its path."""
        path = self.copy(role, "decoy")
        mode = os.stat(path).st_mode & 0o777
        os.chmod(path, 0o600)
        with open(path, "r+b") as file:
            file.write(b"\xff" * min(SPOILT, os.path.getsize(path)))
        os.chmod(path, mode)
        return path

    def _show(self, path: str, name: str) -> None:
        with contextlib.suppress(OSError):
            os.symlink(path, name)
        if not os.path.lexists(name):
            # Where a user may not make links, as on Windows, there is a file of that name and nothing else.
            os.rename(path, name)

    def object(self, role: str) -> tuple[int, int]:
        """Return which object a role's path leads to now: device and inode."""
        found = os.stat(self.paths[role])
        return found.st_dev, found.st_ino
