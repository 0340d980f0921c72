"""The ext4 of a scratch disk: its superblock, its needs-recovery bit, and guest data in blocks that nobody uses.

A fake guest has no file system driver. What its workloads leave in `$HOME` is kept as one blob in blocks that the
bitmaps call free; the first 1,024 bytes, which ext4 leaves to boot loaders, say where it is. To `e2fsck` the file
system is as clean as before (contract openvmm 6, contract scenarios).
"""

from __future__ import annotations

import struct

from fake_openvmm.blocks import Device, Unmountable, plain_text
from fake_openvmm.crc import crc32c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SUPERBLOCK = 1024
SUPERBLOCK_SIZE = 1024
MAGIC = 0xEF53
NEEDS_RECOVERY = 0x4
META_GROUPS = 0x10
SIXTY_FOUR = 0x80
METADATA_CHECKSUM = 0x400
CLUSTERS = 0x200
BITMAP_UNSET = 0x2
JOURNAL_DEVICE = 0x8

_POINTER = struct.Struct("<8s16sIII")
_EXTENT = struct.Struct("<QI")
_POINTER_MAGIC = b"NVXHOME1"
_MAX_EXTENTS = 64


class NoSpace(Exception):  # noqa: N818 - what a guest would be told
    """The free blocks of the file system don't hold the data."""


