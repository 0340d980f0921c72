"""The blocking driver over a scripted transport, state by state."""

from __future__ import annotations

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Refused, SessionFailed, TimedOut
from nvx_ref.session import MAX_DATA, Ready, Record, RecordType, SessionDriver, State, encode
from session_peers import CAPABILITY, EPOCH, INSTANCE, PAST, READY, WAIT, Scripted, data, record, soon


def attached(*script: bytes | Exception) -> tuple[SessionDriver, Scripted]:
    transport = Scripted(READY, *script)
    driver = SessionDriver(transport, CAPABILITY)
    driver.attach(soon())
    return driver, transport


@pytest.mark.spec("620.scope4.c")
def test_attaching_says_who_answers() -> None:
    driver, transport = attached()
    assert driver.ready == Ready(INSTANCE, EPOCH)
    assert driver.attach(PAST) == Ready(INSTANCE, EPOCH)
    assert transport.sent == encode(Record(RecordType.HOST_ATTACH, CAPABILITY))


@pytest.mark.spec("620.scope4.c")
def test_a_wait_lasts_as_long_as_the_callers_deadline() -> None:
    transport = Scripted(WAIT)
    driver = SessionDriver(transport, CAPABILITY)
    with pytest.raises(TimedOut) as caught:
        driver.attach(soon())
    assert caught.value.detail == "guest-not-ready"
    transport.script = [record(RecordType.WAIT, sequence=1) + record(RecordType.READY, sequence=2)[:20]]
    with pytest.raises(TimedOut):
        driver.attach(soon())
    transport.script = [record(RecordType.READY, sequence=2)[20:] + data(3)]
    assert driver.attach(soon()) == Ready(INSTANCE, EPOCH)
    assert driver.receive(soon()) == b"x"
    assert transport.sent == encode(Record(RecordType.HOST_ATTACH, CAPABILITY))


def test_an_endpoint_that_says_nothing_is_in_use_or_without_a_guest() -> None:
    with pytest.raises(TimedOut) as caught:
        SessionDriver(Scripted(), CAPABILITY).attach(soon())
    assert caught.value.detail == "no-answer"


GONE: dict[str, bytes | Exception] = {
    "end": b"",
    "broken": SessionFailed("connection reset"),
    "system error": ConnectionResetError(),
}


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("before", [(), (WAIT,), (READY[:30],)], ids=["at-once", "after-wait", "within-ready"])
@pytest.mark.parametrize("end", GONE)
def test_an_end_before_ready_closes_the_transport(before: tuple[bytes, ...], end: str) -> None:
    transport = Scripted(*before, GONE[end])
    driver = SessionDriver(transport, CAPABILITY)
    for _ in range(2):
        with pytest.raises(SessionFailed) as caught:
            driver.attach(soon())
        assert caught.value.detail == "authentication-or-gone"
    assert transport.closed
    assert driver.state is State.FAILED


@pytest.mark.parametrize("fault", [BrokenPipeError(), SessionFailed("closed")])
def test_a_peer_gone_before_the_attachment_is_the_same(fault: BaseException) -> None:
    transport = Scripted()
    transport.fault = fault
    with pytest.raises(SessionFailed) as caught:
        SessionDriver(transport, CAPABILITY).attach(soon())
    assert caught.value.detail == "authentication-or-gone"


@pytest.mark.spec("620.scope4.c")
@pytest.mark.parametrize("end", GONE)
def test_an_end_in_a_ready_session_comes_after_what_was_said(end: str) -> None:
    driver, transport = attached(data(1, b"a") + data(2, b"b"), GONE[end])
    assert [driver.receive(soon()), driver.receive(soon())] == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(SessionFailed) as caught:
            driver.receive(soon())
        assert caught.value.detail == "closed"
    assert transport.closed
    assert driver.state is State.CLOSED


@pytest.mark.parametrize(
    ("sent", "detail"),
    [(record(RecordType.RESET), "session-reset"), (data(7), "wrong-sequence"), (b"?" * 44, "malformed-record")],
)
def test_a_failure_comes_after_what_was_said_and_closes(sent: bytes, detail: str) -> None:
    driver, transport = attached(data(1, b"a") + sent)
    assert driver.receive(soon()) == b"a"
    assert transport.closed
    for call in (lambda: driver.receive(soon()), lambda: driver.send(b"x", soon()), lambda: driver.attach(soon())):
        with pytest.raises(SessionFailed) as caught:
            call()
        assert caught.value.detail == detail


