"""The requests that carry something: EXEC and MAPS (contract openvmm 3.6). What is invalid is never sent."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from msgspec import Struct

from nvx_ref.errors import Malformed, Refused
from nvx_ref.nvxc.frame import MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_ARGUMENTS = 64
MAX_ITEM = 4096
"""The most bytes of an argument, an environment entry or a working directory."""
MAX_VARIABLES = 256
MAX_TIMEOUT_MS = 2**32 - 1
MAX_MAPPINGS = 4096
MAX_MAP_PATH = 4095
"""The most bytes of a mapping's source or target."""

_EXEC = struct.Struct("<IHH")
_EXTENSION = struct.Struct("<HHI")
_LENGTH = struct.Struct("<I")
_MAPS = struct.Struct("<II")
_ENTRY = struct.Struct("<HHH")
_HAS_CWD, _HAS_ENVIRONMENT, _INHERITS = 1, 2, 4
_READ_ONLY = 1


class ExecRequest(Struct, frozen=True, kw_only=True):
    """A program to run in the guest. Text is UTF-8; bytes that aren't come and go as surrogate escapes.

    Args:
        argv: The program, an absolute path, and its arguments: 1 to 64 items of 1 to 4,096 bytes without NUL.
        cwd: Its working directory, absolute; None is the guest's ``/``.
        environment: Entries ``NAME=VALUE`` in their order, at most 256, names unique; None is the guest's default
            environment.
        inherit_environment: Lay the entries over the guest's default environment instead of replacing it; only with
            an environment.
        timeout_ms: When the guest ends the program, in milliseconds, 0 for never; at most 2**32 - 1.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    environment: tuple[str, ...] | None = None
    inherit_environment: bool = False
    timeout_ms: int = 0


class MapEntry(Struct, frozen=True):
    """One mapping of an exported object into the guest.

    Args:
        source: A path relative to the export, 1 to 4,095 bytes, without empty, ``.`` and ``..`` components.
        target: An absolute guest path with the same rules.
        read_only: Whether the guest mounts it read-only.
    """

    source: str
    target: str
    read_only: bool = False


def _item(text: str, what: str, most: int = MAX_ITEM) -> bytes:
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Malformed("it can't be written as bytes", subject=what, detail="encoding") from None
    if not data:
        raise Malformed("it is empty", subject=what, detail="empty")
    if len(data) > most:
        raise Refused(f"it has {len(data)} bytes, more than {most}", subject=what, detail="length")
    if b"\0" in data:
        raise Malformed("it holds a NUL", subject=what, detail="nul")
    return data


def _absolute(data: bytes, what: str) -> bytes:
    if not data.startswith(b"/"):
        raise Malformed("it is no absolute path", subject=what, detail="not-absolute")
    return data


def _environment(entries: Sequence[str]) -> list[bytes]:
    if len(entries) > MAX_VARIABLES:
        raise Refused(f"{len(entries)} variables are more than {MAX_VARIABLES}", subject="environment", detail="count")
    items: list[bytes] = []
    names: set[bytes] = set()
    for number, entry in enumerate(entries, 1):
        what = f"environment entry {number}"
        item = _item(entry, what)
        name, equals, _ = item.partition(b"=")
        if not name or not equals:
            raise Malformed("it is not NAME=VALUE", subject=what, detail="name")
        if name in names:
            raise Malformed("its name occurs twice", subject=what, detail="duplicate")
        names.add(name)
        items.append(item)
    return items


def encode_exec(request: ExecRequest) -> bytes:
    """Return the payload of an EXEC.

    The extended form is used only where it is needed, so that an old guest understands the rest.

    Raises:
        Malformed: An item has a form that no guest takes; ``detail`` is one of ``encoding``, ``empty``, ``nul``,
            ``not-absolute``, ``name``, ``duplicate``, ``no-environment``.
        Refused: A limit is passed; ``detail`` is ``count``, ``length`` or ``timeout``.
    """
    if not 1 <= len(request.argv) <= MAX_ARGUMENTS:
        raise Refused(f"a command has 1 to {MAX_ARGUMENTS} items", subject="argv", detail="count")
    if not 0 <= request.timeout_ms <= MAX_TIMEOUT_MS:
        raise Refused(f"it is 0 to {MAX_TIMEOUT_MS} ms", subject="timeout", detail="timeout")
    arguments = [_item(text, f"argument {number}") for number, text in enumerate(request.argv)]
    _absolute(arguments[0], "program")
    cwd = b"" if request.cwd is None else _absolute(_item(request.cwd, "cwd"), "cwd")
    if request.inherit_environment and request.environment is None:
        raise Malformed("there are no entries to lay over it", subject="environment", detail="no-environment")
    variables = _environment(request.environment or ())
    extended = bool(cwd) or request.environment is not None
    parts = [_EXEC.pack(request.timeout_ms, len(arguments), int(extended))]
    if extended:
        flags = _HAS_CWD if cwd else 0
        flags |= 0 if request.environment is None else _HAS_ENVIRONMENT
        flags |= _INHERITS if request.inherit_environment else 0
        parts.append(_EXTENSION.pack(flags, len(variables), len(cwd)))
    parts += [_LENGTH.pack(len(item)) + item for item in arguments]
    parts.append(cwd)
    parts += [_LENGTH.pack(len(item)) + item for item in variables]
    payload = b"".join(parts)
    if len(payload) > MAX_PAYLOAD:
        raise Refused(f"it takes {len(payload)} bytes, more than {MAX_PAYLOAD}", subject="command", detail="length")
    return payload


def _map_path(text: str, what: str, *, absolute: bool) -> bytes:
    data = _item(text, what, MAX_MAP_PATH)
    if data.startswith(b"/") != absolute:
        form = "no absolute path" if absolute else "no path relative to the export"
        raise Malformed(f"it is {form}", subject=what, detail="not-absolute" if absolute else "not-relative")
    components = (data[1:] if absolute else data).split(b"/")
    if not {b"", b".", b".."}.isdisjoint(components):
        raise Malformed("it has an empty, . or .. component", subject=what, detail="component")
    return data


def encode_maps(entries: Iterable[MapEntry], *, first: int = 0) -> list[tuple[int, bytes]]:
    """Return the payloads of the MAPS requests that carry a table, in order.

    Args:
        entries: The table, or the part of it that comes next; none is no request.
        first: How many entries the guest has applied already.

    Returns:
        For each request the number of its entries and its payload; as many entries in each as fit.

    Raises:
        Malformed: A path has a form that no guest takes; ``detail`` is one of ``encoding``, ``empty``, ``nul``,
            ``not-absolute``, ``not-relative``, ``component``.
        Refused: A path is too long (``length``), or the table has more than 4,096 entries (``count``).
    """
    requests: list[tuple[int, bytes]] = []
    parts: list[bytes] = []
    size, done = _MAPS.size, first
    for number, entry in enumerate(entries, first):
        source = _map_path(entry.source, f"mapping {number} source", absolute=False)
        target = _map_path(entry.target, f"mapping {number} target", absolute=True)
        if number >= MAX_MAPPINGS:
            raise Refused(f"a table has at most {MAX_MAPPINGS} mappings", subject="mappings", detail="count")
        item = _ENTRY.pack(_READ_ONLY if entry.read_only else 0, len(source), len(target)) + source + target
        if size + len(item) > MAX_PAYLOAD:
            requests.append((len(parts), _MAPS.pack(done, len(parts)) + b"".join(parts)))
            done, size, parts = done + len(parts), _MAPS.size, []
        parts.append(item)
        size += len(item)
    if parts:
        requests.append((len(parts), _MAPS.pack(done, len(parts)) + b"".join(parts)))
    return requests
