"""Value grammars of the options that every launch uses (contract openvmm 1.1 to 1.4)."""

from __future__ import annotations

from fake_openvmm.machine import Block

ROLES = {"distro": 0xD0003000, "runtime": 0xD0004000, "custom": 0xD0005000, "scratch": 0xD0006000}
"""MMIO base of each block role, in role order (contract openvmm 1.2)."""

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class BadValue(Exception):  # noqa: N818 - what the parser says, not what went wrong with the program
    """A value that its option's grammar refuses; the text follows the value in the usage error."""


def unsigned(text: str, bits: int) -> int:
    """Read a decimal number of at most `bits` bits; one leading plus is taken, as the real parser does."""
    digits = text.removeprefix("+")
    if not digits:
        raise BadValue("cannot parse integer from empty string")
    if not (digits.isascii() and digits.isdigit()):
        raise BadValue("invalid digit found in string")
    digits = digits.lstrip("0") or "0"
    if (value := int(digits) if len(digits) < 40 else 1 << bits) >> bits:  # noqa: PLR2004 - longer is too large
        raise BadValue("number too large to fit in target type")
    return value


def word(text: str, *words: str) -> str:
    """Take one of `words`, exactly as spelled."""
    if text not in words:
        raise BadValue(f"[possible values: {', '.join(words)}]")
    return text


def size(text: str) -> int:
    """Read a size in bytes: integer, optional K, M, G or T (powers of 1,024), optional B."""
    number = text.removesuffix("B")
    unit = UNITS.get(number[-1:], 0)
    try:
        value = unsigned(number[:-1] if unit else number, 64) * (unit or 1)
    except BadValue:
        raise BadValue(f"invalid memory size '{text}'") from None
    if value >> 64:
        raise BadValue(f"memory size '{text}' overflows")
    return value


def split_options(text: str) -> list[str]:
    """Split at commas outside brackets; unbalanced brackets break it (contract openvmm 1.2, path gotchas)."""
    parts: list[str] = []
    depth, start = 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
            if depth < 0:
                raise BadValue(f"unmatched ']' in '{text}'")
        elif char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth:
        raise BadValue(f"unmatched '[' in '{text}'")
    parts.append(text[start:])
    return parts


class Memory:
    """`--memory` (contract openvmm 1.1): size in bytes and the backing that it asks for."""

    __slots__ = ("file", "hugepage_size", "hugepages", "prefetch", "shared", "size", "thp")

    def __init__(self) -> None:
        """Start with the defaults: 1 GiB, nothing else asked for."""
        self.size = 1 << 30
        self.shared: bool | None = None
        self.prefetch: bool | None = None
        self.thp: bool | None = None
        self.hugepages: bool | None = None
        self.hugepage_size: int | None = None
        self.file: str | None = None


def memory(text: str) -> Memory:
    """Read a bare size, or keys separated by commas; the rules between the keys are part of the grammar."""
    found = Memory()
    if "=" not in text and "," not in text:
        found.size = size(text)
        return found
    seen: set[str] = set()
    for part in split_options(text):
        key, equals, value = part.partition("=")
        if key in seen:
            raise BadValue(f"duplicate option '{key}'")
        seen.add(key)
        if key in ("shared", "prefetch", "thp", "hugepages"):
            setattr(found, key, _toggle(key, value if equals else "on"))
        elif key in ("size", "hugepage_size", "file"):
            if not value:
                raise BadValue(f"option '{key}' requires a value")
            setattr(found, key, value if key == "file" else size(value))
        else:
            raise BadValue(f"unknown option '{key}'")
    if found.hugepage_size is not None and not found.hugepages:
        raise BadValue("hugepage_size requires hugepages=on")
    if found.hugepages and found.shared is False:
        raise BadValue("hugepages=on conflicts with shared=off")
    if found.hugepages and found.file is not None:
        raise BadValue("hugepages=on conflicts with file=...")
    return found


def identity(text: str) -> tuple[int, int]:
    """Read `UID:GID`, both nonzero."""
    uid, colon, gid = text.partition(":")
    if not colon or ":" in gid:
        raise BadValue("expected <UID>:<GID>")
    pair = (unsigned(uid, 32), unsigned(gid, 32))
    if 0 in pair:
        raise BadValue("a workload identity must be nonzero")
    return pair


class BlockOption:
    """One `--microvm-sandbox-block`: the block, and what its disk asks for beyond a plain one."""

    __slots__ = ("block", "extra")

    def __init__(self, block: Block, extra: str) -> None:
        """Hold the block and the name of a disk option that the profile refuses, or an empty text."""
        self.block = block
        self.extra = extra


