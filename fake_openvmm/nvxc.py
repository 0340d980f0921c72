"""NVXC, what NVX's managed agent speaks inside DATA (contract openvmm 3.6): frames, EXEC and MAPS payloads."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

PING: Final = 1
EXEC: Final = 2
STOP: Final = 3
CANCEL: Final = 4
FEATURES: Final = 5
MAPS: Final = 6
READY: Final = 0x81
STDOUT: Final = 0x82
STDERR: Final = 0x83
EXIT: Final = 0x84
STOPPED: Final = 0x85
ERROR: Final = 0xFF

NAMES = {
    PING: "PING",
    EXEC: "EXEC",
    STOP: "STOP",
    CANCEL: "CANCEL",
    FEATURES: "FEATURES",
    MAPS: "MAPS",
    READY: "READY",
    STDOUT: "STDOUT",
    STDERR: "STDERR",
    EXIT: "EXIT",
    STOPPED: "STOPPED",
    ERROR: "ERROR",
}

INCOMPLETE: Final = 11
DENIED: Final = 13
BUSY: Final = 16
INVALID: Final = 22
UNSUPPORTED: Final = 95
FAILED: Final = 125

MAGIC = b"NVXC"
VERSION = 1
HEADER = struct.Struct("<4sBBHQiI")
MAX_ITEM = 4096
MAX_ARGUMENTS = 64
MAX_VARIABLES = 256
MAX_PATH = 4095

HAS_DIRECTORY, HAS_ENVIRONMENT, INHERITS = 1, 2, 4
READ_ONLY = 1

_EXEC = struct.Struct("<IHH")
_EXTENSION = struct.Struct("<HHI")
_LENGTH = struct.Struct("<I")
_MAPS = struct.Struct("<II")
_MAPPING = struct.Struct("<HHH")


class FrameError(Exception):
    """A frame that ends the agent, and the guest with it."""


class InvalidRequest(Exception):  # noqa: N818 - the category's word
    """A payload that is answered with `invalid-request`."""


class Frame:
    """One frame."""

    __slots__ = ("kind", "payload", "request")

    def __init__(self, kind: int, request: int, payload: bytes) -> None:
        self.kind = kind
        self.request = request
        self.payload = payload


class ExecRequest:
    """What an EXEC asks for; `environment` is None for the guest's default one."""

    __slots__ = ("arguments", "directory", "environment", "inherits", "timeout_ms")

    def __init__(self, timeout_ms: int, arguments: list[bytes]) -> None:
        self.timeout_ms = timeout_ms
        self.arguments = arguments
        self.directory: bytes | None = None
        self.environment: list[bytes] | None = None
        self.inherits = True


class Mapping:
    """One entry of a MAPS."""

    __slots__ = ("read_only", "source", "target")

    def __init__(self, source: bytes, target: bytes, *, read_only: bool) -> None:
        self.source = source
        self.target = target
        self.read_only = read_only


def encode(kind: int, request: int, payload: bytes = b"", status: int = 0) -> bytes:
    """Encode one frame. Nothing is checked: a guest that misbehaves needs it too."""
    return HEADER.pack(MAGIC, VERSION, kind, 0, request, status, len(payload)) + payload


def decode(raw: bytes) -> Frame:
    """Decode a request, which must fill `raw` exactly.

    Raises:
        FrameError: magic, version, flags, length, request 0 or a nonzero status.
    """
    if len(raw) < HEADER.size:
        raise FrameError(f"frame of {len(raw)} bytes")
    magic, version, kind, flags, request, status, length = HEADER.unpack_from(raw)
    if magic != MAGIC or version != VERSION or flags:
        raise FrameError("frame with another magic, version or flags")
    if length != len(raw) - HEADER.size:
        raise FrameError("frame with a wrong length")
    if not request or status:
        raise FrameError("frame without a request or with a status")
    return Frame(kind, request, raw[HEADER.size :])


