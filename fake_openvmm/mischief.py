"""Records and frames that a well-behaved machine would never send, at the harness's request only.

`host_records` changes records on their way to the host, `frames` what a managed guest says in NVXC. Both are lists of
rules; each record or frame obeys the first rule that names it:

    {"type": "READY", "hit": 2, "set": {"epoch": 9}, "payload": "00ff", "drop": true, "repeat": 3,
     "before": "hex", "after": "hex", "cut": 10, "split": [1, 43]}

`type` is the record's name (for `frames` `kind`, the frame's); without it every one is meant. `hit` counts those of
that name from 1. `set` writes header fields, `payload` replaces the payload (and the length, unless set), `cut` closes
the connection after so many bytes, `split` says where the record is cut into pieces, each written when
the host has read the one before. `split` and `cut` are for records only.
"""

from __future__ import annotations

import itertools
import os

from fake_openvmm import nvxc, nvxs
from fake_openvmm.knobs import SideFileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import struct
    from collections.abc import Iterable

    from fake_openvmm.agent import Agent
    from fake_openvmm.knobs import Knobs
    from fake_openvmm.machine import Json

RECORD_FIELDS = ("magic", "version", "type", "flags", "instance", "epoch", "sequence", "length")
FRAME_FIELDS = ("magic", "version", "kind", "flags", "request", "status", "length")
RECORD_KEYS = {"type", "hit", "set", "payload", "drop", "repeat", "before", "after", "cut", "split"}
FRAME_KEYS = {"kind", "hit", "set", "payload", "drop", "repeat", "before", "after"}
KINDS = {"", "silent", "chatty", "garbage", "broken"}
GUEST_POINTS = (
    "guest_boot",
    "guest_attach",
    "after_ready",
    "guest_trigger",
    "before_maps",
    "before_exec",
    "before_stopped",
)
CHATTER = 3


def check(knobs: Knobs) -> None:
    """Refuse what would never happen: a rule, a point or a kind of guest that doesn't exist.

    Raises:
        SideFileError: names it.
    """
    if knobs.text("guest") not in KINDS:
        raise SideFileError(f"no guest is {knobs.text('guest')!r}")
    for rule in knobs.items("host_records"):
        _check_rule("host_records", rule, "type", RECORD_KEYS, nvxs.NAMES[1:], RECORD_FIELDS)
    for rule in knobs.items("frames"):
        _check_rule("frames", rule, "kind", FRAME_KEYS, nvxc.NAMES.values(), FRAME_FIELDS)
    lists = ("guest_dead_at", "guest_hangs_at", "reboot_at")
    points = [*knobs.table("guest_exit_at"), *(point for name in lists for point in knobs.items(name))]
    for point in points:
        name, _, hit = point.partition("#") if isinstance(point, str) else ("", "", "")
        if name not in GUEST_POINTS or not (hit.isdecimal() or name == point):
            raise SideFileError(f"{point!r} is no point that a guest passes")
    for status in knobs.table("guest_exit_at").values():
        if not isinstance(status, int):
            raise SideFileError(f"{status!r} is no status")


def _check_rule(knob: str, rule: Json, key: str, keys: set[str], names: Iterable[str], fields: tuple[str, ...]) -> None:
    changes = rule.get("set", {}) if isinstance(rule, dict) else None
    if not isinstance(rule, dict) or not isinstance(changes, dict):
        raise SideFileError(f"{knob}: {rule!r} is no rule")
    unknown = [*(set(rule) - keys), *(set(changes) - set(fields))]
    name = rule.get(key)
    if unknown or (name is not None and name not in list(names)):
        raise SideFileError(f"{knob}: {rule!r} names {', '.join(unknown) or name}, which doesn't exist")


class Rules:
    """A list of rules, and how often each name has come by."""

    def __init__(self, rules: list[Json], key: str, fields: tuple[str, ...], header: struct.Struct) -> None:
        self._rules = [rule for rule in rules if isinstance(rule, dict)]
        self._key = key
        self._fields = fields
        self._header = header
        self._hits: dict[str, int] = {}

    def find(self, name: str) -> dict[str, Json]:
        """The rule for the next one of this name, empty without one."""
        hit = self._hits[name] = self._hits.get(name, 0) + 1
        for rule in self._rules:
            if rule.get(self._key, name) == name and rule.get("hit", hit) == hit:
                return rule
        return {}

    def change(self, raw: bytes, rule: dict[str, Json]) -> list[bytes]:
        """What the rule makes of one record or frame, each part to be sent on its own."""
        values = list(self._header.unpack_from(raw))
        payload = raw[self._header.size :]
        new = rule.get("payload")
        if isinstance(new, str):
            payload = bytes.fromhex(new)
            values[-1] = len(payload)
        changes = rule.get("set")
        for field, value in (changes if isinstance(changes, dict) else {}).items():
            values[self._fields.index(field)] = bytes.fromhex(value) if isinstance(value, str) else value
        repeat = rule.get("repeat", 1)
        copies = 0 if rule.get("drop") else repeat if isinstance(repeat, int) else 1
        return [_hex(rule, "before"), *[self._header.pack(*values) + payload] * copies, _hex(rule, "after")]


class Shaper:
    """Changes and cuts up records on their way to the host."""

    def __init__(self, knobs: Knobs) -> None:
        self._rules = Rules(knobs.items("host_records"), "type", RECORD_FIELDS, nvxs.HEADER)
        self._size = knobs.integer("split_records", 0)

    def shape(self, raw: bytes) -> tuple[list[bytes], bool]:
        """The pieces to write for one record, and whether the connection is closed after them."""
        rule = self._rules.find(nvxs.NAMES[raw[6]])
        changed = b"".join(self._rules.change(raw, rule))
        cut = rule.get("cut")
        if isinstance(cut, int):
            changed = changed[:cut]
        points = [point for point in _list(rule.get("split")) if isinstance(point, int)]
        if self._size and not points:
            points = list(range(self._size, len(changed), self._size))
        bounds = [0, *points, len(changed)]
        return [changed[low:high] for low, high in itertools.pairwise(bounds)], isinstance(cut, int)


class Mischief:
    """A managed guest that is silent, chatty, full of garbage, or says frames by rule.

    Attributes:
        silent: whether it answers nothing at all.
    """

    def __init__(self, knobs: Knobs) -> None:
        self._kind = knobs.text("guest")
        self._rules = Rules(knobs.items("frames"), "kind", FRAME_FIELDS, nvxc.HEADER)
        self.silent = self._kind == "silent"

    def say(self, raw: bytes, agent: Agent) -> None:
        """Say what this guest says in place of one frame."""
        frame = nvxc.HEADER.unpack_from(raw)
        rule = self._rules.find(nvxc.NAMES.get(frame[2], ""))
        if self._kind == "broken":
            agent.noise(os.urandom(64))
            return
        if self._kind == "garbage":
            agent.send(os.urandom(64))
            return
        if self._kind == "chatty":
            for index in range(CHATTER):
                agent.send(nvxc.encode(nvxc.STDOUT, (frame[4] + index) % nvxs.MAX_NUMBER + 1, b"unasked"))
        for part in self._rules.change(raw, rule):
            agent.send(part)


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _hex(rule: dict[str, Json], name: str) -> bytes:
    value = rule.get(name)
    return bytes.fromhex(value) if isinstance(value, str) else b""
