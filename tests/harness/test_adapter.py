"""The test adapter's host half: its framing at every cut, its requests, and a guest that gets it wrong."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.adapter import MAX_MESSAGE, AdapterClient, AdapterRefused, MessageReader, encode_message
from nvx_ref.deadline import Deadline
from nvx_ref.errors import Malformed, Refused, SessionFailed, TimedOut
from nvx_ref.session import MAX_DATA
from session_peers import Peer, data, peer, soon

Json = dict[str, object]


def stream(*messages: object) -> bytes:
    bodies = [json.dumps(message).encode() for message in messages]
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


class Guest:
    """A channel whose other end takes whole requests and answers each with the pieces that `script` returns."""

    def __init__(self, script: Callable[[Json], list[bytes]]) -> None:
        self.script = script
        self.payloads: list[bytes] = []
        self.requests: list[Json] = []
        self.buffer = b""
        self.queue: list[bytes] = []
        self.closed = 0

    def send(self, payload: bytes, deadline: Deadline) -> None:
        del deadline
        assert 1 <= len(payload) <= MAX_DATA
        self.payloads.append(payload)
        self.buffer += payload
        while len(self.buffer) >= 4 and len(self.buffer) >= 4 + (size := int.from_bytes(self.buffer[:4], "little")):
            self.requests.append(json.loads(self.buffer[4 : 4 + size]))
            self.buffer = self.buffer[4 + size :]
            self.queue += self.script(self.requests[-1])

    def receive(self, deadline: Deadline) -> bytes:
        del deadline
        if not self.queue:
            raise TimedOut("nothing came")
        return self.queue.pop(0)

    def close(self) -> None:
        self.closed += 1


def answering(**fields: object) -> Guest:
    return Guest(lambda request: [stream({"id": request["id"], "ok": True, **fields})])


@pytest.mark.spec("620.acc.8")
def test_a_message_is_a_length_and_its_object() -> None:
    assert encode_message({"id": 1, "op": "hello"}) == b"\x15\0\0\0" + b'{"id":1,"op":"hello"}'


@pytest.mark.spec("620.acc.8")
def test_the_requests() -> None:
    guest = answering(category="exit", status=0, stdout="", stderr="")
    client = AdapterClient(guest)
    client.hello(soon())
    client.facts(soon())
    client.maps([("0", "/work", False), ("1/src", "/src", True)], soon(), first=3)
    client.exec(["/bin/sh", "-c", "é"], soon(), timeout_ms=5)
    client.stop(soon())
    assert guest.requests == [
        {"id": 1, "op": "hello"},
        {"id": 2, "op": "facts"},
        {"id": 3, "op": "maps", "first": 3, "entries": [["0", "/work", False], ["1/src", "/src", True]]},
        {"id": 4, "op": "exec", "argv": ["/bin/sh", "-c", "é"], "timeoutMs": 5},
        {"id": 5, "op": "stop"},
    ]
    assert not guest.closed


def test_an_answer_comes_without_its_envelope() -> None:
    assert AdapterClient(answering(upper="ramfs")).facts(soon()) == {"upper": "ramfs"}


def test_an_exec_brings_its_bytes() -> None:
    both = {"stdout": base64.b64encode(bytes(range(256))).decode(), "stderr": base64.b64encode(b"e").decode()}
    result = AdapterClient(answering(category="signal", status=137, **both)).exec(["/a"], soon())
    assert (result.category, result.status, result.stdout, result.stderr) == ("signal", 137, bytes(range(256)), b"e")


@pytest.mark.spec("622.acc.10")
def test_a_refusal_keeps_category_and_status() -> None:
    refusing = Guest(
        lambda request: [stream({"id": request["id"], "ok": False, "category": "mapping-failed", "status": 13})]
    )
    with pytest.raises(AdapterRefused) as caught:
        AdapterClient(refusing).maps([("0", "/a", True)], soon())
    assert (caught.value.category, caught.value.status, caught.value.detail) == ("mapping-failed", 13, "mapping-failed")
    assert not refusing.closed


@pytest.mark.spec("620.acc.8")
@pytest.mark.parametrize("cut", [1, 2, 3, 5, 64, MAX_DATA])
def test_requests_are_cut_anywhere(cut: int) -> None:
    guest = answering()
    client = AdapterClient(guest, cut=cut)
    client.hello(soon())
    client.maps([(f"0/{n}", f"/m/{n}", False) for n in range(50)], soon())
    assert [request["op"] for request in guest.requests] == ["hello", "maps"]
    assert guest.buffer == b""
    assert max(map(len, guest.payloads)) <= cut


@pytest.mark.parametrize("cut", [0, MAX_DATA + 1])
def test_a_cut_is_a_payload(cut: int) -> None:
    with pytest.raises(Refused):
        AdapterClient(answering(), cut=cut)


@pytest.mark.spec("620.acc.8")
def test_answers_are_taken_at_every_split_point() -> None:
    whole = stream({"id": 1, "ok": True, "n": 1})
    for split in range(len(whole) + 1):
        pieces = [piece for piece in (whole[:split], whole[split:]) if piece]
        assert AdapterClient(Guest(lambda _request, pieces=pieces: list(pieces))).hello(soon()) == {"n": 1}  # type: ignore[misc]


def test_a_table_of_many_mappings_spans_records() -> None:
    guest = answering()
    table = [(f"0/{n:04}", f"/mapped/{'x' * 80}/{n:04}", bool(n % 2)) for n in range(800)]
    AdapterClient(guest).maps(table, soon())
    assert len(guest.requests) == 1
    assert len(guest.payloads) > 1
    assert guest.requests[0]["entries"] == [list(entry) for entry in table]


def test_a_table_over_one_message_is_several_in_order() -> None:
    guest = answering()
    table = [(f"0/{n}", "/" + "é" * 2000, False) for n in range(600)]
    AdapterClient(guest).maps(table, soon())
    got: list[object] = []
    for request in guest.requests:
        assert request["first"] == len(got)
        entries = request["entries"]
        assert isinstance(entries, list)
        got += entries
    assert len(guest.requests) > 1
    assert got == [list(entry) for entry in table]


def test_no_mapping_is_no_request() -> None:
    guest = answering()
    AdapterClient(guest).maps([], soon())
    assert guest.requests == []


def test_a_message_over_its_limit_is_not_sent() -> None:
    guest = answering()
    with pytest.raises(Refused) as caught:
        AdapterClient(guest).exec(["/a", "x" * MAX_MESSAGE], soon())
    assert caught.value.detail == "length"
    assert guest.payloads == []
    assert not guest.closed


WRONG = {
    "an empty message": b"\0\0\0\0",
    "a message over the limit": struct.pack("<I", MAX_MESSAGE + 1),
    "no JSON": b"\2\0\0\0{]",
    "no UTF-8": b"\2\0\0\0\xff\xff",
    "an array": stream([1]),
    "deep nesting": struct.pack("<I", 100_000) + b"[" * 100_000,
    "another request": stream({"id": 2, "ok": True}),
    "no id": stream({"ok": True}),
    "a true id": stream({"id": True, "ok": True}),
    "no verdict": stream({"id": 1}),
    "a verdict in words": stream({"id": 1, "ok": "yes"}),
    "a refusal without a word": stream({"id": 1, "ok": False, "status": 1}),
    "a refusal without a status": stream({"id": 1, "ok": False, "category": "x", "status": True}),
}
WRONG_RESULTS: list[Json] = [
    {"status": 0, "stdout": "", "stderr": ""},
    {"category": "exit", "stdout": "", "stderr": ""},
    {"category": "exit", "status": 0, "stderr": ""},
    {"category": "exit", "status": 0, "stdout": "?", "stderr": ""},
    {"category": "exit", "status": 0, "stdout": "", "stderr": "é"},
]


@pytest.mark.parametrize("name", WRONG)
def test_a_guest_that_gets_it_wrong_ends_the_session(name: str) -> None:
    guest = Guest(lambda _request: [WRONG[name][at : at + MAX_DATA] for at in range(0, len(WRONG[name]), MAX_DATA)])
    with pytest.raises(SessionFailed) as caught:
        AdapterClient(guest).hello(soon())
    assert caught.value.detail == "malformed-message"
    assert guest.closed


@pytest.mark.parametrize("fields", WRONG_RESULTS)
def test_an_exec_without_its_result_ends_the_session(fields: Json) -> None:
    guest = answering(**fields)
    with pytest.raises(SessionFailed):
        AdapterClient(guest).exec(["/a"], soon())
    assert guest.closed


def test_silence_ends_the_session_at_the_deadline() -> None:
    guest = Guest(lambda _request: [])
    with pytest.raises(TimedOut):
        AdapterClient(guest).hello(soon())
    assert guest.closed


@given(
    messages=st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), max_size=5),
    cut=st.integers(1, 40),
)
def test_any_messages_survive_any_cut(messages: list[Json], cut: int) -> None:
    whole = b"".join(encode_message(message) for message in messages)
    reader, got = MessageReader(), []
    for at in range(0, len(whole), cut):
        reader.feed(whole[at : at + cut])
        while (message := reader.take()) is not None:
            got.append(message)
    assert got == messages


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_random_bytes_are_messages_or_one_typed_fault(pieces: list[bytes]) -> None:
    reader = MessageReader()
    try:
        for piece in pieces:
            reader.feed(piece)
            while reader.take() is not None:
                pass
    except Malformed:
        with pytest.raises(Malformed):
            reader.take()


@pytest.mark.spec("620.acc.8")
@pytest.mark.spec("622.scope4.g")
def test_the_adapter_over_a_real_session_both_sides_cut_as_they_like() -> None:
    done = threading.Event()

    def guest(broker: Peer) -> None:
        broker.accept()
        buffer, sequence = b"", 1
        for number in (1, 2):
            while len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "little"):
                request = broker.take()
                assert request
                assert len(request.payload) <= 7
                buffer += request.payload
            size = 4 + int.from_bytes(buffer[:4], "little")
            assert json.loads(buffer[4:size])["id"] == number
            buffer = buffer[size:]
            answer = stream({"id": number, "ok": True, "text": "x" * 1000})
            for at in range(0, len(answer), 333):
                broker.sock.sendall(data(sequence, answer[at : at + 333]))
                sequence += 1
        assert broker.take() is None
        done.set()

    with peer(guest) as driver:
        driver.attach(soon())
        client = AdapterClient(driver, cut=7)
        assert client.hello(soon()) == {"text": "x" * 1000}
        client.stop(soon())
        client.close()
        assert done.wait(30)
