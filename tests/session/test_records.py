"""The record codec and the parser: one valid form, taken whole from any pieces, and nothing else."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvx_ref.errors import Malformed
from nvx_ref.session import MAX_DATA, Record, RecordParser, RecordType, encode

INSTANCE = bytes(range(16))
CAPABILITY = bytes(range(32))
IDENTITY = "000102030405060708090a0b0c0d0e0f07000000000000000900000000000000"


def in_session(kind: RecordType, payload: bytes = b"") -> Record:
    return Record(kind, payload, INSTANCE, 7, 9)


VECTORS = {
    "GUEST_ATTACH": (Record(RecordType.GUEST_ATTACH), "4e56585301000100" + "00" * 36),
    "HOST_ATTACH": (
        Record(RecordType.HOST_ATTACH, CAPABILITY),
        "4e56585301000200" + "00" * 32 + "20000000" + CAPABILITY.hex(),
    ),
    "RESET": (in_session(RecordType.RESET), "4e56585301000300" + IDENTITY + "00000000"),
    "ACK_INITIAL_CREDIT": (
        in_session(RecordType.ACK, bytes.fromhex("0a004000")),
        "4e56585301000400" + IDENTITY + "040000000a004000",
    ),
    "CREDIT": (
        in_session(RecordType.CREDIT, bytes.fromhex("00000100")),
        "4e56585301000900" + IDENTITY + "0400000000000100",
    ),
    "DATA_EMBEDDED_MAGIC": (
        in_session(RecordType.DATA, b"NVXSNVXS"),
        "4e56585301000500" + IDENTITY + "080000004e5658534e565853",
    ),
    "WAIT": (in_session(RecordType.WAIT), "4e56585301000600" + IDENTITY + "00000000"),
    "READY": (in_session(RecordType.READY), "4e56585301000700" + IDENTITY + "00000000"),
    "ERROR_AUTHENTICATION": (
        in_session(RecordType.ERROR, bytes.fromhex("01000000")),
        "4e56585301000800" + IDENTITY + "0400000001000000",
    ),
}


def raw(  # noqa: PLR0913 - a header has this many fields
    kind: int,
    payload: bytes = b"",
    *,
    magic: bytes = b"NVXS",
    version: int = 1,
    flags: int = 0,
    instance: bytes | None = None,
    epoch: int | None = None,
    sequence: int | None = None,
    length: int | None = None,
) -> bytes:
    bootstrap = kind in {1, 2}
    return (
        struct.pack(
            "<4sHBB16sQQI",
            magic,
            version,
            kind,
            flags,
            (bytes(16) if bootstrap else INSTANCE) if instance is None else instance,
            (0 if bootstrap else 7) if epoch is None else epoch,
            (0 if bootstrap else 9) if sequence is None else sequence,
            len(payload) if length is None else length,
        )
        + payload
    )


def word(value: int) -> bytes:
    return struct.pack("<I", value)


INVALID = {
    "DATA_LENGTH_0": (raw(5), "length"),
    "DATA_LENGTH_65537": (raw(5, bytes(65_537)), "length"),
    "DATA_HEADER_DECLARES_65537": (raw(5, length=65_537), "length"),
    "DATA_HEADER_DECLARES_MAX": (raw(5, length=2**32 - 1), "length"),
    "ACK_CREDIT_65535": (raw(4, word(65_535)), "credit"),
    "ACK_CREDIT_4194315": (raw(4, word(4_194_315)), "credit"),
    "ACK_EMPTY": (raw(4), "length"),
    "CREDIT_0": (raw(9, word(0)), "credit"),
    "CREDIT_4194315": (raw(9, word(4_194_315)), "credit"),
    "CREDIT_EMPTY": (raw(9), "length"),
    "BAD_MAGIC": (raw(7, magic=b"XVXS"), "magic"),
    "VERSION_0": (raw(7, version=0), "version"),
    "VERSION_2": (raw(7, version=2), "version"),
    "TYPE_0": (raw(0), "type"),
    "TYPE_10": (raw(10), "type"),
    "TYPE_99": (raw(99), "type"),
    "FLAGS_1": (raw(7, flags=1), "flags"),
    "GUEST_ATTACH_INSTANCE": (raw(1, instance=INSTANCE), "identity"),
    "GUEST_ATTACH_EPOCH": (raw(1, epoch=1), "identity"),
    "GUEST_ATTACH_SEQUENCE": (raw(1, sequence=1), "identity"),
    "GUEST_ATTACH_PAYLOAD": (raw(1, b"x"), "length"),
    "HOST_ATTACH_INSTANCE": (raw(2, CAPABILITY, instance=INSTANCE), "identity"),
    "HOST_ATTACH_EPOCH": (raw(2, CAPABILITY, epoch=1), "identity"),
    "HOST_ATTACH_SEQUENCE": (raw(2, CAPABILITY, sequence=1), "identity"),
    "HOST_ATTACH_EMPTY": (raw(2), "length"),
    "HOST_ATTACH_31": (raw(2, CAPABILITY[:31]), "length"),
    "HOST_ATTACH_33": (raw(2, CAPABILITY + b"x"), "length"),
    "RESET_PAYLOAD": (raw(3, b"x"), "length"),
    "WAIT_PAYLOAD": (raw(6, b"x"), "length"),
    "READY_PAYLOAD": (raw(7, b"x"), "length"),
    "ERROR_EMPTY": (raw(8), "length"),
    "ERROR_3_BYTES": (raw(8, b"\1\0\0"), "length"),
    "ERROR_5_BYTES": (raw(8, b"\1\0\0\0\0"), "length"),
    **{f"ERROR_CODE_{code}": (raw(8, word(code)), "error-code") for code in (0, 2, 3, 4, 5, 6, 2**32 - 1)},
}

VALID_EDGES = {
    "DATA_LENGTH_1": raw(5, b"x"),
    "DATA_LENGTH_65536": raw(5, bytes(65_536)),
    "ACK_CREDIT_65536": raw(4, word(65_536)),
    "ACK_CREDIT_4194314": raw(4, word(4_194_314)),
    "CREDIT_1": raw(9, word(1)),
    "CREDIT_4194314": raw(9, word(4_194_314)),
    # The codec judges the range of no identity after the bootstrap: that is the session's business.
    "READY_WITHOUT_IDENTITY": raw(7, instance=bytes(16), epoch=0, sequence=0),
    "DATA_IDENTITY_MAX": raw(5, b"x", instance=b"\xff" * 16, epoch=2**64 - 1, sequence=2**64 - 1),
}


def parse(*pieces: bytes) -> list[Record]:
    parser = RecordParser()
    records = [record for piece in pieces for record in parser.feed(piece)]
    if parser.fault:
        raise parser.fault
    assert parser.pending == 0
    return records


@pytest.mark.spec("620.acc.10")
@pytest.mark.spec("620.acc.11")
@pytest.mark.spec("620.scope4.a")
@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_made_and_taken_byte_for_byte(name: str) -> None:
    record, text = VECTORS[name]
    assert encode(record).hex() == text
    assert parse(bytes.fromhex(text)) == [record]


@pytest.mark.spec("620.acc.10")
@pytest.mark.spec("620.acc.11")
@pytest.mark.spec("620.scope4.b")
@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_taken_at_every_split_point(name: str) -> None:
    record, text = VECTORS[name]
    data = bytes.fromhex(text)
    for split in range(len(data) + 1):
        assert parse(data[:split], data[split:]) == [record]
    assert parse(*(data[at : at + 1] for at in range(len(data)))) == [record]


@pytest.mark.spec("620.acc.10")
@pytest.mark.spec("620.acc.11")
@pytest.mark.spec("620.scope4.b")
@pytest.mark.parametrize("first", VECTORS)
def test_coalesced_records_come_apart_at_every_split_point(first: str) -> None:
    for second in VECTORS:
        data = bytes.fromhex(VECTORS[first][1] + VECTORS[second][1])
        for split in range(len(data) + 1):
            assert parse(data[:split], data[split:]) == [VECTORS[first][0], VECTORS[second][0]]


@pytest.mark.spec("620.scope4.b")
def test_one_record_is_taken_and_the_rest_is_left() -> None:
    ready, data = (bytes.fromhex(VECTORS[name][1]) for name in ("READY", "DATA_EMBEDDED_MAGIC"))
    parser = RecordParser()
    parser.push(ready + data + b"NVX")
    assert parser.take() == VECTORS["READY"][0]
    assert parser.pending == len(data) + 3
    assert parser.take() == VECTORS["DATA_EMBEDDED_MAGIC"][0]
    assert parser.take() is None
    assert parser.pending == 3


def test_a_record_without_a_body_is_whole_at_its_header() -> None:
    parser = RecordParser()
    data = bytes.fromhex(VECTORS["WAIT"][1])
    assert parser.feed(data[:43]) == []
    assert parser.feed(data[43:]) == [VECTORS["WAIT"][0]]


@pytest.mark.spec("620.acc.10")
@pytest.mark.spec("620.acc.11")
@pytest.mark.spec("620.scope4.a")
@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_record_names_its_fault_at_every_split_point(name: str) -> None:
    data, detail = INVALID[name]
    splits = range(len(data) + 1) if len(data) < 200 else (0, 1, 43, 44, 45, len(data))
    for split in splits:
        with pytest.raises(Malformed) as caught:
            parse(data[:split], data[split:])
        assert caught.value.detail == detail


@pytest.mark.spec("620.scope4.a")
@pytest.mark.parametrize("name", VALID_EDGES)
def test_what_is_just_inside_a_limit_is_valid(name: str) -> None:
    (record,) = parse(VALID_EDGES[name])
    assert encode(record) == VALID_EDGES[name]


@pytest.mark.spec("620.scope4.a")
def test_header_faults_are_found_in_their_order() -> None:
    everything_wrong = {"magic": b"XVXS", "version": 2, "flags": 1, "length": 5, "instance": INSTANCE}
    header = dict(everything_wrong)
    expected = []
    for field, name in (
        ("magic", "magic"),
        ("version", "version"),
        ("", "type"),
        ("flags", "flags"),
        ("length", "length"),
    ):
        with pytest.raises(Malformed) as caught:
            parse(raw(99 if name in {"magic", "version", "type"} else 1, **header))  # type: ignore[arg-type]
        expected.append(caught.value.detail)
        header.pop(field, None)
    with pytest.raises(Malformed) as caught:
        parse(raw(1, **header))  # type: ignore[arg-type]
    assert [*expected, caught.value.detail] == ["magic", "version", "type", "flags", "length", "identity"]


@pytest.mark.spec("620.scope4.a")
def test_a_header_is_judged_before_its_body_arrives() -> None:
    header = raw(2, CAPABILITY, epoch=1)[:44]
    with pytest.raises(Malformed) as caught:
        RecordParser().feed(header)
    assert caught.value.detail == "identity"


@pytest.mark.spec("620.scope4.b")
def test_after_a_fault_nothing_is_taken_any_more() -> None:
    parser = RecordParser()
    with pytest.raises(Malformed):
        parser.feed(INVALID["BAD_MAGIC"][0])
    for call in (lambda: parser.feed(raw(7)), parser.take, lambda: parser.push(b"")):
        with pytest.raises(Malformed) as caught:
            call()
        assert caught.value.detail == "magic"
    assert parser.pending == 0


@pytest.mark.spec("620.scope4.b")
def test_records_before_a_fault_are_not_lost() -> None:
    parser = RecordParser()
    assert parser.feed(raw(6) + raw(7) + raw(99)) == parse(raw(6) + raw(7))
    assert parser.fault is not None
    assert parser.fault.detail == "type"
    with pytest.raises(Malformed):
        parser.feed(b"")


def test_a_declared_body_takes_no_memory_before_it_comes() -> None:
    parser = RecordParser()
    header = raw(5, length=MAX_DATA)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert parser.feed(header) == []
        assert tracemalloc.get_traced_memory()[1] - before < MAX_DATA // 4
    finally:
        tracemalloc.stop()


def test_what_the_parser_holds_is_bounded_by_one_record() -> None:
    parser = RecordParser()
    stream = raw(5, bytes(MAX_DATA)) * 8
    for at in range(0, len(stream), 4096):
        parser.feed(stream[at : at + 4096])
        assert parser.pending < 44 + MAX_DATA


@pytest.mark.spec("620.scope4.a")
def test_no_text_form_shows_a_payload() -> None:
    record = Record(RecordType.HOST_ATTACH, b"k" * 32)
    shown = f"{record!r} {record} {RecordParser()!r}"
    assert "kk" not in shown
    assert (b"k" * 32).hex() not in shown
    assert "HOST_ATTACH, 32 payload bytes" in shown


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (Record(RecordType.DATA, b"", INSTANCE, 1, 1), "length"),
        (Record(RecordType.DATA, bytes(65_537), INSTANCE, 1, 1), "length"),
        (Record(RecordType.HOST_ATTACH, CAPABILITY, INSTANCE), "identity"),
        (Record(RecordType.READY, b"", b"short", 1, 0), "identity"),
        (Record(RecordType.READY, b"", INSTANCE, -1, 0), "identity"),
        (Record(RecordType.READY, b"", INSTANCE, 1, 2**64), "identity"),
        (Record(RecordType.ERROR, word(2)), "error-code"),
        (Record(RecordType.ACK, word(1), INSTANCE, 1, 0), "credit"),
    ],
)
def test_an_invalid_record_has_no_bytes(record: Record, detail: str) -> None:
    with pytest.raises(Malformed) as caught:
        encode(record)
    assert caught.value.detail == detail


U64 = st.integers(0, 2**64 - 1)
IDENTITIES = st.tuples(st.binary(min_size=16, max_size=16), U64, U64)


def _records() -> st.SearchStrategy[Record]:
    payloads = {
        RecordType.RESET: st.just(b""),
        RecordType.ACK: st.integers(65_536, 4_194_314).map(word),
        RecordType.DATA: st.binary(min_size=1, max_size=300),
        RecordType.WAIT: st.just(b""),
        RecordType.READY: st.just(b""),
        RecordType.ERROR: st.just(word(1)),
        RecordType.CREDIT: st.integers(1, 4_194_314).map(word),
    }
    later = [
        st.builds(lambda body, who, kind=kind: Record(kind, body, *who), body, IDENTITIES)
        for kind, body in payloads.items()
    ]
    attach = st.builds(lambda body: Record(RecordType.HOST_ATTACH, body), st.binary(min_size=32, max_size=32))
    return st.one_of(*later, attach, st.just(Record(RecordType.GUEST_ATTACH)))


@pytest.mark.spec("620.scope4.b")
@given(records=st.lists(_records(), max_size=8), cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_any_records_survive_any_cuts(records: list[Record], cuts: list[int]) -> None:
    stream = b"".join(encode(record) for record in records)
    at = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert parse(*(stream[a:b] for a, b in itertools.pairwise(at))) == records


@pytest.mark.spec("620.acc.10")
@pytest.mark.spec("620.acc.11")
@given(pieces=st.lists(st.binary(max_size=120) | st.just(raw(7)) | st.just(raw(5, b"xy")), max_size=10))
def test_random_bytes_give_records_or_one_typed_fault(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    outcomes = []
    for cut in ([stream], pieces, [stream[at : at + 1] for at in range(len(stream))]):
        parser = RecordParser()
        taken: list[Record] = []
        try:
            for piece in cut:
                taken += parser.feed(piece)
        except Malformed:
            assert parser.fault is not None
        assert parser.pending < 44 + MAX_DATA
        outcomes.append((taken, parser.fault.detail if parser.fault else None))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@given(data=st.binary(min_size=44, max_size=120), kind=st.integers(0, 255))
def test_whatever_is_taken_is_made_again_byte_for_byte(data: bytes, kind: int) -> None:
    parser = RecordParser()
    try:
        records = parser.feed(b"NVXS\1\0" + bytes([kind, 0]) + data)
    except Malformed:
        return
    taken = b"".join(encode(record) for record in records)
    assert (b"NVXS\1\0" + bytes([kind, 0]) + data).startswith(taken)
