"""A disk that runs full: a small file system of its own below one test's state root."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Self

from harness.errors import Unavailable

if TYPE_CHECKING:
    from harness.world import World

SIZE = "1m"
"""Room for what real VMs log of their boots."""
CHUNK = 4096
FILL = "fill"
"""A file beside the sandboxes, which takes what room there is."""


class SmallDisk:
    """A file system for the sandboxes of a test, for as long as a block lasts.

    Args:
        world: The test's world, in which there is no sandbox yet.

    Raises:
        Unavailable: This user may not mount one.
    """

    def __init__(self, world: World) -> None:
        self._root = world.state
        self._fill = os.path.join(world.state, FILL)
        mount, self._unmount = shutil.which("mount"), shutil.which("umount")
        if mount is None or self._unmount is None:
            raise Unavailable("a disk that runs full", ("mount and umount (package mount)",))
        done = subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "nvx", self._root],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable("a disk that runs full", ("the right to mount one",))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._unmount is not None:
            subprocess.run([self._unmount, "--lazy", self._root], check=True)

    def fill(self) -> None:
        """Leave no room for another byte."""
        descriptor = os.open(self._fill, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while True:
                os.write(descriptor, b"\0" * CHUNK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(descriptor)

    def drain(self) -> None:
        """Make room again."""
        os.unlink(self._fill)
