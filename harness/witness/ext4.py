"""The ext4 witness: whether a file system was left clean, by one bit of its superblock."""

from __future__ import annotations

from harness.platform import open_shared

SUPERBLOCK = 1024
MAGIC_AT = 0x38
MAGIC = b"\x53\xef"
INCOMPATIBLE_AT = 0x60
NEEDS_RECOVERY = 0x4


def needs_recovery(path: str) -> bool:
    """Tell whether the file system in a file is mounted, or was when its user was killed (contract openvmm 6).

    Raises:
        ValueError: There is no ext4 in it.
    """
    with open_shared(path) as file:
        file.seek(SUPERBLOCK)
        block = file.read(SUPERBLOCK)
    if block[MAGIC_AT : MAGIC_AT + 2] != MAGIC:
        raise ValueError(f"{path}: no ext4")
    return bool(int.from_bytes(block[INCOMPATIBLE_AT : INCOMPATIBLE_AT + 4], "little") & NEEDS_RECOVERY)
