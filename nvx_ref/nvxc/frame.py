"""The NVXC frame: 24 bytes of header and a payload, exactly filling one DATA record (contract openvmm 3.6)."""

from __future__ import annotations

import struct
from enum import IntEnum

from msgspec import Struct

from nvx_ref.errors import Malformed
from nvx_ref.session import MAX_DATA

MAGIC = b"NVXC"
VERSION = 1
HEADER = struct.Struct("<4sBBHQiI")
MAX_PAYLOAD = MAX_DATA - HEADER.size
"""The most payload bytes of one frame: 65,512."""
MAX_WORD = 64
"""The most bytes of a category word."""
MAX_REQUEST = 2**64 - 1


class Kind(IntEnum):
    """The kind byte of a frame; the first six are requests, the others replies."""

    PING = 1
    EXEC = 2
    STOP = 3
    CANCEL = 4
    FEATURES = 5
    MAPS = 6
    READY = 0x81
    STDOUT = 0x82
    STDERR = 0x83
    EXIT = 0x84
    STOPPED = 0x85
    ERROR = 0xFF


EXIT_CATEGORIES = frozenset({"exit", "signal", "timeout", "output-limit", "failed", "cancelled"})
"""The words that say how an EXEC ended."""
_WITHOUT_STATUS = frozenset({Kind.READY, Kind.STDOUT, Kind.STDERR, Kind.STOPPED})
_WORD_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")


class Frame(Struct, frozen=True):
    """One frame; its text form doesn't show the payload.

    Args:
        kind: What it is.
        request: The request ID, 1 to 2**64 - 1; a reply repeats its request's.
        status: 0 in requests; a reply's exit status or errno, an i32.
        payload: 0 to 65,512 bytes.
    """

    kind: Kind
    request: int
    status: int = 0
    payload: bytes = b""

    def __repr__(self) -> str:
        return f"Frame({self.kind.name}, request={self.request:#x}, status={self.status}, {len(self.payload)} bytes)"


def _bad(reason: str, detail: str) -> Malformed:
    return Malformed(reason, subject="NVXC frame", detail=detail)


def encode_frame(frame: Frame) -> bytes:
    """Return the frame's bytes, the payload of one DATA record.

    Raises:
        Malformed: ``detail`` is ``length``, ``request`` or ``status``.
    """
    if len(frame.payload) > MAX_PAYLOAD:
        raise _bad(f"the payload has {len(frame.payload)} bytes, more than {MAX_PAYLOAD}", "length")
    if not 1 <= frame.request <= MAX_REQUEST:
        raise _bad("the request ID is no nonzero u64", "request")
    if not -(2**31) <= frame.status < 2**31:
        raise _bad("the status is no i32", "status")
    header = HEADER.pack(MAGIC, VERSION, frame.kind, 0, frame.request, frame.status, len(frame.payload))
    return header + frame.payload


def decode_frame(data: bytes) -> Frame:
    """Return the frame that fills ``data``.

    Args:
        data: The whole payload of one DATA record.

    Raises:
        Malformed: ``detail`` names the first of ``length`` (shorter than a header), ``magic``, ``version``, ``kind``,
            ``flags``, ``length``, ``request`` that is wrong.
    """
    if len(data) < HEADER.size:
        raise _bad(f"a record of {len(data)} bytes is too short for a frame", "length")
    magic, version, number, flags, request, status, length = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _bad(f"the magic is {magic!r}, not {MAGIC!r}", "magic")
    if version != VERSION:
        raise _bad(f"the version is {version}, not {VERSION}", "version")
    try:
        kind = Kind(number)
    except ValueError:
        raise _bad(f"the kind {number:#04x} is not known", "kind") from None
    if flags:
        raise _bad(f"the flags are {flags:#06x}, not zero", "flags")
    if length != len(data) - HEADER.size:
        raise _bad(f"the frame declares {length} bytes in a record with {len(data) - HEADER.size}", "length")
    if not request:
        raise _bad("the request ID is zero", "request")
    return Frame(kind, request, status, data[HEADER.size :])


def decode_reply(data: bytes) -> Frame:
    """Return the guest's frame that fills ``data``, with the meaning of its fields checked too.

    Args:
        data: The whole payload of one DATA record.

    Raises:
        Malformed: As :func:`decode_frame`; or ``kind`` for a request's kind, ``status`` for a status where there is
            none or outside 0..255 in an EXIT, ``length`` for a STOPPED with a payload, ``category`` for an EXIT or
            ERROR whose payload is no category word.
    """
    frame = decode_frame(data)
    if frame.kind < Kind.READY:
        raise _bad(f"{frame.kind.name} is no reply", "kind")
    if frame.kind in _WITHOUT_STATUS and frame.status:
        raise _bad(f"{frame.kind.name} has the status {frame.status}", "status")
    if frame.kind is Kind.STOPPED and frame.payload:
        raise _bad("STOPPED has a payload", "length")
    if frame.kind in {Kind.EXIT, Kind.ERROR}:
        word = category(frame)
        if frame.kind is Kind.EXIT and word not in EXIT_CATEGORIES:
            raise _bad(f"EXIT has the unknown category {word}", "category")
        if frame.kind is Kind.EXIT and not 0 <= frame.status <= 255:  # noqa: PLR2004 - an exit status is a byte
            raise _bad(f"EXIT has the status {frame.status}", "status")
    return frame


def category(frame: Frame) -> str:
    """Return the category word that is an EXIT's or ERROR's payload.

    Raises:
        Malformed: The payload is no word of 1 to 64 lower-case letters, digits and dashes (``category``).
    """
    if not 1 <= len(frame.payload) <= MAX_WORD or not _WORD_BYTES.issuperset(frame.payload):
        raise _bad(f"{frame.kind.name} has no category word", "category")
    return frame.payload.decode("ascii")
