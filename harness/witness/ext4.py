"""The ext4 witness: whether a file system was left clean, by one bit of its superblock."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

SUPERBLOCK = 1024
MAGIC_AT = 0x38
MAGIC = b"\x53\xef"
INCOMPATIBLE_AT = 0x60
NEEDS_RECOVERY = 0x4


def shared(path: str) -> BinaryIO:
    """Open a file to be read that a VMM owns: on Windows that takes a reader who minds nobody's deleting it."""
    if sys.platform == "win32":
        from harness.witness.windows import open_shared  # noqa: PLC0415 - only where it can be imported

        return open_shared(path)
    else:  # noqa: RET505 - tells type checkers which half of the world this is
        return open(path, "rb")


def needs_recovery(path: str) -> bool:
    """Tell whether the file system in a file is mounted, or was when its user was killed (contract openvmm 6).

    Raises:
        ValueError: There is no ext4 in it.
    """
    with shared(path) as file:
        file.seek(SUPERBLOCK)
        block = file.read(SUPERBLOCK)
    if block[MAGIC_AT : MAGIC_AT + 2] != MAGIC:
        raise ValueError(f"{path}: no ext4")
    return bool(int.from_bytes(block[INCOMPATIBLE_AT : INCOMPATIBLE_AT + 4], "little") & NEEDS_RECOVERY)
