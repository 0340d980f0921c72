"""Giving up descriptors."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

assert sys.platform == "linux"


def let_go(fd: int) -> None:
    """Close a descriptor through which nothing was written.

    Linux frees the number whatever ``close`` answers, and there is no content that an error could be about.
    """
    with suppress(OSError):
        os.close(fd)
