"""The record codec of the fake against the published vectors and every named invalid case (contract openvmm 3.3)."""

from __future__ import annotations

import os
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_openvmm import nvxs

IDENTITY = "000102030405060708090a0b0c0d0e0f07000000000000000900000000000000"
INSTANCE = bytes(range(16))
CAPABILITY = bytes(range(32))
VECTORS = {
    "GUEST_ATTACH": "4e56585301000100" + "00" * 36,
    "HOST_ATTACH": "4e56585301000200" + "00" * 32 + "20000000" + CAPABILITY.hex(),
    "RESET": "4e56585301000300" + IDENTITY + "00000000",
    "ACK": "4e56585301000400" + IDENTITY + "040000000a004000",
    "CREDIT": "4e56585301000900" + IDENTITY + "0400000000000100",
    "DATA": "4e56585301000500" + IDENTITY + "080000004e5658534e565853",
    "WAIT": "4e56585301000600" + IDENTITY + "00000000",
    "READY": "4e56585301000700" + IDENTITY + "00000000",
    "ERROR": "4e56585301000800" + IDENTITY + "0400000001000000",
}
PAYLOADS = {
    "HOST_ATTACH": CAPABILITY,
    "ACK": bytes.fromhex("0a004000"),
    "CREDIT": bytes.fromhex("00000100"),
    "DATA": b"NVXSNVXS",
    "ERROR": bytes.fromhex("01000000"),
}


def raw(  # noqa: PLR0913 - one per field
    type_: int,
    payload: bytes = b"",
    *,
    magic: bytes = b"NVXS",
    version: int = 1,
    flags: int = 0,
    instance: bytes = INSTANCE,
    epoch: int = 7,
    sequence: int = 9,
    length: int | None = None,
) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack("<4sHBB16sQQI", magic, version, type_, flags, instance, epoch, sequence, size) + payload


def word(value: int) -> bytes:
    return struct.pack("<I", value)


ZERO = {"instance": bytes(16), "epoch": 0, "sequence": 0}
INVALID = {
    "data of no bytes": raw(5),
    "data of 65,537 bytes": raw(5, bytes(65_537)),
    "data that declares 65,537 bytes": raw(5, length=65_537),
    "ack below the window": raw(4, word(65_535)),
    "ack over the window": raw(4, word(4_194_315)),
    "ack of 3 bytes": raw(4, bytes(3)),
    "credit of 0": raw(9, word(0)),
    "credit over the limit": raw(9, word(4_194_315)),
    "credit of 5 bytes": raw(9, bytes(5)),
    "magic": raw(5, b"x", magic=b"XVXS"),
    "version 2": raw(5, b"x", version=2),
    "version 0": raw(5, b"x", version=0),
    "type 99": raw(99),
    "type 0": raw(0),
    "type 10": raw(10),
    "flags": raw(5, b"x", flags=1),
    "guest attach with an instance": raw(1, epoch=0, sequence=0),
    "guest attach with an epoch": raw(1, instance=bytes(16), sequence=0),
    "guest attach with a sequence": raw(1, instance=bytes(16), epoch=0),
    "guest attach with a payload": raw(1, b"x", **ZERO),  # type: ignore[arg-type]
    "host attach with an instance": raw(2, CAPABILITY, epoch=0, sequence=0),
    "host attach with an epoch": raw(2, CAPABILITY, instance=bytes(16), sequence=0),
    "host attach with a sequence": raw(2, CAPABILITY, instance=bytes(16), epoch=0),
    "host attach of 31 bytes": raw(2, CAPABILITY[:31], **ZERO),  # type: ignore[arg-type]
    "host attach of 33 bytes": raw(2, CAPABILITY + b"x", **ZERO),  # type: ignore[arg-type]
    "host attach of no bytes": raw(2, **ZERO),  # type: ignore[arg-type]
    "reset with a payload": raw(3, b"x"),
    "wait with a payload": raw(6, b"x"),
    "ready with a payload": raw(7, b"x"),
    "error of 3 bytes": raw(8, bytes(3)),
    "error of 5 bytes": raw(8, bytes(5)),
    **{f"error code {code}": raw(8, word(code)) for code in (0, 2, 3, 4, 5, 6, 0xFFFFFFFF)},
}
JUDGED_BY_HEADER = [
    name
    for name in INVALID
    if "below" not in name
    and "code" not in name
    and name not in {"ack over the window", "credit of 0", "credit over the limit"}
]


def drain(parser: nvxs.Parser) -> list[nvxs.Record]:
    found: list[nvxs.Record] = []
    while (record := parser.take()) is not None:
        found.append(record)
    return found


def read(*portions: bytes) -> list[nvxs.Record]:
    parser = nvxs.Parser()
    found: list[nvxs.Record] = []
    for portion in portions:
        parser.feed(portion)
        found += drain(parser)
    return found


def fields(record: nvxs.Record) -> tuple[str, bytes, int, int, bytes]:
    return nvxs.NAMES[record.type], record.instance, record.epoch, record.sequence, record.payload


