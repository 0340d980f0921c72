"""What leads elsewhere, or may: links, and the reparse points of Windows, which junctions are."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


def is_link(status: os.stat_result) -> bool:
    """Tell whether what ``os.lstat`` found is a link or a reparse point; a junction's mode says directory.

    Args:
        status: What it found.
    """
    attributes: int = getattr(status, "st_file_attributes", 0)
    return stat.S_ISLNK(status.st_mode) or bool(attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT)
