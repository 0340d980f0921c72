"""Value grammars of the host directory options (contract openvmm 1.6). Imported only when one of them is given."""

from __future__ import annotations

from fake_openvmm.grammar import BadValue

NAME_BYTES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
NAME_LIMIT = 64
TARGET_LIMIT = 4096


class Mount:
    """`--mount TARGET,HOST[,ro|rw]`."""

    __slots__ = ("host", "readonly", "target")

    def __init__(self, target: str, host: str, *, readonly: bool) -> None:
        """Hold the fields."""
        self.target = target
        self.host = host
        self.readonly = readonly


class Child:
    """`--mount-child NAME,HOST[,ro|rw]`."""

    __slots__ = ("host", "name", "readonly")

    def __init__(self, name: str, host: str, *, readonly: bool) -> None:
        """Hold the fields."""
        self.name = name
        self.host = host
        self.readonly = readonly


def target_fault(target: str) -> str | None:
    """Say what is wrong with a guest target, or None.

    It is absolute, not the root, at most 4,096 bytes, without white space, NUL, backslash, equals sign, and without
    empty, dot or parent components.
    """
    if (
        not target.startswith("/")
        or target == "/"
        or len(target.encode()) > TARGET_LIMIT
        or any(char.isspace() or char in "\0\\=" for char in target)
        or any(part in ("", ".", "..") for part in target.split("/")[1:])
    ):
        return f"invalid guest mount target '{target}'"
    return None


def mount(text: str) -> Mount:
    """Read a mount; the text is split into at most three fields, so the host path holds no comma."""
    fields = text.split(",", 2)
    if len(fields) < 2 or not fields[0] or not fields[1]:  # noqa: PLR2004 - target and host
        raise BadValue("expected <guest-target>,<host-path>[,ro|rw]")
    mode = fields[2] if len(fields) > 2 else "ro"  # noqa: PLR2004 - and mode
    if mode not in ("ro", "rw"):
        raise BadValue(f"invalid microVM mount mode '{mode}'; expected ro or rw")
    fault = target_fault(fields[0])
    if fault:
        raise BadValue(fault)
    return Mount(fields[0], fields[1], readonly=mode == "ro")


def child(text: str) -> Child:
    """Read a child; text after the last comma that is no mode belongs to the host path."""
    name, comma, rest = text.partition(",")
    host, last, mode = rest.rpartition(",")
    if not last or mode not in ("ro", "rw"):
        host, mode = rest, "ro"
    if not comma or not host:
        raise BadValue("expected <name>,<host-path>[,ro|rw]")
    if not 1 <= len(name) <= NAME_LIMIT or name in (".", "..") or any(char not in NAME_BYTES for char in name):
        raise BadValue(f"invalid microVM aggregate child name '{name}'")
    return Child(name, host, readonly=mode == "ro")
