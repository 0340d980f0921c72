"""CRC-32C, which EROFS and ext4 use and the standard library lacks."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78
_table: list[int] = []


def crc32c(data: bytes, seed: int = 0xFFFFFFFF) -> int:
    """The raw remainder, without the final inversion: what both file systems store."""
    if not _table:
        for index in range(256):
            value = index
            for _ in range(8):
                value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
            _table.append(value)
    table = _table
    for byte in data:
        seed = (seed >> 8) ^ table[(seed ^ byte) & 0xFF]
    return seed
