"""The GUID partition table, read from a file that may be hostile.

The primary header is at byte 512 or, on a disk with 4,096-byte sectors, at byte 4,096; where it is found is the sector
size (contract openvmm 6). There is no fallback to the backup: a disk whose primary table is broken is refused, as the
guest refuses it. Whether the backup agrees is only reported. Nothing after the raw image, such as a VHD footer, is
looked at.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import msgspec

from nvx_ref.errors import Malformed
from nvx_ref.images.reading import guid_text, read_at

SECTOR_SIZES = (512, 4096)
SIGNATURE = b"EFI PART"
ENTRY_SIZE = 128
MAX_ENTRIES = 1024
_HEADER = struct.Struct("<8s4I4Q16sQ3I")
_ENTRY = struct.Struct("<16s16s3Q72s")
_REVISION = 0x00010000
_UNUSED = bytes(16)


class GptEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One used partition.

    Args:
        index: Its place in the table, from 1.
        type: The type GUID, lower-case text.
        guid: The partition's own GUID. It never reaches a command line (622.scope2.d).
        offset: Its first byte in the file.
        length: In bytes.
        name: As the table says it.
    """

    index: int
    type: str
    guid: str
    offset: int
    length: int
    name: str


class GptTable(msgspec.Struct, frozen=True, rename="camel"):
    """What a GPT disk says about itself.

    Args:
        disk: The disk GUID in mixed-endian text, lower case.
        sector_size: 512 or 4,096 bytes.
        entries: The used partitions in table order, at least one.
        backup: Whether the backup header is where the primary says, and agrees with it.
    """

    disk: str
    sector_size: int
    entries: tuple[GptEntry, ...]
    backup: bool


class _Header(msgspec.Struct, frozen=True):
    own: int
    other: int
    first: int
    last: int
    disk: bytes
    entries_at: int
    count: int
    entries_crc: int


def read_gpt(fd: int, *, length: int) -> GptTable:
    """Read and check the primary table of a GPT disk image.

    Args:
        fd: An open regular file whose position may move.
        length: How long the file is, in bytes.

    Raises:
        Malformed: It isn't a GPT disk that a guest would take; ``detail`` names the field.
        Refused: The file can't be read.
    """
    sector = _sector_size(fd, length)
    header = _header(fd, sector, sector, length)
    if header.own != 1:
        raise Malformed(f"the GPT header says it is sector {header.own}, not 1", detail="my-lba")
    if not header.first <= header.last < length // sector:
        raise Malformed(
            f"the GPT's usable sectors {header.first} to {header.last} don't lie in a disk of {length // sector}",
            detail="usable",
        )
    size = header.count * ENTRY_SIZE
    table_sectors = -(-size // sector)
    if header.entries_at < 2 or header.entries_at + table_sectors > header.first:  # noqa: PLR2004 - sector 1 is the header's
        raise Malformed(f"the GPT's entries at sector {header.entries_at} overlap something else", detail="entries-at")
    raw = read_at(fd, header.entries_at * sector, size, what="GPT entries")
    if _crc32(raw) != header.entries_crc:
        raise Malformed("the checksum of the GPT's entries is wrong", detail="entries-checksum")
    entries = _entries(raw, header, sector)
    if not entries:
        raise Malformed("the GPT has no partition", detail="empty")
    return GptTable(guid_text(header.disk), sector, entries, _backup(fd, header, sector, length))


def _crc32(data: bytes) -> int:
    from zlib import crc32  # noqa: PLC0415 - only verification needs it

    return crc32(data)


def _sector_size(fd: int, length: int) -> int:
    for sector in SECTOR_SIZES:
        if length >= 2 * sector and read_at(fd, sector, len(SIGNATURE), what="GPT header") == SIGNATURE:
            return sector
    raise Malformed("not a GPT disk: no header at byte 512 or 4,096", detail="magic")


def _header(fd: int, at: int, sector: int, length: int) -> _Header:
    if at + sector > length:
        raise Malformed("the file ends before its GPT header", detail="truncated")
    raw = read_at(fd, at, sector, what="GPT header")
    signature, revision, size, checksum, reserved, *rest = _HEADER.unpack_from(raw)
    if signature != SIGNATURE:
        raise Malformed("the GPT header's signature is missing", detail="magic")
    if revision != _REVISION:
        raise Malformed(f"GPT revision {revision:#010x} is unknown", detail="revision")
    if not _HEADER.size <= size <= sector:
        raise Malformed(f"a GPT header of {size} bytes is out of range", detail="header-size")
    if _crc32(raw[:16] + bytes(4) + raw[20:size]) != checksum:
        raise Malformed("the GPT header's checksum is wrong", detail="header-checksum")
    if reserved:
        raise Malformed("the GPT header's reserved field isn't zero", detail="reserved")
    own, other, first, last, disk, entries_at, count, entry_size, entries_crc = rest
    if entry_size != ENTRY_SIZE:
        raise Malformed(f"GPT entries of {entry_size} bytes; Linux reads {ENTRY_SIZE}", detail="entry-size")
    if not 1 <= count <= MAX_ENTRIES:
        raise Malformed(f"a GPT with {count} entries is out of range 1 to {MAX_ENTRIES}", detail="entry-count")
    return _Header(own, other, first, last, disk, entries_at, count, entries_crc)


def _entries(raw: bytes, header: _Header, sector: int) -> tuple[GptEntry, ...]:
    found: list[GptEntry] = []
    for index in range(header.count):
        kind, guid, first, last, _, name = _ENTRY.unpack_from(raw, index * ENTRY_SIZE)
        if kind == _UNUSED:
            continue
        if not header.first <= first <= last <= header.last:
            raise Malformed(
                f"GPT partition {index + 1} of sectors {first} to {last} isn't in {header.first} to {header.last}",
                detail="entry-range",
            )
        text = name.decode("utf-16-le", "replace").split("\0", 1)[0]
        found.append(
            GptEntry(index + 1, guid_text(kind), guid_text(guid), first * sector, (last - first + 1) * sector, text)
        )
    ordered = sorted(found, key=lambda entry: entry.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.length > after.offset:
            raise Malformed(f"GPT partitions {before.index} and {after.index} overlap", detail="overlap")
    return tuple(found)


def _backup(fd: int, primary: _Header, sector: int, length: int) -> bool:
    try:
        backup = _header(fd, primary.other * sector, sector, length)
        if backup.entries_at * sector + backup.count * ENTRY_SIZE > length:
            return False
        raw = read_at(fd, backup.entries_at * sector, backup.count * ENTRY_SIZE, what="GPT backup entries")
    except Malformed:
        return False
    same = (backup.own, backup.other, backup.disk, backup.entries_crc) == (
        primary.other,
        primary.own,
        primary.disk,
        primary.entries_crc,
    )
    return same and _crc32(raw) == backup.entries_crc
