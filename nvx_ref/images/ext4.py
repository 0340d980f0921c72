"""The ext4 superblock of a scratch image, read from a file that may be hostile."""

from __future__ import annotations

import struct

import msgspec

from nvx_ref.errors import Malformed
from nvx_ref.images.reading import crc32c, read_at, uuid_text

SUPERBLOCK_OFFSET = 1024
MAGIC = 0xEF53
_SIZE = 1024
_NEEDS_RECOVERY = 0x4
_64BIT = 0x80
_METADATA_CHECKSUM = 0x400
_MAX_LOG_BLOCK_SIZE = 6


class Ext4Superblock(msgspec.Struct, frozen=True, rename="camel"):
    """What an ext4 image says about itself.

    Args:
        uuid: The filesystem's UUID, lower-case text.
        block_size: In bytes.
        blocks: The filesystem's length in blocks.
        needs_recovery: Set while it is mounted and after a crash, clear after a clean unmount. It stops no boot.
    """

    uuid: str
    block_size: int
    blocks: int
    needs_recovery: bool


def read_ext4(fd: int, *, length: int) -> Ext4Superblock:
    """Read the superblock of a whole-device ext4 image.

    Args:
        fd: An open regular file whose position may move.
        length: How long the file is, in bytes.

    Raises:
        Malformed: It isn't an ext4 image that fits in its file; ``detail`` names the field.
        Refused: The file can't be read.
    """
    if length < SUPERBLOCK_OFFSET + _SIZE:
        raise Malformed(f"too short for an ext4 image: {length} bytes", detail="truncated")
    raw = read_at(fd, SUPERBLOCK_OFFSET, _SIZE, what="ext4 superblock")
    (magic,) = struct.unpack_from("<H", raw, 0x38)
    if magic != MAGIC:
        raise Malformed("not an ext4 image: its magic is missing", detail="magic")
    (low,) = struct.unpack_from("<I", raw, 0x04)
    (log_size,) = struct.unpack_from("<I", raw, 0x18)
    incompatible, read_only = struct.unpack_from("<2I", raw, 0x60)
    if log_size > _MAX_LOG_BLOCK_SIZE:
        raise Malformed(f"ext4 block size 2^{10 + log_size} is out of range", detail="block-size")
    (high,) = struct.unpack_from("<I", raw, 0x150) if incompatible & _64BIT else (0,)
    blocks = low | high << 32
    if not blocks or blocks > length >> (10 + log_size):
        raise Malformed(f"ext4 says {blocks} blocks of {1024 << log_size} bytes in {length} bytes", detail="truncated")
    (checksum,) = struct.unpack_from("<I", raw, 0x3FC)
    if read_only & _METADATA_CHECKSUM and crc32c(raw[:0x3FC]) != checksum:
        raise Malformed("the ext4 superblock's checksum is wrong", detail="checksum")
    return Ext4Superblock(
        uuid=uuid_text(raw[0x68:0x78]),
        block_size=1024 << log_size,
        blocks=blocks,
        needs_recovery=bool(incompatible & _NEEDS_RECOVERY),
    )
