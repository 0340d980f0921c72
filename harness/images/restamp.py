"""Giving a copy of somebody's EROFS image a UUID that is known, so that the same texts hold for every image."""

from __future__ import annotations

import os
import shutil
import struct
import uuid

from harness.errors import HarnessError

SUPERBLOCK, MAGIC, CHECKSUM, FEATURES, UUID = 1024, 0xE0F5E1E2, 4, 8, 48
HAS_CHECKSUM = 1


def is_erofs(path: str) -> bool:
    """Tell whether a file begins as an EROFS image does; a file that can't be read doesn't."""
    try:
        with open(path, "rb") as file:
            file.seek(SUPERBLOCK)
            return file.read(4) == struct.pack("<I", MAGIC)
    except OSError:
        return False


def restamp(source: str, target: str, identity: str) -> None:
    """Copy an EROFS image and set the copy's UUID.

    Args:
        source: The image; it isn't touched.
        target: The copy to be.
        identity: Its UUID.

    Raises:
        HarnessError: The source can't be read, or isn't EROFS.
    """
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise HarnessError(f"{source}: it can't be copied: {error.strerror}") from error
    os.chmod(target, 0o600)
    with open(target, "r+b") as file:
        file.seek(SUPERBLOCK)
        head = bytearray(file.read(128))
        if len(head) < UUID + 16 or struct.unpack_from("<I", head)[0] != MAGIC:
            raise HarnessError(f"{source}: it isn't an EROFS image")
        (features,) = struct.unpack_from("<I", head, FEATURES)
        # A superblock may do without its checksum, and says so.
        struct.pack_into("<I", head, CHECKSUM, 0)
        struct.pack_into("<I", head, FEATURES, features & ~HAS_CHECKSUM)
        head[UUID : UUID + 16] = uuid.UUID(identity).bytes
        file.seek(SUPERBLOCK)
        file.write(head)