class _Reader:
    """Takes fields off a payload."""

    __slots__ = ("_at", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def take(self, size: int) -> bytes:
        data = self._raw[self._at : self._at + size]
        if len(data) != size:
            raise InvalidRequest("cut short")
        self._at += size
        return data

    def item(self) -> bytes:
        (size,) = self.numbers(_LENGTH)
        return _checked_item(self.take(size) if 0 < size <= MAX_ITEM else b"")

    def end(self) -> None:
        if self._at != len(self._raw):
            raise InvalidRequest("trailing bytes")


def _checked_item(item: bytes) -> bytes:
    if not 0 < len(item) <= MAX_ITEM or 0 in item:
        raise InvalidRequest("item of a wrong length or with a NUL")
    return item


def decode_exec(raw: bytes) -> ExecRequest:
    """Decode the payload of an EXEC.

    Raises:
        InvalidRequest: anything that the contract doesn't name.
    """
    reader = _Reader(raw)
    timeout_ms, count, extension = reader.numbers(_EXEC)
    flags = variables = size = 0
    if extension == 1:
        flags, variables, size = reader.numbers(_EXTENSION)
    if extension > 1 or flags > HAS_DIRECTORY | HAS_ENVIRONMENT | INHERITS:
        raise InvalidRequest("unknown extension or flag")
    if not 0 < count <= MAX_ARGUMENTS or variables > MAX_VARIABLES:
        raise InvalidRequest("too few or too many arguments or variables")
    if bool(size) != bool(flags & HAS_DIRECTORY):
        raise InvalidRequest("directory without its flag or the reverse")
    if (variables or flags & INHERITS) and not flags & HAS_ENVIRONMENT:
        raise InvalidRequest("variables without their flag")
    request = ExecRequest(timeout_ms, [reader.item() for _ in range(count)])
    if not request.arguments[0].startswith(b"/"):
        raise InvalidRequest("relative program")
    if flags & HAS_DIRECTORY:
        request.directory = _checked_item(reader.take(size) if size <= MAX_ITEM else b"")
        if not request.directory.startswith(b"/"):
            raise InvalidRequest("relative directory")
    if flags & HAS_ENVIRONMENT:
        request.environment = [reader.item() for _ in range(variables)]
        request.inherits = bool(flags & INHERITS)
        _check_environment(request.environment)
    reader.end()
    return request


def _check_environment(entries: list[bytes]) -> None:
    names: set[bytes] = set()
    for entry in entries:
        name, equals, _ = entry.partition(b"=")
        if not equals or not name or name in names:
            raise InvalidRequest("variable without a name of its own")
        names.add(name)


def decode_maps(raw: bytes) -> tuple[int, list[Mapping]]:
    """Decode the payload of a MAPS: the first index and the entries.

    Raises:
        InvalidRequest: anything that the contract doesn't name.
    """
    reader = _Reader(raw)
    first, count = reader.numbers(_MAPS)
    if not count:
        raise InvalidRequest("no mapping")
    entries: list[Mapping] = []
    for _ in range(count):
        flags, source_size, target_size = reader.numbers(_MAPPING)
        source, target = reader.take(source_size), reader.take(target_size)
        if flags & ~READ_ONLY:
            raise InvalidRequest("unknown flag of a mapping")
        entries.append(checked_mapping(source, target, read_only=bool(flags)))
    reader.end()
    return first, entries


def checked_mapping(source: bytes, target: bytes, *, read_only: bool) -> Mapping:
    """One mapping whose source is relative and whose target is absolute.

    Raises:
        InvalidRequest: a length, a NUL, or a component that is empty, `.` or `..`.
    """
    if not 0 < len(source) <= MAX_PATH or not 0 < len(target) <= MAX_PATH or 0 in source + target:
        raise InvalidRequest("path of a wrong length or with a NUL")
    if not target.startswith(b"/"):
        raise InvalidRequest("relative target")
    if any(part in {b"", b".", b".."} for part in (*source.split(b"/"), *target[1:].split(b"/"))):
        raise InvalidRequest("path with an empty or dotted component")
    return Mapping(source, target, read_only=read_only)
