"""Bounded reads of an open image, shared by the header readers."""

from __future__ import annotations

import os

from nvx_ref.errors import Malformed, Refused

_POLYNOMIAL = 0x82F63B78
_table: list[int] = []


def read_at(fd: int, offset: int, length: int, *, what: str) -> bytes:
    """Return exactly ``length`` bytes at ``offset``.

    Args:
        fd: An open regular file. Its position moves: the description must be the caller's own.
        offset: Where to read, in bytes.
        length: How much, in bytes; what a header says is bounded by the reader before it gets here.
        what: What is read, for the error.

    Raises:
        Malformed: The file ends before that.
        Refused: The read failed (``detail="unreadable"``).
    """
    pieces: list[bytes] = []
    missing = length
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        while missing:
            piece = os.read(fd, missing)
            if not piece:
                raise Malformed(f"the file ends inside its {what}", detail="truncated")
            pieces.append(piece)
            missing -= len(piece)
    except OSError as error:
        raise Refused(f"its {what} can't be read: {error.strerror}", detail="unreadable") from error
    return b"".join(pieces)


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum of ``data`` as EROFS and ext4 store it: seeded with ones, not inverted."""
    if not _table:
        for byte in range(256):
            value = byte
            for _ in range(8):
                value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
            _table.append(value)
    table = _table
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def uuid_text(raw: bytes) -> str:
    """Return the lower-case text form of 16 big-endian bytes."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def guid_text(raw: bytes) -> str:
    """Return the lower-case text form of 16 mixed-endian bytes: the first three fields are little endian."""
    return uuid_text(raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:])
