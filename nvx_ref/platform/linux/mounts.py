"""Which files can be reached below a directory, however they are mounted there."""

from __future__ import annotations

import re
import sys

from nvx_ref.platform.contract import Reach
from nvx_ref.platform.failures import failure

assert sys.platform == "linux"

_ESCAPE = re.compile(rb"\\([0-7]{3})")
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
    return [Reach(row[2].decode("ascii"), _text(row[3]), _text(row[4])) for row in rows if len(row) > _FIELDS]


def _text(field: bytes) -> str:
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), field).decode("utf-8", "surrogateescape")
