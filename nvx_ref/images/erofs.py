"""The EROFS superblock, read from a file that may be hostile.

Nothing but the first 64 KiB is read. What is refused here is what a Linux guest with 4 KiB pages couldn't mount from
one read-only block device: foreign magic, a wrong checksum, a block size out of range, incompatible features that
nobody knows, data on further devices, a filesystem longer than its file.
"""

from __future__ import annotations

import struct

import msgspec

from nvx_ref.errors import Malformed
from nvx_ref.images.reading import crc32c, read_at, uuid_text

SUPERBLOCK_OFFSET = 1024
MAGIC = 0xE0F5E1E2
_SIZE = 128
_FORMAT = struct.Struct("<3I2BHQQ4I16s16sIHH")
_CHECKSUM = 0x1
_DEVICE_TABLE = 0x8
_48BIT = 0x80
_KNOWN_INCOMPATIBLE = 0x1FF
_MIN_BITS, _MAX_BITS = 9, 12


class ErofsSuperblock(msgspec.Struct, frozen=True, rename="camel"):
    """What an EROFS image says about itself.

    Args:
        uuid: The filesystem's UUID, lower-case text.
        block_size: In bytes.
        blocks: The filesystem's length in blocks.
        volume_name: Its label, up to the first NUL.
        checksummed: Whether the superblock carries a checksum; it was right then.
        features: The incompatible feature bits.
    """

    uuid: str
    block_size: int
    blocks: int
    volume_name: str
    checksummed: bool
    features: int


def read_erofs(fd: int, *, offset: int = 0, length: int) -> ErofsSuperblock:
    """Read the superblock of an EROFS image.

    Args:
        fd: An open regular file whose position may move.
        offset: Where the filesystem starts in the file, in bytes.
        length: How long the file, or the partition that holds the filesystem, is from there, in bytes.

    Raises:
        Malformed: It isn't an EROFS image that a guest could mount; ``detail`` names the field.
        Refused: The file can't be read.
    """
    if length < SUPERBLOCK_OFFSET + _SIZE:
        raise Malformed(f"too short for an EROFS image: {length} bytes", detail="truncated")
    raw = read_at(fd, offset + SUPERBLOCK_OFFSET, _SIZE, what="EROFS superblock")
    fields = _FORMAT.unpack_from(raw)
    magic, checksum, compatible, bits, _, high = fields[:6]
    blocks, uuid, label, features, extra_devices = fields[9], *fields[12:15], fields[16]
    if magic != MAGIC:
        raise Malformed("not an EROFS image: its magic is missing", detail="magic")
    if not _MIN_BITS <= bits <= _MAX_BITS:
        raise Malformed(f"EROFS block size 2^{bits} is outside 512 to 4,096 bytes", detail="block-size")
    if unknown := features & ~_KNOWN_INCOMPATIBLE:
        raise Malformed(f"EROFS features {unknown:#x} are unknown", detail="features")
    if features & _DEVICE_TABLE and extra_devices:
        raise Malformed(f"its data is on {extra_devices} more devices", detail="devices")
    block_size = 1 << bits
    if features & _48BIT:
        blocks |= high << 32
    if not blocks or blocks > length >> bits:
        raise Malformed(f"EROFS says {blocks} blocks of {block_size} bytes in {length} bytes", detail="truncated")
    checksummed = bool(compatible & _CHECKSUM)
    if checksummed:
        _check(fd, offset, block_size, checksum)
    return ErofsSuperblock(
        uuid=uuid_text(uuid),
        block_size=block_size,
        blocks=blocks,
        volume_name=label.split(b"\0", 1)[0].decode("utf-8", "replace"),
        checksummed=checksummed,
        features=features,
    )


def _check(fd: int, offset: int, block_size: int, expected: int) -> None:
    covered = block_size - SUPERBLOCK_OFFSET if block_size > SUPERBLOCK_OFFSET else block_size
    raw = bytearray(read_at(fd, offset + SUPERBLOCK_OFFSET, covered, what="EROFS superblock"))
    raw[4:8] = bytes(4)
    if crc32c(bytes(raw)) != expected:
        raise Malformed("the EROFS superblock's checksum is wrong", detail="checksum")
