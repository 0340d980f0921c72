"""The host's half of a session: what each state takes, what ends it, and what it says about the end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvx_ref.errors import NvxError, Refused, SessionFailed
from nvx_ref.session import (
    Closed,
    Data,
    Event,
    Failed,
    HostSession,
    Ready,
    Record,
    RecordType,
    State,
    Waiting,
    encode,
)

CAPABILITY = b"\x5a" * 32
INSTANCE = bytes(range(1, 17))
EPOCH = 3


def record(
    kind: RecordType, payload: bytes = b"", *, sequence: int = 0, instance: bytes = INSTANCE, epoch: int = EPOCH
) -> bytes:
    return encode(Record(kind, payload, instance, epoch, sequence))


def ready(sequence: int = 0) -> bytes:
    return record(RecordType.READY, sequence=sequence)


def data(sequence: int, payload: bytes = b"x") -> bytes:
    return record(RecordType.DATA, payload, sequence=sequence)


def started(*received: bytes) -> HostSession:
    session = HostSession(CAPABILITY)
    session.start()
    for piece in received:
        for event in session.receive(piece):
            assert not isinstance(event, Failed), event
    return session


def failure(events: list[Event]) -> SessionFailed:
    assert events, "nothing happened"
    last = events[-1]
    assert isinstance(last, Failed)
    assert not any(isinstance(event, Failed) for event in events[:-1])
    return last.error


@pytest.mark.spec("620.scope4.c")
def test_the_attachment_is_the_capability_and_nothing_else() -> None:
    session = HostSession(CAPABILITY)
    assert session.state is State.CONNECTING
    assert session.start() == bytes.fromhex("4e56585301000200" + "00" * 32 + "20000000") + CAPABILITY
    assert session.state is State.ATTACH_SENT


@pytest.mark.parametrize("capability", [b"", bytes(32), b"x" * 31, b"x" * 33])
def test_a_capability_that_can_be_none_is_refused(capability: bytes) -> None:
    with pytest.raises(Refused) as caught:
        HostSession(capability)
    assert caught.value.detail == "capability"


@pytest.mark.spec("620.scope4.c")
def test_a_direct_attachment_counts_from_its_ready() -> None:
    session = started()
    assert session.receive(ready(0) + data(1, b"a") + data(2, b"b")) == [
        Ready(INSTANCE, EPOCH),
        Data(b"a"),
        Data(b"b"),
    ]
    assert session.state is State.READY
    assert session.ready == Ready(INSTANCE, EPOCH)


@pytest.mark.spec("620.scope4.c")
def test_waits_come_as_often_as_the_guest_takes() -> None:
    session = started()
    for sequence in range(3):
        assert session.receive(record(RecordType.WAIT, sequence=sequence)) == [Waiting()]
        assert session.state is State.WAITING
    assert session.receive(ready(3) + data(4)) == [Ready(INSTANCE, EPOCH), Data(b"x")]


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("sequence", [0, 1, 41, 2**64 - 2])
def test_the_next_sequence_is_the_one_after_ready(sequence: int) -> None:
    assert started(ready(sequence)).receive(data(sequence + 1)) == [Data(b"x")]
    for wrong in {0, sequence, sequence + 2} - {2**64}:
        assert failure(started(ready(sequence)).receive(data(wrong))).detail == "wrong-sequence"


def test_a_sequence_that_is_used_up_is_not_begun_again() -> None:
    session = started(ready(2**64 - 1))
    assert failure(session.receive(data(0))).detail == "wrong-sequence"


@pytest.mark.spec("620.scope4.c")
def test_sent_data_counts_from_zero_and_carries_the_identity() -> None:
    session = started(record(RecordType.WAIT), ready(1))
    for sequence in range(3):
        assert session.send_data(b"ping") == data(sequence, b"ping")


def test_the_last_sequence_is_not_followed_by_the_first() -> None:
    session = started(ready())
    session._send_sequence = 2**64 - 1
    assert session.send_data(b"x") == data(2**64 - 1)
    with pytest.raises(SessionFailed) as caught:
        session.send_data(b"x")
    assert caught.value.detail == "wrong-sequence"


def test_a_new_attachment_starts_over() -> None:
    first, second = started(ready(0)), started(record(RecordType.READY, epoch=EPOCH + 1))
    first.send_data(b"x")
    assert second.ready == Ready(INSTANCE, EPOCH + 1)
    assert second.send_data(b"x") == record(RecordType.DATA, b"x", sequence=0, epoch=EPOCH + 1)


@pytest.mark.parametrize("size", [1, 65_536])
def test_a_payload_within_its_limits_is_sent(size: int) -> None:
    assert len(started(ready()).send_data(bytes(size))) == 44 + size


@pytest.mark.parametrize("size", [0, 65_537])
def test_a_payload_outside_its_limits_takes_no_sequence(size: int) -> None:
    session = started(ready())
    with pytest.raises(Refused) as caught:
        session.send_data(bytes(size))
    assert caught.value.detail == "length"
    assert session.send_data(b"x") == data(0)


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("before", [(), (record(RecordType.WAIT),)])
def test_data_waits_for_ready(before: tuple[bytes, ...]) -> None:
    session = started(*before)
    with pytest.raises(Refused) as caught:
        session.send_data(b"x")
    assert caught.value.detail == "not-ready"
    assert session.receive(ready(1)) == [Ready(INSTANCE, EPOCH)]
    assert session.send_data(b"x") == data(0)


def test_a_session_starts_once() -> None:
    session = started()
    with pytest.raises(Refused):
        session.start()


CREDIT = (2**16).to_bytes(4, "little")
UNEXPECTED = {
    "GUEST_ATTACH": encode(Record(RecordType.GUEST_ATTACH)),
    "HOST_ATTACH": encode(Record(RecordType.HOST_ATTACH, CAPABILITY)),
    "ACK": record(RecordType.ACK, CREDIT, sequence=1),
    "CREDIT": record(RecordType.CREDIT, CREDIT, sequence=1),
}
STATES = {"attach-sent": (), "waiting": (record(RecordType.WAIT),), "ready": (ready(),)}


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", UNEXPECTED)
def test_what_a_broker_never_says_to_a_host_ends_the_session(state: str, name: str) -> None:
    session = started(*STATES[state])
    assert failure(session.receive(UNEXPECTED[name])).detail == "unexpected-record"
    assert session.state is State.FAILED


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize(
    ("state", "sent"),
    [
        ("attach-sent", data(0)),
        ("waiting", data(1)),
        ("ready", ready(1)),
        ("ready", record(RecordType.WAIT, sequence=1)),
        ("ready", record(RecordType.ERROR, b"\1\0\0\0", sequence=1)),
    ],
    ids=["data-at-once", "data-while-waiting", "second-ready", "wait-after-ready", "error-after-ready"],
)
def test_a_record_in_the_wrong_state_ends_the_session(state: str, sent: bytes) -> None:
    assert failure(started(*STATES[state]).receive(sent)).detail == "unexpected-record"


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize(("instance", "epoch"), [(bytes(16), 1), (INSTANCE, 0), (bytes(16), 0)])
def test_a_ready_that_names_nobody_is_refused(instance: bytes, epoch: int) -> None:
    session = started()
    error = failure(session.receive(record(RecordType.READY, instance=instance, epoch=epoch)))
    assert error.detail == "wrong-identity"
    assert session.ready is None


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize(("instance", "epoch"), [(INSTANCE[::-1], EPOCH), (INSTANCE, EPOCH + 1), (bytes(16), 0)])
def test_data_of_another_attachment_ends_the_session(instance: bytes, epoch: int) -> None:
    stale = record(RecordType.DATA, b"x", sequence=1, instance=instance, epoch=epoch)
    assert failure(started(ready()).receive(stale)).detail == "wrong-identity"


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("state", STATES)
def test_a_reset_is_a_session_reset(state: str) -> None:
    assert failure(started(*STATES[state]).receive(record(RecordType.RESET))).detail == "session-reset"


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("state", ["attach-sent", "waiting"])
def test_a_valid_error_is_a_refused_capability(state: str) -> None:
    error = failure(started(*STATES[state]).receive(record(RecordType.ERROR, b"\1\0\0\0")))
    assert error.detail == "authentication"


def test_an_empty_error_is_no_record() -> None:
    broken = bytearray(record(RecordType.ERROR, b"\1\0\0\0"))[:44]
    broken[40] = 0
    assert failure(started().receive(bytes(broken))).detail == "malformed-record"


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("state", ["attach-sent", "waiting"])
@pytest.mark.parametrize("partial", [b"", b"NVX", ready()[:43]])
def test_an_end_before_ready_is_authentication_or_gone(state: str, partial: bytes) -> None:
    session = started(*STATES[state], partial)
    assert failure([session.closed()]).detail == "authentication-or-gone"
    assert session.state is State.FAILED


@pytest.mark.spec("620.scope4.c")
def test_an_end_after_ready_is_an_end() -> None:
    session = started(ready())
    assert session.closed() == Closed()
    assert session.state is State.CLOSED
    with pytest.raises(SessionFailed) as caught:
        session.send_data(b"x")
    assert caught.value.detail == "closed"


def test_an_end_within_a_record_is_a_failure() -> None:
    session = started(ready(), data(1)[:44])
    error = failure([session.closed()])
    assert error.detail == "closed"
    assert "middle of a record" in error.reason


def test_a_peer_that_speaks_or_closes_first_has_failed() -> None:
    session = HostSession(CAPABILITY)
    assert failure(session.receive(ready())).detail == "unexpected-record"
    assert failure([HostSession(CAPABILITY).closed()]).detail == "closed"


@pytest.mark.spec("620.scope4.c")
def test_after_a_failure_there_is_only_that_failure() -> None:
    session = started()
    error = failure(session.receive(b"X" * 44))
    assert error.detail == "malformed-record"
    assert session.error is error
    assert session.receive(ready()) == [Failed(error)]
    assert session.closed() == Failed(error)
    session.close()
    assert session.state is State.FAILED
    with pytest.raises(SessionFailed) as caught:
        session.send_data(b"x")
    assert caught.value is error


def test_a_session_that_this_side_closed_takes_nothing_more() -> None:
    session = started(ready())
    session.close()
    assert failure(session.receive(data(1))).detail == "closed"
    assert session.ready == Ready(INSTANCE, EPOCH)


@pytest.mark.spec("620.acc.10")
def test_events_do_not_depend_on_the_cut() -> None:
    stream = record(RecordType.WAIT) + ready(1) + data(2, b"NVXSNVXS") + data(3, b"last") + ready(4) + data(5)
    expected: list[object] = [Waiting(), Ready(INSTANCE, EPOCH), Data(b"NVXSNVXS"), Data(b"last"), "unexpected-record"]
    for split in range(len(stream) + 1):
        session = started()
        events: list[Event] = []
        for piece in (stream[:split], stream[split:]):
            events += [event for event in session.receive(piece) if session.error is None or event not in events]
        assert [e.error.detail if isinstance(e, Failed) else e for e in events] == expected


def test_the_capability_is_in_no_text_form() -> None:
    session = started()
    errors = [failure(session.receive(encode(Record(RecordType.HOST_ATTACH, CAPABILITY))))]
    shown = " ".join(f"{thing!r} {thing}" for thing in (session, Data(CAPABILITY), *errors))
    assert "ZZZ" not in shown
    assert CAPABILITY.hex() not in shown


PIECES = st.one_of(
    st.binary(max_size=100),
    st.sampled_from([*UNEXPECTED.values(), ready(), ready(1), data(1), data(2), *itertools.chain(*STATES.values())]),
)


@pytest.mark.spec("620.scope4.c")
@given(pieces=st.lists(PIECES, max_size=10), end=st.booleans())
def test_any_peer_gets_events_and_at_most_one_kind_of_end(pieces: list[bytes], *, end: bool) -> None:
    session = started()
    events = [event for piece in pieces for event in session.receive(piece)]
    if end:
        events.append(session.closed())
    over = [event for event in events if isinstance(event, Failed | Closed)]
    assert events[len(events) - len(over) :] == over
    assert len({id(event.error) for event in over if isinstance(event, Failed)}) <= 1
    assert sum(isinstance(event, Ready) for event in events) <= 1
    if any(isinstance(event, Data) for event in events):
        assert session.ready is not None
    for action in (lambda: session.send_data(b"x"), session.start):
        try:
            action()
        except NvxError:
            pass
        else:
            assert session.state is State.READY
