"""Frames and requests byte for byte, and everything that is none."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvx_ref.errors import Malformed, NvxError, Refused
from nvx_ref.nvxc import (
    ExecRequest,
    Frame,
    Kind,
    MapEntry,
    decode_frame,
    decode_reply,
    encode_exec,
    encode_frame,
    encode_maps,
    random_request_id,
)
from nvxc_guest import frame

ID = 0x0102030405060708


@pytest.mark.spec("620.scope4.e")
def test_the_golden_ping() -> None:
    golden = "4e5658430101000008070605040302010000000000000000"
    assert encode_frame(Frame(Kind.PING, ID)).hex() == golden
    assert decode_frame(bytes.fromhex(golden)) == Frame(Kind.PING, ID)


@pytest.mark.spec("620.scope4.e")
def test_the_golden_features_reply() -> None:
    golden = bytes.fromhex("4e56584301810000080706050403020100000000040000007d000000")
    assert decode_reply(golden) == Frame(Kind.READY, ID, 0, b"\x7d\0\0\0")
    assert encode_frame(Frame(Kind.READY, ID, 0, b"\x7d\0\0\0")) == golden


@pytest.mark.spec("620.scope4.e")
def test_the_golden_exec_in_its_short_form() -> None:
    request = ExecRequest(argv=("/bin/sh", "-c", "echo hi"), timeout_ms=5000)
    golden = "8813000003000000" + "070000002f62696e2f7368" + "020000002d63" + "070000006563686f206869"
    assert encode_exec(request).hex() == golden


@pytest.mark.spec("620.scope4.e")
def test_the_golden_exec_in_a_directory() -> None:
    request = ExecRequest(argv=("/bin/pwd",), cwd="/tmp")
    golden = "0000000001000100" + "0100000004000000" + "080000002f62696e2f707764" + "2f746d70"
    assert encode_exec(request).hex() == golden


def test_an_environment_follows_arguments_and_directory() -> None:
    request = ExecRequest(argv=("/a",), cwd="/b", environment=("X=1", "Y="), inherit_environment=True)
    golden = "0000000001000100" + "0700020002000000" + "020000002f61" + "2f62" + "03000000583d31" + "02000000593d"
    assert encode_exec(request).hex() == golden


def test_an_empty_environment_is_not_the_default_one() -> None:
    assert encode_exec(ExecRequest(argv=("/a",), environment=())).hex() == (
        "0000000001000100" + "0200000000000000" + "020000002f61"
    )
    assert encode_exec(ExecRequest(argv=("/a",))).hex() == "0000000001000000" + "020000002f61"


@pytest.mark.spec("620.scope4.e")
def test_the_golden_mapping_table() -> None:
    table = [MapEntry("0", "/work"), MapEntry("1/src", "/src", read_only=True)]
    golden = "0000000002000000" + "000001000500" + "302f776f726b" + "010005000400" + "312f7372632f737263"
    assert [(count, payload.hex()) for count, payload in encode_maps(table)] == [(2, golden)]


BAD_FRAMES = {
    "empty": (b"", "length"),
    "short": (frame(0x81)[:23], "length"),
    "magic": (frame(0x81, magic=b"XVXC"), "magic"),
    "outer magic": (frame(0x81, magic=b"NVXS"), "magic"),
    "version 0": (frame(0x81, version=0), "version"),
    "version 2": (frame(0x81, version=2), "version"),
    "kind 0": (frame(0), "kind"),
    "kind 7": (frame(7), "kind"),
    "kind 0x80": (frame(0x80), "kind"),
    "kind 0x86": (frame(0x86), "kind"),
    "kind 0xfe": (frame(0xFE), "kind"),
    "flags": (frame(0x81, flags=1), "flags"),
    "high flags": (frame(0x81, flags=0x8000), "flags"),
    "declares less": (frame(0x82, b"xy", length=1), "length"),
    "declares more": (frame(0x82, b"xy", length=3), "length"),
    "two frames": (frame(0x82, b"x") + frame(0x84, b"exit"), "length"),
    "no request": (frame(0x81, request=0), "request"),
}
BAD_REPLIES = {
    **{f"request kind {kind}": (frame(kind), "kind") for kind in range(1, 7)},
    "ready with a status": (frame(0x81, status=1), "status"),
    "output with a status": (frame(0x82, b"x", status=1), "status"),
    "stopped with a status": (frame(0x85, status=-1), "status"),
    "stopped with a payload": (frame(0x85, b"x"), "length"),
    "exit without a word": (frame(0x84), "category"),
    "exit with an unknown word": (frame(0x84, b"exploded"), "category"),
    "exit with a capital": (frame(0x84, b"Exit"), "category"),
    "exit -1": (frame(0x84, b"exit", status=-1), "status"),
    "exit 256": (frame(0x84, b"exit", status=256), "status"),
    "error without a word": (frame(0xFF, status=5), "category"),
    "error with a sentence": (frame(0xFF, b"no such thing", status=5), "category"),
    "error with a long word": (frame(0xFF, b"x" * 65, status=5), "category"),
    "error with other bytes": (frame(0xFF, b"\xc3\xa9", status=5), "category"),
}


@pytest.mark.spec("620.scope4.e")
@pytest.mark.parametrize("name", BAD_FRAMES)
def test_what_is_no_frame_names_its_fault(name: str) -> None:
    data, detail = BAD_FRAMES[name]
    for decode in (decode_frame, decode_reply):
        with pytest.raises(Malformed) as caught:
            decode(data)
        assert caught.value.detail == detail


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_frame_that_a_guest_may_not_send(name: str) -> None:
    data, detail = BAD_REPLIES[name]
    decode_frame(data)
    with pytest.raises(Malformed) as caught:
        decode_reply(data)
    assert caught.value.detail == detail


@pytest.mark.parametrize(
    ("bad", "detail"),
    [
        (Frame(Kind.EXEC, 1, 0, bytes(65_513)), "length"),
        (Frame(Kind.PING, 0), "request"),
        (Frame(Kind.PING, 2**64), "request"),
        (Frame(Kind.EXIT, 1, 2**31), "status"),
        (Frame(Kind.EXIT, 1, -(2**31) - 1), "status"),
    ],
)
def test_an_invalid_frame_has_no_bytes(bad: Frame, detail: str) -> None:
    with pytest.raises(Malformed) as caught:
        encode_frame(bad)
    assert caught.value.detail == detail


def test_a_frame_fills_a_record_at_its_limit() -> None:
    assert len(encode_frame(Frame(Kind.EXEC, 1, 0, bytes(65_512)))) == 65_536


def test_a_text_form_shows_no_payload() -> None:
    assert repr(Frame(Kind.STDOUT, 1, 0, b"secret")) == "Frame(STDOUT, request=0x1, status=0, 6 bytes)"


@given(
    st.builds(
        Frame,
        st.sampled_from(Kind),
        st.integers(1, 2**64 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.binary(max_size=200),
    )
)
def test_a_frame_comes_back_as_it_was(sent: Frame) -> None:
    assert decode_frame(encode_frame(sent)) == sent


@given(st.binary(max_size=100) | st.binary(max_size=90).map(lambda tail: b"NVXC\1" + tail))
def test_random_bytes_are_a_frame_or_one_typed_fault(data: bytes) -> None:
    try:
        taken = decode_reply(data)
    except Malformed:
        return
    assert encode_frame(taken) == data


def test_request_ids_are_random_and_not_zero() -> None:
    ids = {random_request_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(1 <= number < 2**64 for number in ids)


BAD_EXEC: dict[str, tuple[ExecRequest, type[NvxError], str]] = {
    "no argv": (ExecRequest(argv=()), Refused, "count"),
    "65 arguments": (ExecRequest(argv=("/a",) * 65), Refused, "count"),
    "relative program": (ExecRequest(argv=("sh",)), Malformed, "not-absolute"),
    "empty program": (ExecRequest(argv=("",)), Malformed, "empty"),
    "empty argument": (ExecRequest(argv=("/a", "")), Malformed, "empty"),
    "NUL argument": (ExecRequest(argv=("/a", "x\0y")), Malformed, "nul"),
    "long argument": (ExecRequest(argv=("/a", "x" * 4097)), Refused, "length"),
    "long in bytes": (ExecRequest(argv=("/a", "é" * 2049)), Refused, "length"),
    "lone surrogate": (ExecRequest(argv=("/a", "\ud800")), Malformed, "encoding"),
    "all together too long": (ExecRequest(argv=("/a", *("x" * 4096,) * 16)), Refused, "length"),
    "negative timeout": (ExecRequest(argv=("/a",), timeout_ms=-1), Refused, "timeout"),
    "long timeout": (ExecRequest(argv=("/a",), timeout_ms=2**32), Refused, "timeout"),
    "empty cwd": (ExecRequest(argv=("/a",), cwd=""), Malformed, "empty"),
    "relative cwd": (ExecRequest(argv=("/a",), cwd="tmp"), Malformed, "not-absolute"),
    "NUL cwd": (ExecRequest(argv=("/a",), cwd="/\0"), Malformed, "nul"),
    "long cwd": (ExecRequest(argv=("/a",), cwd="/" + "x" * 4096), Refused, "length"),
    "257 variables": (ExecRequest(argv=("/a",), environment=tuple(f"N{n}=" for n in range(257))), Refused, "count"),
    "no equals": (ExecRequest(argv=("/a",), environment=("PATH",)), Malformed, "name"),
    "no name": (ExecRequest(argv=("/a",), environment=("=x",)), Malformed, "name"),
    "empty entry": (ExecRequest(argv=("/a",), environment=("",)), Malformed, "empty"),
    "NUL entry": (ExecRequest(argv=("/a",), environment=("A=\0",)), Malformed, "nul"),
    "long entry": (ExecRequest(argv=("/a",), environment=("A=" + "x" * 4095,)), Refused, "length"),
    "twice": (ExecRequest(argv=("/a",), environment=("A=1", "B=", "A=2")), Malformed, "duplicate"),
    "inherit nothing": (ExecRequest(argv=("/a",), inherit_environment=True), Malformed, "no-environment"),
}


@pytest.mark.parametrize("name", BAD_EXEC)
def test_an_invalid_exec_has_no_bytes(name: str) -> None:
    request, error, detail = BAD_EXEC[name]
    with pytest.raises(error) as caught:
        encode_exec(request)
    assert (type(caught.value), caught.value.detail) == (error, detail)
    assert caught.value.subject


@pytest.mark.parametrize(
    "request_",
    [
        ExecRequest(argv=("/a", *("x",) * 63)),
        ExecRequest(argv=("/a", "x" * 4096, "é" * 2048)),
        ExecRequest(argv=("/a",), cwd="/" + "x" * 4095, timeout_ms=2**32 - 1),
        ExecRequest(argv=("/a",), environment=tuple(f"N{n}=" for n in range(256))),
        ExecRequest(argv=("/a",), environment=("A=" + "x" * 4094,)),
    ],
)
def test_an_exec_at_its_limits_has_bytes(request_: ExecRequest) -> None:
    assert encode_exec(request_)


def test_an_exec_may_fill_its_frame_exactly() -> None:
    size = len(encode_exec(ExecRequest(argv=("/a", *("x" * 4096,) * 15, "y"))))
    full = ExecRequest(argv=("/a", *("x" * 4096,) * 15, "y" * (65_512 - size + 1)))
    assert len(encode_exec(full)) == 65_512


def test_bytes_that_are_no_text_go_through() -> None:
    name = b"/bin/\xff\xfe".decode("utf-8", "surrogateescape")
    assert encode_exec(ExecRequest(argv=(name,))).endswith(b"/bin/\xff\xfe")


BAD_MAPS = {
    "empty source": (MapEntry("", "/t"), "empty"),
    "absolute source": (MapEntry("/0", "/t"), "not-relative"),
    "dot source": (MapEntry(".", "/t"), "component"),
    "parent in source": (MapEntry("0/../1", "/t"), "component"),
    "slash at the end": (MapEntry("0/", "/t"), "component"),
    "NUL source": (MapEntry("0\0", "/t"), "nul"),
    "long source": (MapEntry("x" * 4096, "/t"), "length"),
    "empty target": (MapEntry("0", ""), "empty"),
    "relative target": (MapEntry("0", "t"), "not-absolute"),
    "root target": (MapEntry("0", "/"), "component"),
    "doubled slash": (MapEntry("0", "/a//b"), "component"),
    "dot in target": (MapEntry("0", "/a/./b"), "component"),
    "parent in target": (MapEntry("0", "/a/.."), "component"),
    "long target": (MapEntry("0", "/" + "x" * 4095), "length"),
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_an_invalid_mapping_has_no_bytes(name: str) -> None:
    entry, detail = BAD_MAPS[name]
    with pytest.raises(NvxError) as caught:
        encode_maps([MapEntry("0", "/fine"), entry])
    assert caught.value.detail == detail
    assert "mapping 1" in str(caught.value.subject)


def test_a_mapping_at_its_limits_has_bytes() -> None:
    assert encode_maps([MapEntry("x" * 4095, "/" + "y" * 4094)])


def test_a_table_has_at_most_4096_mappings() -> None:
    table = [MapEntry(str(n), f"/m/{n}") for n in range(4097)]
    assert sum(count for count, _ in encode_maps(table[:4096])) == 4096
    with pytest.raises(Refused) as caught:
        encode_maps(table)
    assert caught.value.detail == "count"


@pytest.mark.spec("622.acc.10")
def test_mappings_may_fill_a_record_exactly() -> None:
    eighth = MapEntry("s" * 4091, "/" + "t" * 4090)
    assert [(count, len(payload)) for count, payload in encode_maps([eighth] * 16)] == [(8, 65_512), (8, 65_512)]
    longer = MapEntry("s" * 4092, "/" + "t" * 4090)
    assert [count for count, _ in encode_maps([*[eighth] * 7, longer])] == [7, 1]


def read_maps(payload: bytes) -> tuple[int, list[tuple[int, str, str]]]:
    first, count = struct.unpack_from("<II", payload)
    at, entries = 8, []
    for _ in range(count):
        flags, source, target = struct.unpack_from("<HHH", payload, at)
        at += 6
        entries.append(
            (flags, payload[at : at + source].decode(), payload[at + source : at + source + target].decode())
        )
        at += source + target
    assert at == len(payload)
    return first, entries


@pytest.mark.spec("622.acc.10")
@given(lengths=st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 4000)), max_size=60), first=st.integers(0, 4000))
def test_a_long_table_is_split_in_order_into_full_records(lengths: list[tuple[int, int]], first: int) -> None:
    table = [MapEntry("s" * a, "/" + "t" * b, read_only=bool(a % 2)) for a, b in lengths]
    got: list[tuple[int, str, str]] = []
    requests = encode_maps(table, first=first)
    for count, payload in requests:
        assert 0 < len(payload) <= 65_512
        start, entries = read_maps(payload)
        assert (start, len(entries)) == (first + len(got), count)
        got += entries
    assert got == [(int(entry.read_only), entry.source, entry.target) for entry in table]
    for (_, full), (_, following) in itertools.pairwise(requests):
        _, entries = read_maps(following)
        assert len(full) + 6 + len(entries[0][1]) + len(entries[0][2]) > 65_512
