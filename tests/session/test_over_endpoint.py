"""The driver over the platform's own connection to a served endpoint."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nvx_ref.errors import SessionFailed
from nvx_ref.platform import endpoint
from nvx_ref.session import MAX_DATA, DuplexTransport, Ready, Record, RecordType, SessionDriver
from session_peers import CAPABILITY, EPOCH, INSTANCE, Peer, data, soon
from system import listen, short_root

COUNT = 20


@contextmanager
def served(behave: Callable[[Peer], None]) -> Iterator[SessionDriver]:
    faults: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="nvx", dir=short_root()) as directory:
        path = endpoint.choose(directory)
        accept = listen(path)

        def serve() -> None:
            with accept() as accepted:
                try:
                    behave(Peer(accepted))
                except BaseException as fault:  # noqa: BLE001 - shown below
                    faults.append(fault)

        thread = threading.Thread(target=serve)
        thread.start()
        with SessionDriver(endpoint.connect(path, soon(), alive=lambda: True), CAPABILITY) as driver:
            yield driver
        thread.join(60)
        assert not thread.is_alive()
    if faults:
        raise faults[0]


def test_the_platforms_connection_waits_for_both_directions() -> None:
    def serve(broker: Peer) -> None:
        assert broker.take() is None

    with served(serve) as driver:
        assert isinstance(driver._transport, DuplexTransport)


def test_both_sides_may_talk_first() -> None:
    def serve(broker: Peer) -> None:
        broker.accept()
        for sequence in range(COUNT):
            broker.sock.sendall(data(1 + sequence, bytes([sequence]) * MAX_DATA))
        for sequence in range(COUNT):
            assert broker.take() == Record(RecordType.DATA, bytes([sequence]) * MAX_DATA, INSTANCE, EPOCH, sequence)

    with served(serve) as driver:
        assert driver.attach(soon()) == Ready(INSTANCE, EPOCH)
        for sequence in range(COUNT):
            driver.send(bytes([sequence]) * MAX_DATA, soon())
        assert [driver.receive(soon()) for _ in range(COUNT)] == [bytes([n]) * MAX_DATA for n in range(COUNT)]


@pytest.mark.spec("620.scope4.c")
def test_a_refused_capability_is_an_end_before_ready() -> None:
    def refuse(broker: Peer) -> None:
        broker.sock.recv(10)  # the rest stays unread, so the end is a reset

    with served(refuse) as driver, pytest.raises(SessionFailed) as caught:
        driver.attach(soon())
    assert caught.value.detail == "authentication-or-gone"


def test_a_session_whose_server_is_gone_cannot_send() -> None:
    gone = threading.Event()

    def leave(broker: Peer) -> None:
        broker.accept()
        broker.sock.sendall(data(1, b"last words"))
        broker.sock.shutdown(socket.SHUT_RDWR)
        gone.set()

    with served(leave) as driver:
        driver.attach(soon())
        assert gone.wait(60)
        with pytest.raises(SessionFailed) as caught:
            driver.send(bytes(MAX_DATA), soon())
        assert caught.value.detail == "closed"
        assert driver.receive(soon()) == b"last words"
        with pytest.raises(SessionFailed) as caught:
            driver.receive(soon())
        assert caught.value.detail == "closed"