def block(text: str) -> BlockOption:
    """Read `ROLE:DISK` (contract openvmm 1.2)."""
    role, colon, disk = text.partition(":")
    if not colon:
        raise BadValue("expected ROLE:DISK")
    if role not in ROLES:
        raise BadValue(f"unknown sandbox block role '{role}'; expected distro, runtime, custom or scratch")
    kind, *flags = split_options(disk)
    readonly, extra = False, ""
    seen: set[str] = set()
    for flag in flags:
        key, equals, value = flag.partition("=")
        if key in seen:
            raise BadValue(f"duplicate option '{key}'")
        seen.add(key)
        if key in ("ro", "dvd", "vtl2", "uh", "uh-nvme"):
            on = _toggle(key, value if equals else "on")
            readonly = readonly or (on and key in ("ro", "dvd"))
            extra = key if on and key != "ro" else extra
        elif key in ("pcie_port", "on", "nsid", "lun", "relay"):
            if not value:
                raise BadValue(f"option '{key}' requires a value")
            extra = key
        else:
            raise BadValue(f"unknown option '{key}'")
    return BlockOption(_disk(role, kind, readonly=readonly), extra)


def _disk(role: str, text: str, *, readonly: bool) -> Block:
    kind, colon, argument = text.partition(":")
    if kind == "mem" and colon:
        return Block(role, None, readonly=readonly, base=ROLES[role], memory=size(argument))
    if kind != "file" or not colon:
        raise BadValue(f"invalid disk '{text}'; expected file:<path> or mem:<size>")
    path, *options = argument.split(";")
    direct, create = False, None
    for option in options:
        if option == "direct":
            direct = True
        elif option.startswith("create="):
            create = size(option.removeprefix("create="))
        else:
            raise BadValue(f"invalid file option '{option}', expected 'create=<len>' or 'direct'")
    if not path:
        raise BadValue("a file disk requires a path")
    return Block(role, path, readonly=readonly, base=ROLES[role], direct=direct, create=create)


class Console:
    """A console's endpoint (contract openvmm 1.4).

    Attributes:
        kind: `none`, `console`, `stderr`, `file`, `term`, or `listen` and `connect`, each with `-tcp` for TCP.
        value: a path, or an address for TCP.
        port: the TCP port, else 0.
    """

    __slots__ = ("kind", "port", "value")

    def __init__(self, kind: str, value: str = "", port: int = 0) -> None:
        """Hold the fields."""
        self.kind = kind
        self.value = value
        self.port = port


def console(text: str) -> Console:
    """Read a console; what follows the first comma, or a second equals sign, is dropped as the real parser does."""
    key, *values = text.split(",", 1)[0].split("=")
    if key in ("none", "console", "stderr"):
        return Console(key)
    if key == "term":
        return Console(key, values[0] if values else "")
    if key not in ("file", "listen", "connect"):
        raise BadValue(f"invalid serial configuration: '{key}' is not a known option")
    if not values:
        raise BadValue(f"invalid serial configuration: {key} requires a value")
    if key != "file" and values[0].startswith("tcp:"):
        address, port = _socket_address(values[0].removeprefix("tcp:"))
        return Console(f"{key}-tcp", address, port)
    return Console(key, values[0])


def _socket_address(text: str) -> tuple[str, int]:
    import socket  # noqa: PLC0415 - a boot console over TCP is rare, and every start would pay for it

    address, colon, port = text.rpartition(":")
    if not colon:
        raise BadValue("invalid serial configuration: invalid socket address syntax")
    family = socket.AF_INET
    if address.startswith("[") and address.endswith("]"):
        family, address = socket.AF_INET6, address[1:-1]
    try:
        socket.inet_pton(family, address)
    except OSError:
        raise BadValue("invalid serial configuration: invalid socket address syntax") from None
    return address, unsigned(port, 16)


def power_action(text: str) -> str:
    """Read `reset`, `halt`, `exit` or `exit:<code>` of the guest's power actions."""
    if text.startswith("exit:"):
        unsigned(text.removeprefix("exit:"), 8)
    elif text not in ("reset", "halt", "exit"):
        raise BadValue("expected reset, halt, exit, or exit:<code>")
    return text


def _toggle(key: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise BadValue(f"flag '{key}' expects no value, 'on', or 'off', got '{value}'")
    return value == "on"