class Ext4:
    """A mounted upper.

    Attributes:
        uuid: of the file system, as text.
        recovered: whether the needs-recovery bit was set before the mount.

    Raises:
        Unmountable: no ext4, or one that a kernel would refuse.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        raw = device.read(SUPERBLOCK, SUPERBLOCK_SIZE)
        if struct.unpack_from("<H", raw, 0x38)[0] != MAGIC:
            raise Unmountable("no ext4 superblock")
        (log_size,) = struct.unpack_from("<I", raw, 0x18)
        if log_size > 6 or 1024 << log_size < device.block:  # noqa: PLR2004 - 64 KiB
            raise Unmountable(f"ext4 blocks of 2^{10 + log_size} bytes on a device with blocks of {device.block}")
        self._block = 1024 << log_size
        self._checksummed = bool(_word(raw, 0x64) & METADATA_CHECKSUM)
        if self._checksummed and crc32c(raw[:-4]) != _word(raw, 0x3FC):
            raise Unmountable("ext4 superblock with a wrong checksum")
        incompatible = _word(raw, 0x60)
        if incompatible & JOURNAL_DEVICE:
            raise Unmountable("an external journal")
        self._count = _word(raw, 4) | (_word(raw, 0x150) << 32 if incompatible & SIXTY_FOUR else 0)
        if self._count * self._block > device.size:
            raise Unmountable("ext4 larger than its device")
        self._first = _word(raw, 0x14)
        self._per_group = _word(raw, 0x20)
        if not self._per_group or self._first >= self._count:
            raise Unmountable("ext4 without block groups")
        self._descriptor = struct.unpack_from("<H", raw, 0xFE)[0] if incompatible & SIXTY_FOUR else 32
        self._plain = not incompatible & META_GROUPS and not _word(raw, 0x64) & CLUSTERS
        self._id = raw[0x68:0x78]
        self.uuid = plain_text(self._id)
        self.recovered = bool(incompatible & NEEDS_RECOVERY)

    def mark(self, *, mounted: bool) -> None:
        """Set or clear the needs-recovery bit, with the superblock's checksum."""
        raw = bytearray(self._device.read(SUPERBLOCK, SUPERBLOCK_SIZE))
        incompatible = _word(raw, 0x60) & ~NEEDS_RECOVERY | (NEEDS_RECOVERY if mounted else 0)
        struct.pack_into("<I", raw, 0x60, incompatible)
        if self._checksummed:
            struct.pack_into("<I", raw, 0x3FC, crc32c(bytes(raw[:-4])))
        self._device.write(SUPERBLOCK, bytes(raw))

    def load(self) -> bytes:
        """The blob that was saved last, empty if none or if something else has used its blocks since."""
        from zlib import crc32  # noqa: PLC0415 - a VM that runs no workload never gets here

        extents, length, checksum = self._pointer()
        data = b"".join(self._device.read(block * self._block, count * self._block) for block, count in extents)
        data = data[:length]
        return data if len(data) == length and crc32(data) == checksum else b""

    def save(self, data: bytes) -> None:
        """Keep a blob in place of the one before, which stays whole until the new one is if both fit.

        Raises:
            NoSpace: nothing was written.
        """
        from zlib import crc32  # noqa: PLC0415 - as in load

        old = self._device.read(0, SUPERBLOCK)
        if any(old) and not old.startswith(_POINTER_MAGIC):
            raise NoSpace("the boot block isn't empty")
        extents = self._allocate(-(-len(data) // self._block))
        offset = 0
        for block, count in extents:
            size = count * self._block
            self._device.write(block * self._block, data[offset : offset + size].ljust(size, b"\0"))
            offset += size
        pointer = _POINTER.pack(_POINTER_MAGIC, self._id, len(data), crc32(data), len(extents))
        pointer += b"".join(_EXTENT.pack(*extent) for extent in extents)
        self._device.write(0, pointer.ljust(SUPERBLOCK, b"\0"))

    def _pointer(self) -> tuple[list[tuple[int, int]], int, int]:
        raw = self._device.read(0, SUPERBLOCK)
        magic, owner, length, checksum, count = _POINTER.unpack_from(raw)
        if magic != _POINTER_MAGIC or owner != self._id or count > _MAX_EXTENTS:
            return [], 0, 0
        extents: list[tuple[int, int]] = []
        for index in range(count):
            block, size = _EXTENT.unpack_from(raw, _POINTER.size + index * _EXTENT.size)
            if block + size > self._count:
                return [], 0, 0
            extents.append((block, size))
        return extents, length, checksum

    def _allocate(self, wanted: int) -> list[tuple[int, int]]:
        if not self._plain:
            raise NoSpace("a layout of block groups that isn't read here")
        chosen = self._choose(wanted, self._pointer()[0]) or self._choose(wanted, [])
        if not chosen and wanted:
            raise NoSpace("no space left on the upper")
        return chosen

    def _choose(self, wanted: int, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for start, count in self._free_runs():
            found += _without(start, count, taken)
            if sum(size for _, size in found) >= wanted:
                break
        chosen: list[tuple[int, int]] = []
        for block, size in sorted(found, key=lambda run: -run[1]):
            if wanted <= 0 or len(chosen) == _MAX_EXTENTS:
                break
            chosen.append((block, min(size, wanted)))
            wanted -= size
        return chosen if wanted <= 0 else []

    def _free_runs(self) -> Iterator[tuple[int, int]]:
        """Runs (first block, count) that the bitmaps call free, of groups whose bitmap has been written."""
        table = (self._first + 1) * self._block
        groups = -(-(self._count - self._first) // self._per_group)
        for group in range(groups):
            raw = self._device.read(table + group * self._descriptor, self._descriptor)
            if struct.unpack_from("<H", raw, 0x12)[0] & BITMAP_UNSET:
                continue
            wide = self._descriptor > 0x20  # noqa: PLR2004 - the second half of a descriptor
            where = _word(raw, 0) | (_word(raw, 0x20) << 32 if wide else 0)
            first = self._first + group * self._per_group
            count = min(self._per_group, self._count - first)
            yield from _zero_runs(self._device.read(where * self._block, self._block), first, count)


def _word(raw: bytes | bytearray, offset: int) -> int:
    return int.from_bytes(raw[offset : offset + 4], "little")


def _zero_runs(bitmap: bytes, first: int, count: int) -> list[tuple[int, int]]:
    bits = f"{int.from_bytes(bitmap, 'little'):0{len(bitmap) * 8}b}"[::-1][:count]
    runs: list[tuple[int, int]] = []
    at = bits.find("0")
    while at >= 0:
        end = bits.find("1", at)
        end = count if end < 0 else end
        runs.append((first + at, end - at))
        at = bits.find("0", end)
    return runs


def _without(start: int, count: int, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """A run without the blocks of `taken`."""
    pieces = [(start, start + count)]
    for block, size in taken:
        cut: list[tuple[int, int]] = []
        for low, high in pieces:
            cut += [(low, min(high, block)), (max(low, block + size), high)]
        pieces = [(low, high) for low, high in cut if low < high]
    return [(low, high - low) for low, high in pieces]
