"""The NVXS record: one header of 44 bytes, little-endian, and a payload (contract openvmm 3.3).

A record has one valid form, and :func:`encode` makes nothing else than what :class:`~nvx_ref.session.RecordParser`
takes. What the fields mean to a session (which instance, which sequence, who may send what) is the business of
:class:`~nvx_ref.session.HostSession`.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from msgspec import Struct

from nvx_ref.errors import Malformed

MAGIC = b"NVXS"
VERSION = 1
HEADER = struct.Struct("<4sHBB16sQQI")
WORD = struct.Struct("<I")

CAPABILITY_SIZE = 32
"""Bytes of the secret that HOST_ATTACH carries."""
INSTANCE_SIZE = 16
"""Bytes of a broker's instance ID."""
NO_INSTANCE = bytes(INSTANCE_SIZE)
"""The instance ID of the records that come before a session exists."""
MAX_DATA = 65_536
"""The most payload bytes of one DATA record; longer messages are split by the application."""
MIN_WINDOW = 65_536
"""The least initial window that an ACK may announce, in bytes."""
MAX_CREDIT = 4_194_314
"""The most that an ACK or a CREDIT may announce, in bytes."""
AUTHENTICATION_ERROR = 1
"""The only code that an ERROR record may carry."""

_MAX_U64 = 2**64 - 1


class RecordType(IntEnum):
    """The type byte of a record."""

    GUEST_ATTACH = 1
    HOST_ATTACH = 2
    RESET = 3
    ACK = 4
    DATA = 5
    WAIT = 6
    READY = 7
    ERROR = 8
    CREDIT = 9


BOOTSTRAP = frozenset({RecordType.GUEST_ATTACH, RecordType.HOST_ATTACH})
"""Records sent before there is a session: instance, epoch and sequence are all zero."""

_LENGTHS: dict[RecordType, tuple[int, int]] = {
    RecordType.GUEST_ATTACH: (0, 0),
    RecordType.HOST_ATTACH: (CAPABILITY_SIZE, CAPABILITY_SIZE),
    RecordType.RESET: (0, 0),
    RecordType.ACK: (WORD.size, WORD.size),
    RecordType.DATA: (1, MAX_DATA),
    RecordType.WAIT: (0, 0),
    RecordType.READY: (0, 0),
    RecordType.ERROR: (WORD.size, WORD.size),
    RecordType.CREDIT: (WORD.size, WORD.size),
}


class Record(Struct, frozen=True):
    """One record. Its text form never shows the payload, which may be the capability or a workload's output.

    Args:
        type: What the record is.
        payload: Its bytes; which lengths are valid depends on the type.
        instance: The broker's instance ID, 16 bytes; zero in bootstrap records.
        epoch: The broker's count of host attachments, a u64; zero in bootstrap records.
        sequence: The position in its direction of one attachment, a u64; zero in bootstrap records.
    """

    type: RecordType
    payload: bytes = b""
    instance: bytes = NO_INSTANCE
    epoch: int = 0
    sequence: int = 0

    def __repr__(self) -> str:
        return (
            f"Record({self.type.name}, {len(self.payload)} payload bytes, instance={self.instance.hex()}, "
            f"epoch={self.epoch}, sequence={self.sequence})"
        )


class Header(Struct, frozen=True):
    """A header that :func:`read_header` has accepted.

    Args:
        type: What the record is.
        instance: The broker's instance ID, 16 bytes.
        epoch: A u64.
        sequence: A u64.
        length: Bytes of the payload that follows, valid for the type.
    """

    type: RecordType
    instance: bytes
    epoch: int
    sequence: int
    length: int


def _bad(reason: str, detail: str) -> Malformed:
    return Malformed(reason, subject="NVXS record", detail=detail)


def _check_length(kind: RecordType, length: int) -> None:
    least, most = _LENGTHS[kind]
    if not least <= length <= most:
        allowed = str(least) if least == most else f"{least} to {most}"
        raise _bad(f"{kind.name} has a payload of {length} bytes, not {allowed}", "length")


def _check_identity(kind: RecordType, instance: bytes, epoch: int, sequence: int) -> None:
    if kind in BOOTSTRAP and (instance != NO_INSTANCE or epoch or sequence):
        raise _bad(f"{kind.name} names an instance, epoch or sequence", "identity")


def check_payload(kind: RecordType, payload: bytes) -> None:
    """Check what only the body can show: the code of an ERROR, the ranges of ACK and CREDIT.

    Args:
        kind: The record's type.
        payload: The body, of a length that is valid for the type.

    Raises:
        Malformed: ``detail`` is ``error-code`` or ``credit``.
    """
    if kind is RecordType.ERROR:
        (code,) = WORD.unpack(payload)
        if code != AUTHENTICATION_ERROR:
            raise _bad(f"ERROR has the code {code}, not {AUTHENTICATION_ERROR}", "error-code")
    elif kind in {RecordType.ACK, RecordType.CREDIT}:
        (credit,) = WORD.unpack(payload)
        least = MIN_WINDOW if kind is RecordType.ACK else 1
        if not least <= credit <= MAX_CREDIT:
            raise _bad(f"{kind.name} grants {credit} bytes, not {least} to {MAX_CREDIT}", "credit")


def read_header(data: bytes) -> Header:
    """Validate the 44 bytes of a header, before any memory is set aside for a body.

    Args:
        data: Exactly the header's bytes.

    Raises:
        Malformed: The first of these that is wrong names itself in ``detail``: ``magic``, ``version``, ``type``,
            ``flags``, ``length``, ``identity``.
    """
    magic, version, number, flags, instance, epoch, sequence, length = HEADER.unpack(data)
    if magic != MAGIC:
        raise _bad(f"the magic is {magic!r}, not {MAGIC!r}", "magic")
    if version != VERSION:
        raise _bad(f"the version is {version}, not {VERSION}", "version")
    try:
        kind = RecordType(number)
    except ValueError:
        raise _bad(f"the type is {number}, not 1 to {len(RecordType)}", "type") from None
    if flags:
        raise _bad(f"the flags are {flags:#04x}, not zero", "flags")
    _check_length(kind, length)
    _check_identity(kind, instance, epoch, sequence)
    return Header(kind, instance, epoch, sequence, length)


def encode(record: Record) -> bytes:
    """Return the record's bytes (contract openvmm 3.3).

    Args:
        record: The record; only a valid one has bytes.

    Raises:
        Malformed: ``detail`` names the field, as in :func:`read_header` and :func:`check_payload`; an instance
            that isn't 16 bytes and an epoch or sequence outside a u64 are ``identity``.
    """
    if len(record.instance) != INSTANCE_SIZE:
        raise _bad(f"the instance has {len(record.instance)} bytes, not {INSTANCE_SIZE}", "identity")
    if not (0 <= record.epoch <= _MAX_U64 and 0 <= record.sequence <= _MAX_U64):
        raise _bad("the epoch or sequence is no u64", "identity")
    _check_length(record.type, len(record.payload))
    _check_identity(record.type, record.instance, record.epoch, record.sequence)
    check_payload(record.type, record.payload)
    header = HEADER.pack(
        MAGIC, VERSION, record.type, 0, record.instance, record.epoch, record.sequence, len(record.payload)
    )
    return header + record.payload
