"""Giving up descriptors."""

from __future__ import annotations

import os
from contextlib import suppress


def let_go(fd: int) -> None:
    """Close a descriptor through which nothing was written that isn't known to be safe.

    The number is free whatever the system answers, interrupts included, and there is no content that an error could
    be about: a launch or a stop that has succeeded doesn't fail here.
    """
    with suppress(OSError):
        os.close(fd)