def test_an_attachment_is_taken_even_if_its_failure_came_along() -> None:
    transport = Scripted(READY + data(1, b"a") + record(RecordType.RESET))
    driver = SessionDriver(transport, CAPABILITY)
    assert driver.attach(soon()) == Ready(INSTANCE, EPOCH)
    assert driver.receive(soon()) == b"a"
    with pytest.raises(SessionFailed):
        driver.receive(soon())


def test_sent_payloads_are_numbered_records() -> None:
    driver, transport = attached()
    del transport.sent
    transport.sent = b""
    driver.send(b"one", soon())
    driver.send(b"two", soon())
    assert transport.sent == data(0, b"one") + data(1, b"two")


@pytest.mark.parametrize("size", [0, MAX_DATA + 1])
def test_a_payload_outside_its_limits_sends_nothing(size: int) -> None:
    driver, transport = attached()
    sent = transport.sent
    with pytest.raises(Refused):
        driver.send(bytes(size), soon())
    assert transport.sent == sent
    driver.send(b"x", soon())


def test_nothing_is_sent_before_ready() -> None:
    transport = Scripted()
    with pytest.raises(Refused) as caught:
        SessionDriver(transport, CAPABILITY).send(b"x", soon())
    assert caught.value.detail == "not-ready"
    assert transport.sent == b""


@pytest.mark.parametrize(
    ("fault", "raised"),
    [(TimedOut("late"), TimedOut), (KeyboardInterrupt(), KeyboardInterrupt), (BrokenPipeError(), SessionFailed)],
)
def test_a_send_that_was_cut_is_the_last_one(fault: BaseException, raised: type[BaseException]) -> None:
    driver, transport = attached(data(1, b"still here"), b"")
    transport.fault = fault
    with pytest.raises(raised):
        driver.send(b"x", soon())
    transport.fault = None
    sent = transport.sent
    with pytest.raises(SessionFailed) as caught:
        driver.send(b"x", soon())
    assert caught.value.detail == "send-interrupted"
    assert transport.sent == sent
    assert driver.receive(soon()) == b"still here"


def test_a_receive_that_timed_out_lost_nothing() -> None:
    stream = data(1, b"first") + data(2, b"second")
    driver, transport = attached()
    got = []
    for at in range(len(stream)):
        transport.script = [stream[at : at + 1]]
        try:
            got.append(driver.receive(soon()))
        except TimedOut:
            continue
    assert got == [b"first", b"second"]


def test_a_closed_driver_ends_everything() -> None:
    driver, transport = attached(data(1))
    with driver:
        pass
    driver.close()
    assert transport.closed
    assert driver.state is State.CLOSED
    for call in (lambda: driver.receive(soon()), lambda: driver.send(b"x", soon()), lambda: driver.attach(soon())):
        with pytest.raises(SessionFailed) as caught:
            call()
        assert caught.value.detail == "closed"


def test_the_capability_is_in_no_text_form() -> None:
    driver, _ = attached()
    assert repr(driver) == "SessionDriver(ready)"


class ScriptedDuplex(Scripted):
    """A scripted transport for both directions: every exchange sends at most one byte and takes the next step."""

    def __init__(self, *script: bytes | Exception) -> None:
        super().__init__(*script)
        self.limits: list[int] = []

    def exchange(self, data: memoryview, limit: int, deadline: Deadline) -> tuple[int, bytes | None]:
        self.limits.append(limit)
        arrived = self.receive(limit, deadline) if limit and self.script else None
        self.sent += data[:1]
        return 1, arrived


def duplex() -> tuple[SessionDriver, ScriptedDuplex]:
    transport = ScriptedDuplex(READY)
    driver = SessionDriver(transport, CAPABILITY)
    driver.attach(soon())
    return driver, transport


FULL = bytes(MAX_DATA)


def test_what_arrives_while_a_send_is_held_up_is_kept_to_a_limit() -> None:
    driver, transport = duplex()
    transport.script = [data(1 + n, FULL) for n in range(70)]
    driver.send(FULL, soon())
    assert transport.limits.count(MAX_DATA + 44) == 4 * 1024 * 1024 // MAX_DATA
    assert [driver.receive(soon()) for _ in range(70)] == [FULL] * 70


def test_what_was_taken_makes_room_again() -> None:
    driver, transport = duplex()
    for n in range(70):
        transport.script = [data(1 + n, FULL)]
        driver.send(b"x", soon())
        assert driver.receive(soon()) == FULL
    assert 0 not in transport.limits


def test_a_session_that_ends_within_a_send_says_how() -> None:
    driver, transport = duplex()
    transport.script = [data(1, b"kept") + record(RecordType.RESET, sequence=2)]
    with pytest.raises(SessionFailed) as caught:
        driver.send(b"x", soon())
    assert caught.value.detail == "session-reset"
    assert driver.receive(soon()) == b"kept"
