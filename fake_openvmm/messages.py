"""What the machine and its guest process say to each other over their socket: both ends are of one build."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

# To the guest process.
SETUP: Final = 1  # account, path and archive of $HOME
START: Final = 2  # execution, flags, directory, argument count, arguments and environment entries
KILL: Final = 3  # execution, reason
SAVE: Final = 4
# From it.
STDOUT: Final = 11  # execution, bytes of one read
STDERR: Final = 12
DONE: Final = 13  # execution, status or minus the signal, reasons
REFUSED: Final = 14  # execution, stage, errno
SAVED: Final = 15  # archive of $HOME

OWN_ENVIRONMENT: Final = 1  # START: the entries are the whole environment

CANCELLED: Final = 1
TIMEOUT: Final = 2
OUTPUT_LIMIT: Final = 4
ABANDONED: Final = 8

STAGE_DIRECTORY: Final = 1
STAGE_PROGRAM: Final = 2
STAGE_LAUNCH: Final = 3

_HEAD = struct.Struct("<BiiiI")
_LENGTH = struct.Struct("<I")
MAX_READ = 32_768


class Message:
    """One message: a kind, up to three numbers, and bytes."""

    __slots__ = ("data", "kind", "numbers")

    def __init__(self, kind: int, numbers: tuple[int, int, int], data: bytes) -> None:
        self.kind = kind
        self.numbers = numbers
        self.data = data


def encode(kind: int, data: bytes = b"", a: int = 0, b: int = 0, c: int = 0) -> bytes:
    """Encode one message; what a, b and c mean goes by the kind, the execution's number is always a."""
    return _HEAD.pack(kind, a, b, c, len(data)) + data


def take(buffer: bytearray) -> Message | None:
    """Take one whole message off the front of `buffer`, or None."""
    if len(buffer) < _HEAD.size:
        return None
    kind, a, b, c, length = _HEAD.unpack_from(buffer)
    end = _HEAD.size + length
    if len(buffer) < end:
        return None
    data = bytes(buffer[_HEAD.size : end])
    del buffer[:end]
    return Message(kind, (a, b, c), data)


def pack_items(items: Iterable[bytes]) -> bytes:
    """Length-prefixed items, one after the other."""
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)


def unpack_items(data: bytes) -> list[bytes]:
    """What `pack_items` was given."""
    items: list[bytes] = []
    offset = 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        items.append(data[offset : offset + length])
        offset += length
    return items
