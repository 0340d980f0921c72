"""Which files can be reached below a directory, however they are mounted there."""

from __future__ import annotations

import os
import re
import sys

from nvx_ref.platform.contract import Reach
from nvx_ref.platform.failures import failure

assert sys.platform == "linux"

_ESCAPE = rb"\\([0-7]{3})"
_FIELDS = 5


def read_mounts() -> list[Reach]:
    """Return what this process has mounted, in the kernel's order: a later one covers an earlier one.

    Raises:
        NvxError: The table can't be read.
    """
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise failure(error, "/proc/self/mountinfo", "read") from error
    rows = [line.split(b" ", _FIELDS) for line in lines]
    found = [Reach(row[2].decode("ascii"), _text(row[3]), _text(row[4])) for row in rows if len(row) > _FIELDS]
    if any(row.point == "/" for row in found):
        return found
    root = _root_by_alias(found)
    return found if root is None else [root, *found]


def _root_by_alias(found: list[Reach]) -> Reach | None:
    """Return what the root shows where no row says it: in a chroot that is no mount point.

    A row that shows a part of the same files tells: the end of its place in the file system leads to the same object
    from the root, so the rest of it is where the root is. Without such a row nothing below the root has a second name
    through a mount, but for one that shows what is around the chroot.
    """
    points = [row.point for row in found]
    for row in found:
        names = [name for name in row.inside.split("/") if name]
        for count in range(len(names)):
            path = "/" + "/".join(names[count:])
            own = any(path == point or path.startswith(f"{point}/") for point in points)
            if not own and _same(path, row.point):
                return Reach(row.device, "/" + "/".join(names[:count]), "/")
    return None


def _same(one: str, two: str) -> bool:
    try:
        first, second = os.lstat(one), os.lstat(two)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _text(field: bytes) -> str:
    return re.sub(_ESCAPE, lambda found: bytes([int(found[1], 8)]), field).decode("utf-8", "surrogateescape")
