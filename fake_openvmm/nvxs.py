"""NVXS, the record layer between host, broker and guest (contract openvmm 3.3).

A record is a little-endian header of 44 bytes and a payload. The parser takes bytes as they come, judges a header as
soon as it is whole and before it keeps a body, and never resynchronises.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

GUEST_ATTACH: Final = 1
HOST_ATTACH: Final = 2
RESET: Final = 3
ACK: Final = 4
DATA: Final = 5
WAIT: Final = 6
READY: Final = 7
ERROR: Final = 8
CREDIT: Final = 9

NAMES = ("", "GUEST_ATTACH", "HOST_ATTACH", "RESET", "ACK", "DATA", "WAIT", "READY", "ERROR", "CREDIT")

MAGIC = b"NVXS"
VERSION = 1
HEADER = struct.Struct("<4sHBB16sQQI")
HEADER_SIZE = HEADER.size
NO_INSTANCE = bytes(16)
CAPABILITY_SIZE = 32
MAX_DATA = 65_536
MIN_WINDOW = 65_536
MAX_CREDIT = 4_194_314
MAX_NUMBER = (1 << 64) - 1
AUTHENTICATION = 1

_WORD = struct.Struct("<I")
_LENGTHS = {
    GUEST_ATTACH: (0, 0),
    HOST_ATTACH: (CAPABILITY_SIZE, CAPABILITY_SIZE),
    RESET: (0, 0),
    ACK: (4, 4),
    DATA: (1, MAX_DATA),
    WAIT: (0, 0),
    READY: (0, 0),
    ERROR: (4, 4),
    CREDIT: (4, 4),
}


class RecordError(Exception):
    """Bytes that are no record: fatal to the connection that they came from."""


class Record:
    """One record; `credit` is the window of an ACK or the increment of a CREDIT, in bytes."""

    __slots__ = ("credit", "epoch", "instance", "payload", "sequence", "type")

    def __init__(
        self, type_: int, payload: bytes = b"", *, instance: bytes = NO_INSTANCE, epoch: int = 0, sequence: int = 0
    ) -> None:
        self.type = type_
        self.payload = payload
        self.instance = instance
        self.epoch = epoch
        self.sequence = sequence
        self.credit = _WORD.unpack(payload)[0] if type_ in {ACK, CREDIT} else 0

    def __repr__(self) -> str:
        shown = f"<{len(self.payload)} bytes>" if self.type != HOST_ATTACH else "<redacted>"
        return f"{NAMES[self.type]}(epoch={self.epoch}, sequence={self.sequence}, {shown})"


def credit(type_: int, amount: int, *, instance: bytes, epoch: int, sequence: int) -> bytes:
    """Encode an ACK or a CREDIT of `amount` bytes."""
    return encode(type_, _WORD.pack(amount), instance=instance, epoch=epoch, sequence=sequence)


def encode(
    type_: int, payload: bytes = b"", *, instance: bytes = NO_INSTANCE, epoch: int = 0, sequence: int = 0
) -> bytes:
    """Encode one record. Nothing is checked: a guest that misbehaves needs it too."""
    return HEADER.pack(MAGIC, VERSION, type_, 0, instance, epoch, sequence, len(payload)) + payload


class Parser:
    """Takes bytes in any portions and gives whole records."""

    __slots__ = ("_buffer", "_header")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: tuple[int, bytes, int, int, int] | None = None

    @property
    def buffered(self) -> int:
        """Bytes that have come and belong to no record that was taken."""
        return len(self._buffer) + (HEADER_SIZE if self._header else 0)

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data

    def take(self) -> Record | None:
        """Give the next whole record, or None until more bytes come.

        Raises:
            RecordError: the bytes are no record; the parser is of no more use.
        """
        if self._header is None:
            if len(self._buffer) < HEADER_SIZE:
                return None
            self._header = _header(bytes(self._buffer[:HEADER_SIZE]))
            del self._buffer[:HEADER_SIZE]
        type_, instance, epoch, sequence, length = self._header
        if len(self._buffer) < length:
            return None
        payload = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._header = None
        _check_payload(type_, payload)
        return Record(type_, payload, instance=instance, epoch=epoch, sequence=sequence)


def _header(raw: bytes) -> tuple[int, bytes, int, int, int]:
    magic, version, type_, flags, instance, epoch, sequence, length = HEADER.unpack(raw)
    if magic != MAGIC:
        raise RecordError("bad magic")
    if version != VERSION:
        raise RecordError(f"version {version}")
    if type_ not in _LENGTHS:
        raise RecordError(f"type {type_}")
    if flags:
        raise RecordError(f"flags {flags}")
    low, high = _LENGTHS[type_]
    if not low <= length <= high:
        raise RecordError(f"{NAMES[type_]} of {length} bytes")
    if type_ in {GUEST_ATTACH, HOST_ATTACH} and (instance != NO_INSTANCE or epoch or sequence):
        raise RecordError(f"{NAMES[type_]} with an identity")
    return type_, instance, epoch, sequence, length


def _check_payload(type_: int, payload: bytes) -> None:
    if type_ not in {ACK, CREDIT, ERROR}:
        return
    (word,) = _WORD.unpack(payload)
    if type_ == ERROR and word != AUTHENTICATION:
        raise RecordError(f"error code {word}")
    if type_ == ACK and not MIN_WINDOW <= word <= MAX_CREDIT:
        raise RecordError(f"window of {word} bytes")
    if type_ == CREDIT and not 1 <= word <= MAX_CREDIT:
        raise RecordError(f"credit of {word} bytes")
