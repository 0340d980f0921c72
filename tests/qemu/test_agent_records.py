"""The agent's reading of records, held against its rules, hostile bytes and the fake's reading."""

from __future__ import annotations

import random
import struct

import pytest

from agent_inputs import Ask, mutated, number
from fake_openvmm import nvxs

INSTANCE = bytes(range(16))


def record(type_: int, payload: bytes = b"", *, epoch: int = 7, sequence: int = 9, **fields: object) -> bytes:
    magic, version, flags = fields.get("magic", b"NVXS"), fields.get("version", 1), fields.get("flags", 0)
    instance = fields.get("instance", bytes(16) if type_ <= 2 else INSTANCE)
    if type_ <= 2 and "instance" not in fields:
        epoch, sequence = int(str(fields.get("first", 0))), 0
    length = fields.get("length", len(payload))
    return struct.pack("<4sHBB16sQQI", magic, version, type_, flags, instance, epoch, sequence, length) + payload


GOOD = {
    "GUEST_ATTACH": record(1),
    "HOST_ATTACH": record(2, bytes(range(32))),
    "RESET": record(3),
    "ACK": record(4, number(4_194_314)),
    "the least ACK": record(4, number(65_536)),
    "CREDIT": record(9, number(1)),
    "DATA": record(5, b"NVXSNVXS"),
    "the least DATA": record(5, b"x"),
    "the most DATA": record(5, b"x" * 65_536),
    "WAIT": record(6),
    "READY": record(7),
    "ERROR": record(8, number(1)),
    "the largest numbers": record(7, epoch=2**64 - 1, sequence=2**64 - 1),
}
BAD = {
    "magic": record(7, magic=b"XVXS"),
    "version": record(7, version=2),
    "type 0": record(0),
    "type 10": record(10),
    "type 99": record(99),
    "flags": record(7, flags=1),
    "empty DATA": record(5),
    "DATA too long": record(5, length=65_537),
    "DATA far too long": record(5, length=2**32 - 1),
    "small window": record(4, number(65_535)),
    "large window": record(4, number(4_194_315)),
    "no credit": record(9, number(0)),
    "large credit": record(9, number(4_194_315)),
    "ACK of 3 bytes": record(4, bytes(3)),
    "RESET with a body": record(3, b"x"),
    "WAIT with a body": record(6, b"x"),
    "READY with a body": record(7, b"x"),
    "HOST_ATTACH of 31 bytes": record(2, bytes(31)),
    "GUEST_ATTACH with a body": record(1, b"x"),
    "GUEST_ATTACH with an instance": record(1, instance=INSTANCE, epoch=0, sequence=0),
    "GUEST_ATTACH with an epoch": record(1, first=1),
    "ERROR 0": record(8, number(0)),
    "ERROR 2": record(8, number(2)),
    "ERROR of 5 bytes": record(8, bytes(5)),
}


def fake_records(raw: bytes) -> str:
    parser = nvxs.Parser()
    parser.feed(raw)
    found: list[str] = []
    try:
        while (one := parser.take()) is not None:
            head = nvxs.encode(one.type, one.payload, instance=one.instance, epoch=one.epoch, sequence=one.sequence)
            said = f"{one.type} {one.instance.hex()} {one.epoch} {one.sequence} {one.payload.hex()}"
            found.append(f"{said} {head[:44].hex()};")
    except nvxs.RecordError:
        found.append("error")
    return "".join(found)


@pytest.mark.parametrize("piece", [1, 7, 44, 4096, 1 << 20])
def test_records_are_read_whole_however_they_come(ask: Ask, piece: int) -> None:
    inputs = [*GOOD.values(), b"".join(GOOD.values())]
    found = ask("nvxs", inputs, str(piece))
    assert found == [fake_records(one) for one in inputs]
    assert all(not one.endswith("error") for one in found)
    assert found[-1].count(";") == len(GOOD)


@pytest.mark.parametrize("name", BAD)
def test_a_record_against_the_rules_is_the_last(ask: Ask, name: str) -> None:
    after = BAD[name] + GOOD["READY"] * 2
    assert ask("nvxs", [after, GOOD["READY"] + after], "44") == ["error", f"{fake_records(GOOD['READY'])}error"]


def test_a_record_cut_short_anywhere_is_waited_for(ask: Ask) -> None:
    whole = GOOD["HOST_ATTACH"]
    assert ask("nvxs", [whole[:size] for size in range(len(whole))], "16") == [""] * len(whole)


def test_hostile_records_are_read_as_the_fake_reads_them(ask: Ask) -> None:
    chance = random.Random(20)  # noqa: S311 - the same inputs every time
    inputs = [mutated(chance, b"".join(chance.choices(list(GOOD.values()), k=3))[:9000]) for _ in range(1500)]
    assert ask("nvxs", inputs, "100") == [fake_records(one) for one in inputs]
