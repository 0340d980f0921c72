"""The agent's reading of requests, held against its rules, hostile bytes and the fake's reading."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from agent_inputs import Ask, mutated, number
from fake_openvmm import nvxc


def frame(kind: int, request: int = 1, payload: bytes = b"", **fields: int) -> bytes:
    values = {"version": 1, "flags": 0, "status": 0, "length": len(payload), **fields}
    head = (values["version"], kind, values["flags"], request, values["status"], values["length"])
    return struct.pack("<4sBBHQiI", b"NVXC", *head) + payload


def item(data: bytes) -> bytes:
    return number(len(data)) + data


def exec_payload(*arguments: bytes, timeout: int = 0, **more: object) -> bytes:
    head = struct.pack("<IHH", timeout, len(arguments), 1 if more else 0)
    directory = more.get("cwd", b"")
    entries = more.get("env", [])
    assert isinstance(directory, bytes)
    assert isinstance(entries, list)
    if more:
        flags = more.get("flags", bool(directory) | bool("env" in more) << 1)
        head += struct.pack("<HHI", flags, len(entries), len(directory))
    return head + b"".join(map(item, arguments)) + directory + b"".join(map(item, entries))


GOLDEN_EXEC = "8813000003000000070000002f62696e2f7368020000002d63070000006563686f206869"
EXECS = [
    bytes.fromhex(GOLDEN_EXEC),
    bytes.fromhex("0000000001000100010000000400000" + "0080000002f62696e2f7077642f746d70"),
    exec_payload(b"/bin/true", env=[]),
    exec_payload(b"/bin/true", env=[b"A=1", b"AB=", b"B=A=2"], cwd=b"/tmp"),
    exec_payload(b"/bin/true", env=[b"A=1"], flags=6),
    exec_payload(*[b"/x" * 2048] * 64),
    exec_payload(b"/x", env=[b"%d=" % one for one in range(256)]),
    # against the rules
    b"",
    exec_payload(),
    exec_payload(b"relative"),
    exec_payload(b"/a\0b"),
    exec_payload(b""),
    exec_payload(*[b"/x"] * 65),
    exec_payload(b"/x" * 2049),
    exec_payload(b"/x", env=[b"A=1", b"A=2"]),
    exec_payload(b"/x", env=[b"=1"]),
    exec_payload(b"/x", env=[b"A"]),
    exec_payload(b"/x", env=[b"A=1"], flags=0),
    exec_payload(b"/x", env=[], flags=4),
    exec_payload(b"/x", env=[], flags=8),
    exec_payload(b"/x", cwd=b"tmp"),
    exec_payload(b"/x", cwd=b"/tmp", flags=0),
    exec_payload(b"/x", env=[], flags=3),
    exec_payload(b"/x", cwd=b"/" * 4097),
    exec_payload(b"/x", env=[b"%d=" % one for one in range(257)]),
    exec_payload(b"/x") + b"\0",
    struct.pack("<IHH", 0, 1, 2) + item(b"/x"),
]


def fake_exec(raw: bytes) -> str:
    try:
        found = nvxc.decode_exec(raw)
    except nvxc.InvalidRequest:
        return "bad"
    own = found.environment is not None
    parts = [f"{found.timeout_ms} {int(own)} {int(found.inherits)} :"]
    parts += [f" {one.hex()}" for one in found.arguments]
    parts.append(" :" + (f" {found.directory.hex()}" if found.directory else ""))
    parts.append(" :" + "".join(f" {one.hex()}" for one in found.environment or []))
    return "".join(parts)


def fake_frame(raw: bytes) -> str:
    try:
        found = nvxc.decode(raw)
    except nvxc.FrameError:
        return "bad"
    return f"{found.kind} {found.request} {found.payload.hex()}"


def fake_maps(raw: bytes) -> str:
    try:
        first, entries = nvxc.decode_maps(raw)
    except nvxc.InvalidRequest:
        return "bad"
    return f"{first}" + "".join(f" :{int(one.read_only)} {one.source.hex()} {one.target.hex()}" for one in entries)


def maps_payload(*entries: tuple[int, bytes, bytes], first: int = 0, count: int | None = None) -> bytes:
    head = struct.pack("<II", first, len(entries) if count is None else count)
    return head + b"".join(struct.pack("<HHH", flags, len(a), len(b)) + a + b for flags, a, b in entries)


MAPS = [
    bytes.fromhex("00000000020000000000010005003" + "02f776f726b0100050004003" + "12f7372632f737263"),
    maps_payload((0, b"0", b"/x"), first=9),
    maps_payload((1, b"a/.b/..c", b"/..."), (0, b"x" * 4095, b"/" + b"y" * 4094)),
    # against the rules
    b"",
    maps_payload(),
    maps_payload((2, b"0", b"/x")),
    maps_payload((0, b"", b"/x")),
    maps_payload((0, b"0", b"x")),
    maps_payload((0, b"0", b"/")),
    maps_payload((0, b"/0", b"/x")),
    maps_payload((0, b".", b"/x")),
    maps_payload((0, b"a/../b", b"/x")),
    maps_payload((0, b"a//b", b"/x")),
    maps_payload((0, b"a/", b"/x")),
    maps_payload((0, b"a", b"/x/..")),
    maps_payload((0, b"a\0", b"/x")),
    maps_payload((0, b"x" * 4096, b"/x")),
    maps_payload((0, b"0", b"/x"), count=2),
    maps_payload((0, b"0", b"/x"), count=2**32 - 1),
    maps_payload((0, b"0", b"/x")) + b"x",
]

FRAMES = [
    frame(1),
    frame(2, 2**64 - 1, b"x" * 100),
    frame(0x81),
    bytes.fromhex("4e5658430101000008070605040302010000000000000000"),
    frame(1, 0),
    frame(1, version=2),
    frame(1, flags=1),
    frame(1, status=1),
    frame(1, status=-1),
    frame(1, length=1),
    frame(1, payload=b"xx", length=1),
    frame(1)[:23],
    b"",
]

KINDS: dict[str, tuple[list[bytes], Callable[[bytes], str]]] = {
    "nvxc": (FRAMES, fake_frame),
    "exec": (EXECS, fake_exec),
    "maps": (MAPS, fake_maps),
}


@pytest.mark.parametrize("mode", KINDS)
def test_requests_are_taken_and_refused_by_the_rules(ask: Ask, mode: str) -> None:
    inputs, reading = KINDS[mode]
    found = ask(mode, inputs)
    assert found == [reading(one) for one in inputs]
    assert {"bad"} < set(found)


@pytest.mark.parametrize("mode", KINDS)
def test_hostile_requests_are_read_as_the_fake_reads_them(ask: Ask, mode: str) -> None:
    inputs, reading = KINDS[mode]
    chance = random.Random(mode)  # noqa: S311 - the same inputs every time
    tried = [mutated(chance, chance.choice([one for one in inputs if len(one) < 4096])) for _ in range(2000)]
    found = ask(mode, tried)
    assert found == [reading(one) for one in tried]
    assert any(one != "bad" for one in found)
