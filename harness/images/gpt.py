"""Writing a GPT disk around one partition, so that any image can be booted from a disk of any sector size."""

from __future__ import annotations

import shutil
import struct
import uuid
import zlib

LINUX_DATA = "0fc63daf-8483-4772-8e79-3d69d8477de4"
PARTITION = "fedcba98-7654-3210-8edc-ba9876543210"
ENTRIES, ENTRY_SIZE, HEADER_SIZE = 128, 128, 92
ALIGNMENT = 1 << 20
CHUNK = 1 << 20


def write(path: str, content: str, *, sector: int, guid: str, partition: str = PARTITION) -> None:
    """Write a disk whose first partition holds a file's content.

    Args:
        path: The disk to be, replaced if it exists.
        content: The file.
        sector: Bytes of a sector: 512 or 4,096.
        guid: The disk GUID.
        partition: The partition's own GUID.
    """
    with open(content, "rb") as source, open(path, "wb") as disk:
        length = source.seek(0, 2)
        source.seek(0)
        table = ENTRIES * ENTRY_SIZE // sector
        first = ALIGNMENT // sector
        last = first + max(1, -(-length // sector)) - 1
        end = last + table + 1
        name = "distro".encode("utf-16-le").ljust(72, b"\0")
        ids = uuid.UUID(LINUX_DATA).bytes_le + uuid.UUID(partition).bytes_le
        entries = (ids + struct.pack("<QQQ", first, last, 0) + name).ljust(ENTRIES * ENTRY_SIZE, b"\0")
        usable = (2 + table, end - table - 1)

        def header(own: int, other: int, start: int) -> bytes:
            fields = struct.pack("<QQQQ", own, other, *usable) + uuid.UUID(guid).bytes_le
            fields += struct.pack("<QIII", start, ENTRIES, ENTRY_SIZE, zlib.crc32(entries))
            head = struct.pack("<8sII", b"EFI PART", 0x10000, HEADER_SIZE)
            checksum = zlib.crc32(head + bytes(8) + fields)
            return (head + struct.pack("<II", checksum, 0) + fields).ljust(sector, b"\0")

        protective = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xEE, b"\xff\xff\xff", 1, min(end, 0xFFFF_FFFF))
        disk.write((bytes(446) + protective.ljust(64, b"\0") + b"\x55\xaa").ljust(sector, b"\0"))
        disk.write(header(1, end, 2) + entries)
        disk.seek(first * sector)
        shutil.copyfileobj(source, disk, CHUNK)
        disk.seek((end - table) * sector)
        disk.write(entries + header(end, 1, end - table))
