"""The client against a scripted guest: one request at a time, replies matched, nothing waited for without a bound."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvx_ref.errors import Malformed, SessionFailed, TimedOut
from nvx_ref.nvxc import (
    ExecRequest,
    Feature,
    GuestRefused,
    Kind,
    MapEntry,
    NvxcClient,
    Unsupported,
)
from nvxc_guest import Guest, client, frame, ignore, soon


def test_a_ping_is_answered() -> None:
    nvxc, guest = client(frame(0x81))
    nvxc.ping(soon())
    assert guest.sent == [frame(1)]
    assert not guest.closed


@pytest.mark.parametrize(("mask", "later"), [(0x7D, b""), (0x15, b"more"), (0, b""), (2**32 - 1, b"")])
def test_a_mask_is_the_first_word(mask: int, later: bytes) -> None:
    nvxc, guest = client(frame(0x81, struct.pack("<I", mask) + later))
    assert nvxc.features(soon()) == mask
    assert guest.sent == [frame(5)]


def test_a_mask_has_names() -> None:
    nvxc, _ = client(frame(0x81, b"\x15\0\0\0"))
    mask = nvxc.features(soon())
    assert Feature.CANCEL in mask
    assert Feature.MAPPING_TABLE not in mask


def test_an_old_agent_has_no_features() -> None:
    nvxc, guest = client(frame(0xFF, b"unsupported-operation", status=95))
    with pytest.raises(Unsupported) as caught:
        nvxc.features(soon())
    assert (caught.value.category, caught.value.status, caught.value.detail) == (
        "unsupported-operation",
        95,
        "unsupported-operation",
    )
    assert caught.value.code == "Refused"
    assert not guest.closed


def test_a_refusal_survives_pickling() -> None:
    nvxc, _ = client(frame(0xFF, b"busy", status=16))
    with pytest.raises(GuestRefused) as caught:
        nvxc.ping(soon())
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made one line above
    assert (type(copy), copy.category, copy.status, str(copy)) == (GuestRefused, "busy", 16, str(caught.value))


def test_a_stop_waits_for_the_guests_word() -> None:
    nvxc, guest = client(frame(0x85))
    nvxc.stop(soon())
    assert guest.sent == [frame(3)]


WRONG = {
    "another request": (frame(0x81, request=8), "wrong-request"),
    "another kind": (frame(0x85), "unexpected-frame"),
    "output": (frame(0x82, b"x"), "unexpected-frame"),
    "an end": (frame(0x84, b"exit"), "unexpected-frame"),
    "a payload": (frame(0x81, b"\0"), "unexpected-frame"),
    "no frame": (b"hello", "malformed-frame"),
    "flags": (frame(0x81, flags=1), "malformed-frame"),
    "an unknown kind": (frame(0x90), "malformed-frame"),
    "an end of the session": (SessionFailed("closed", detail="closed"), "closed"),
}


@pytest.mark.spec("620.scope4.e")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_ends_the_session(name: str) -> None:
    answer, detail = WRONG[name]
    nvxc, guest = client(answer)
    with pytest.raises(SessionFailed) as caught:
        nvxc.ping(soon())
    assert caught.value.detail == detail
    assert guest.closed


def test_a_short_mask_ends_the_session() -> None:
    nvxc, guest = client(frame(0x81, b"\1\0\0"))
    with pytest.raises(SessionFailed):
        nvxc.features(soon())
    assert guest.closed


@pytest.mark.parametrize("call", ["ping", "features", "stop"])
def test_silence_ends_the_session_at_the_deadline(call: str) -> None:
    nvxc, guest = client()
    with pytest.raises(TimedOut) as caught:
        getattr(nvxc, call)(soon())
    assert caught.value.detail == "no-reply"
    assert guest.closed


TABLE = [MapEntry(f"0/{n}", "/" + f"{n:04}" * 300) for n in range(100)]


@pytest.mark.spec("622.acc.10")
def test_no_mapping_is_no_request() -> None:
    nvxc, guest = client()
    assert nvxc.maps([], soon()) == 0
    assert guest.sent == []


@pytest.mark.spec("622.acc.10")
def test_a_table_is_sent_in_order_over_several_records() -> None:
    guest = Guest(lambda _kind, _payload: [frame(0x81)])
    assert NvxcClient(guest, request_ids=lambda: 7).maps(TABLE, soon()) == 100
    starts = [struct.unpack_from("<II", sent, 24) for sent in guest.sent]
    assert len(starts) > 1
    assert [first for first, _ in starts] == [sum(n for _, n in starts[:i]) for i in range(len(starts))]
    assert all(len(sent) <= 65_536 and sent[5] == Kind.MAPS for sent in guest.sent)


@pytest.mark.spec("622.acc.10")
def test_a_table_refused_half_way_keeps_category_and_status() -> None:
    answers = [[frame(0x81)], [frame(0xFF, b"mapping-failed", status=13)]]
    guest = Guest(lambda _kind, _payload: answers.pop(0))
    with pytest.raises(GuestRefused) as caught:
        NvxcClient(guest, request_ids=lambda: 7).maps(TABLE, soon())
    assert (caught.value.category, caught.value.status) == ("mapping-failed", 13)
    first, count = struct.unpack_from("<II", guest.sent[1], 24)
    assert caught.value.subject == f"mappings {first} to {first + count - 1}"
    assert len(guest.sent) == 2


def test_a_table_answered_with_a_payload_ends_the_session() -> None:
    nvxc, guest = client(frame(0x81, b"x"))
    with pytest.raises(SessionFailed):
        nvxc.maps([MapEntry("0", "/a")], soon())
    assert guest.closed


def test_an_invalid_table_sends_nothing() -> None:
    nvxc, guest = client()
    with pytest.raises(Malformed):
        nvxc.maps([*TABLE, MapEntry("..", "/x")], soon())
    assert guest.sent == []
    assert not guest.closed


def exec_sh(nvxc: NvxcClient) -> None:
    nvxc.exec(ExecRequest(argv=("/bin/sh",)), ignore, soon())


PAYLOADS = (b"", b"exit", b"\x7d\0\0\0")
REPLIES = [frame(kind, payload) for kind in (0x81, 0x82, 0x83, 0x84, 0x85, 0xFF) for payload in PAYLOADS]
CALLS: list[Callable[[NvxcClient], object]] = [
    exec_sh,
    lambda nvxc: nvxc.ping(soon()),
    lambda nvxc: nvxc.features(soon()),
    lambda nvxc: nvxc.maps([MapEntry("0", "/a")], soon()),
]


@pytest.mark.parametrize("act", CALLS, ids=["exec", "ping", "features", "maps"])
@given(answers=st.lists(st.sampled_from(REPLIES) | st.binary(max_size=60), max_size=5))
def test_any_guest_gets_a_result_or_one_typed_error(act: Callable[[NvxcClient], object], answers: list[bytes]) -> None:
    nvxc, guest = client(*answers)
    try:
        act(nvxc)
    except (SessionFailed, TimedOut):
        assert guest.closed
    except GuestRefused:
        assert not guest.closed
    else:
        assert not guest.closed
