"""The blocking driver over real sockets, with a peer in a thread."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Busy, SessionFailed, TimedOut
from nvx_ref.session import MAX_DATA, DuplexTransport, Ready, Record, RecordType, SessionDriver
from session_peers import (
    EPOCH,
    INSTANCE,
    PAST,
    WAIT,
    DuplexSocketTransport,
    Peer,
    SocketTransport,
    data,
    peer,
    record,
    soon,
)


def byte_by_byte(broker: Peer) -> None:
    broker.take()
    for piece in WAIT + record(RecordType.READY, sequence=1) + data(2, b"NVXSNVXS") + data(3, b"end"):
        broker.sock.sendall(bytes([piece]))


@pytest.mark.spec("620.acc.10")
def test_a_peer_that_sends_single_bytes() -> None:
    with peer(byte_by_byte) as driver:
        assert driver.attach(soon()) == Ready(INSTANCE, EPOCH)
        assert [driver.receive(soon()), driver.receive(soon())] == [b"NVXSNVXS", b"end"]
        with pytest.raises(SessionFailed) as caught:
            driver.receive(soon())
        assert caught.value.detail == "closed"


def test_a_peer_that_closes_on_the_capability() -> None:
    with peer(lambda broker: bool(broker.take()) or None) as driver, pytest.raises(SessionFailed) as caught:
        driver.attach(soon())
    assert caught.value.detail == "authentication-or-gone"


def test_a_half_closed_connection_is_closed() -> None:
    def half_close(broker: Peer) -> None:
        broker.accept()
        broker.sock.sendall(data(1))
        broker.sock.shutdown(socket.SHUT_WR)
        assert broker.take() is None

    with peer(half_close) as driver:
        driver.attach(soon())
        assert driver.receive(soon()) == b"x"
        with pytest.raises(SessionFailed) as caught:
            driver.receive(soon())
        assert caught.value.detail == "closed"


COUNT = 30


def send_many(driver: SessionDriver, count: int, seconds: float) -> None:
    for _ in range(count):
        driver.send(bytes(MAX_DATA), Deadline.after(seconds))


def talk_first(broker: Peer) -> None:
    """Send everything before reading anything, as a guest may."""
    broker.accept()
    for sequence in range(COUNT):
        broker.sock.sendall(data(1 + sequence, bytes([sequence]) * MAX_DATA))
    for sequence in range(COUNT):
        assert broker.take() == Record(RecordType.DATA, bytes([sequence]) * MAX_DATA, INSTANCE, EPOCH, sequence)


def test_two_sides_that_both_talk_first_do_not_wait_for_each_other() -> None:
    with peer(talk_first, buffer=4096) as driver:
        driver.attach(soon())
        for sequence in range(COUNT):
            driver.send(bytes([sequence]) * MAX_DATA, soon())
        assert [driver.receive(soon()) for _ in range(COUNT)] == [bytes([n]) * MAX_DATA for n in range(COUNT)]


def test_a_plain_transport_waits_to_its_deadline_instead() -> None:
    def held_up(broker: Peer) -> None:
        with pytest.raises(ConnectionError):
            talk_first(broker)

    with peer(held_up, SocketTransport, buffer=4096) as driver:
        driver.attach(soon())
        with pytest.raises(TimedOut):
            send_many(driver, COUNT, 0.2)


def test_a_receiver_in_another_thread_frees_a_plain_transport() -> None:
    with peer(talk_first, SocketTransport, buffer=4096) as driver:
        driver.attach(soon())
        got: list[bytes] = []
        receiver = threading.Thread(target=lambda: got.extend(driver.receive(soon()) for _ in range(COUNT)))
        receiver.start()
        for sequence in range(COUNT):
            driver.send(bytes([sequence]) * MAX_DATA, soon())
        receiver.join(60)
        assert got == [bytes([n]) * MAX_DATA for n in range(COUNT)]


def test_a_peer_that_floods_a_held_up_send_is_held_up_too() -> None:
    flooded = threading.Event()

    def flood(broker: Peer) -> None:
        broker.accept()
        broker.sock.settimeout(1)
        sent = 0
        with suppress(TimeoutError, ConnectionError):
            for sequence in range(1, 1000):
                broker.sock.sendall(data(sequence, bytes(MAX_DATA)))
                sent += MAX_DATA
        assert sent < 6 * 1024 * 1024
        flooded.set()

    with peer(flood, buffer=4096) as driver:
        driver.attach(soon())
        with pytest.raises((TimedOut, SessionFailed)):
            send_many(driver, 100, 1.5)
        assert flooded.wait(60)


def test_a_session_that_ends_within_a_send_says_so() -> None:
    def reset(broker: Peer) -> None:
        broker.accept()
        broker.sock.sendall(data(1, b"kept") + record(RecordType.RESET, sequence=2))
        while broker.take():
            pass

    with peer(reset, buffer=4096) as driver:
        driver.attach(soon())
        with pytest.raises(SessionFailed) as caught:
            send_many(driver, 100, 30)
        assert caught.value.detail in {"session-reset", "closed", "send-interrupted"}
        assert driver.receive(soon()) == b"kept"
        with pytest.raises(SessionFailed) as caught:
            driver.receive(soon())
        assert caught.value.detail == "session-reset"


def silent(broker: Peer) -> None:
    broker.accept()
    assert broker.take() is None


def test_closing_ends_a_wait_in_another_thread() -> None:
    ended: list[BaseException] = []

    def wait(driver: SessionDriver) -> None:
        try:
            driver.receive(soon())
        except SessionFailed as error:
            ended.append(error)

    with peer(silent) as driver:
        driver.attach(soon())
        transport = driver._transport
        assert isinstance(transport, SocketTransport)
        transport.waiting.clear()
        thread = threading.Thread(target=wait, args=(driver,))
        thread.start()
        assert transport.waiting.wait(60)
        driver.close()
        thread.join(60)
    assert [error.detail for error in ended if isinstance(error, SessionFailed)] == ["closed"]


def test_two_receivers_take_turns() -> None:
    with peer(silent) as driver:
        driver.attach(soon())
        transport = driver._transport
        assert isinstance(transport, SocketTransport)
        transport.waiting.clear()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                driver.receive(soon())
            except SessionFailed as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert transport.waiting.wait(60)
        with pytest.raises(Busy):
            driver.receive(PAST)
        driver.close()
        thread.join(60)
        assert len(errors) == 1


def test_a_duplex_transport_is_recognised() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert isinstance(DuplexSocketTransport(ours), DuplexTransport)
        assert not isinstance(SocketTransport(ours), DuplexTransport)
