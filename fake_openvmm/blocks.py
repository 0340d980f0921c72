"""Block devices of the machine: opening what an option names, and reading what is in it (contract openvmm 1.2, 6)."""

from __future__ import annotations

import os
import stat
import struct

from fake_openvmm import system
from fake_openvmm.machine import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import Block

SMALL_BLOCK = 512
LARGE_BLOCK = 4096
EROFS_OFFSET = 1024
EROFS_MAGIC = 0xE0F5E1E2
EROFS_CHECKSUM = 1
MAX_ENTRIES = 1 << 20
ENTRY_SIZE = 128


class Unmountable(Exception):  # noqa: N818 - what it says of an image
    """The guest finds something else in an image than what it was told."""


def open_block(block: Block) -> int:
    """Open what a block option names and give a close-on-exec descriptor.

    Raises:
        Failure: it can't be opened, or is neither a regular file nor a block device.
    """
    name = f"{block.role} disk"
    try:
        if block.path is None:
            return system.memory_file(block.memory or 0)
        fd = system.open_image(block.path, writable=not block.readonly, create=block.create is not None)
    except OSError as error:
        raise Failure(f"failed to open {name}: {error.strerror}: {block.path}") from error
    kind = os.fstat(fd).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISBLK(kind)):
        os.close(fd)
        raise Failure(f"failed to open {name}: neither a regular file nor a block device: {block.path}")
    if block.create is not None:
        os.ftruncate(fd, block.create)
    return fd


class Device:
    """An open image as the guest sees it.

    Attributes:
        size: bytes, a tail that fills no logical block cut off.
        block: logical block size in bytes.
    """

    __slots__ = ("block", "fd", "size", "start")

    def __init__(self, fd: int, *, block: int = 0, start: int = 0, size: int | None = None) -> None:
        self.fd = fd
        info = os.fstat(fd)
        self.block = block or (system.logical_block(fd) if stat.S_ISBLK(info.st_mode) else SMALL_BLOCK)
        self.start = start
        whole = os.lseek(fd, 0, os.SEEK_END) if size is None else size
        self.size = whole - whole % self.block

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes at `offset`.

        Raises:
            Unmountable: the device ends before.
        """
        data = system.read_at(self.fd, size, self.start + offset) if offset + size <= self.size else b""
        if len(data) != size:
            raise Unmountable(f"the device ends before byte {offset + size}")
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Write `data` at `offset`, which must lie inside the device."""
        system.write_at(self.fd, data, self.start + offset)


def plain_text(raw: bytes) -> str:
    """The text form of a UUID that is stored in the order in which it is written."""
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def mixed_text(raw: bytes) -> str:
    """The text form of a GUID whose first three parts are stored little-endian."""
    return plain_text(raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:])


def read_erofs(device: Device) -> str:
    """The UUID of the EROFS in `device`.

    Raises:
        Unmountable: no EROFS, or one that a kernel would refuse.
    """
    raw = device.read(EROFS_OFFSET, 128)
    magic, checksum, features, bits = struct.unpack_from("<IIIB", raw)
    if magic != EROFS_MAGIC:
        raise Unmountable("no EROFS superblock")
    if not 9 <= bits <= 12 or 1 << bits < device.block:  # noqa: PLR2004 - a sector to a page
        raise Unmountable(f"EROFS blocks of 2^{bits} bytes on a device with blocks of {device.block}")
    if features & EROFS_CHECKSUM:
        from fake_openvmm.crc import crc32c  # noqa: PLC0415 - most images carry none

        size = (1 << bits) - EROFS_OFFSET if 1 << bits > EROFS_OFFSET else 1 << bits
        whole = device.read(EROFS_OFFSET, size)
        if crc32c(whole[:4] + bytes(4) + whole[8:]) != checksum:
            raise Unmountable("EROFS superblock with a wrong checksum")
    return plain_text(raw[48:64])


class Gpt:
    """What a GPT says: `guid` of the disk, logical block size, and the first used entry as a device."""

    __slots__ = ("block", "guid", "partition")

    def __init__(self, guid: str, block: int, partition: Device) -> None:
        self.guid = guid
        self.block = block
        self.partition = partition


def read_gpt(fd: int) -> Gpt:
    """Read the GPT of an image; where its header lies is the logical block size.

    Raises:
        Unmountable: no header, a wrong checksum, or no used entry that lies inside the device.
    """
    from zlib import crc32  # noqa: PLC0415 - only a GPT image needs it

    for block in (SMALL_BLOCK, LARGE_BLOCK):
        device = Device(fd, block=block)
        if device.size >= 2 * block and device.read(block, 8) == b"EFI PART":
            break
    else:
        raise Unmountable("no GPT header")
    header = device.read(block, block)
    size, checksum, _, own = struct.unpack_from("<IIIQ", header, 12)
    if not 92 <= size <= block or own != 1:  # noqa: PLR2004 - the length of the first revision
        raise Unmountable("GPT header with a wrong length or place")
    if crc32(header[:16] + bytes(4) + header[20:size]) != checksum:
        raise Unmountable("GPT header with a wrong checksum")
    where, count, entry_size, entries_checksum = struct.unpack_from("<QIII", header, 72)
    if entry_size < ENTRY_SIZE or not 0 < count * entry_size <= MAX_ENTRIES:
        raise Unmountable("GPT with entries of a wrong size")
    entries = device.read(where * block, count * entry_size)
    if crc32(entries) != entries_checksum:
        raise Unmountable("GPT entries with a wrong checksum")
    return Gpt(mixed_text(header[56:72]), block, _first_used(device, entries, entry_size))


def _first_used(device: Device, entries: bytes, entry_size: int) -> Device:
    for offset in range(0, len(entries), entry_size):
        if entries[offset : offset + 16] == bytes(16):
            continue
        first, last = struct.unpack_from("<QQ", entries, offset + 32)
        end = (last + 1) * device.block
        if not 0 < first <= last or end > device.size:
            raise Unmountable("GPT entry outside the disk")
        start = first * device.block
        return Device(device.fd, block=device.block, start=start, size=end - start)
    raise Unmountable("GPT without a used entry")