def expected(name: str) -> tuple[str, bytes, int, int, bytes]:
    bootstrap = name.endswith("ATTACH")
    identity = (bytes(16), 0, 0) if bootstrap else (INSTANCE, 7, 9)
    return (name, *identity, PAYLOADS.get(name, b""))


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_read_at_every_split(name: str) -> None:
    data = bytes.fromhex(VECTORS[name])
    for split in range(len(data) + 1):
        parser = nvxs.Parser()
        parser.feed(data[:split])
        early = drain(parser)
        assert bool(early) == (split == len(data))
        parser.feed(data[split:])
        assert [fields(record) for record in early + drain(parser)] == [expected(name)]


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_read_byte_by_byte_and_coalesced(name: str) -> None:
    data = bytes.fromhex(VECTORS[name])
    parser = nvxs.Parser()
    found: list[nvxs.Record] = []
    for byte in data * 3:
        parser.feed(bytes([byte]))
        found += drain(parser)
    parser.feed(data * 2)
    assert [fields(record) for record in found + drain(parser)] == [expected(name)] * 5


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_written(name: str) -> None:
    type_ = nvxs.NAMES.index(name)
    bootstrap = name.endswith("ATTACH")
    written = (
        nvxs.encode(type_, PAYLOADS.get(name, b""))
        if bootstrap
        else nvxs.encode(type_, PAYLOADS.get(name, b""), instance=INSTANCE, epoch=7, sequence=9)
    )
    assert written.hex() == VECTORS[name]


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_record_is_refused_at_every_split(name: str) -> None:
    data = INVALID[name]
    splits = range(len(data)) if len(data) < 1000 else (0, 1, 43, 44, 45, len(data) - 1)
    for split in splits:
        with pytest.raises(nvxs.RecordError):
            read(data[:split], data[split:])


@pytest.mark.parametrize("name", JUDGED_BY_HEADER)
def test_a_bad_header_is_refused_without_its_body(name: str) -> None:
    parser = nvxs.Parser()
    parser.feed(INVALID[name][:43])
    assert parser.take() is None
    parser.feed(INVALID[name][43:44])
    with pytest.raises(nvxs.RecordError):
        parser.take()


def test_a_record_before_a_bad_one_is_still_given() -> None:
    parser = nvxs.Parser()
    parser.feed(bytes.fromhex(VECTORS["WAIT"]) + INVALID["magic"])
    first = parser.take()
    assert first is not None
    assert first.type == nvxs.WAIT
    with pytest.raises(nvxs.RecordError):
        parser.take()


def test_the_capability_is_not_shown() -> None:
    parser = nvxs.Parser()
    parser.feed(bytes.fromhex(VECTORS["HOST_ATTACH"]))
    assert CAPABILITY.hex() not in repr(parser.take())
    assert repr(CAPABILITY) not in repr(nvxs.Record(nvxs.HOST_ATTACH, CAPABILITY))


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([nvxs.RESET, nvxs.DATA, nvxs.WAIT, nvxs.READY]),
        st.binary(min_size=1, max_size=200),
        st.integers(0, nvxs.MAX_NUMBER),
        st.integers(0, nvxs.MAX_NUMBER),
        st.binary(min_size=16, max_size=16),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(records=RECORDS, data=st.data())
def test_any_records_in_any_portions_come_out_as_they_went_in(
    records: list[tuple[int, bytes, int, int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(
        raw(type_, payload if type_ == nvxs.DATA else b"", instance=instance, epoch=epoch, sequence=sequence)
        for type_, payload, epoch, sequence, instance in records
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser = nvxs.Parser()
    found: list[nvxs.Record] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        parser.feed(stream[start:end])
        found += drain(parser)
    assert parser.buffered == 0
    assert [(r.type, r.payload, r.epoch, r.sequence, r.instance) for r in found] == [
        (type_, payload if type_ == nvxs.DATA else b"", epoch, sequence, instance)
        for type_, payload, epoch, sequence, instance in records
    ]


RECORDS_AT_ONCE = 100
EXAMPLES = int(os.environ.get("NVX_RANDOM_RECORDS", "10000")) // RECORDS_AT_ONCE


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.integers(0, 1 << 64))
def test_many_random_records_come_out_as_they_went_in(seed: int) -> None:
    """10,000 of them, or as many as NVX_RANDOM_RECORDS says."""
    chance = random.Random(seed)  # noqa: S311 - a stream to repeat, no secret
    parser = nvxs.Parser()
    for _ in range(RECORDS_AT_ONCE):
        type_ = chance.choice((nvxs.RESET, nvxs.DATA, nvxs.WAIT, nvxs.READY, nvxs.ACK, nvxs.CREDIT))
        payload = b""
        if type_ == nvxs.DATA:
            payload = chance.randbytes(chance.choice((1, 2, 44, 500, 65_536)))
        elif type_ in {nvxs.ACK, nvxs.CREDIT}:
            payload = word(chance.randrange(65_536, 4_194_315))
        epoch, sequence, instance = chance.getrandbits(64), chance.getrandbits(64), chance.randbytes(16)
        stream = raw(type_, payload, instance=instance, epoch=epoch, sequence=sequence)
        split = chance.randrange(len(stream) + 1)
        parser.feed(stream[:split])
        early = drain(parser)
        parser.feed(stream[split:])
        (record,) = early + drain(parser)
        found = (record.type, record.payload, record.epoch, record.sequence, record.instance)
        assert found == (type_, payload, epoch, sequence, instance)


@settings(deadline=None)
@given(st.binary(min_size=44, max_size=200))
def test_random_bytes_are_refused_or_keep_the_parser_bounded(noise: bytes) -> None:
    parser = nvxs.Parser()
    parser.feed(noise)
    try:
        drain(parser)
    except nvxs.RecordError:
        return
    assert noise.startswith(b"NVXS")
