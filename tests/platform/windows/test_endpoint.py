"""The named pipe: connected to by name, spoken to with deadlines, its server named by the kernel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

import wine

wine.only_windows()

import pipe_server
from fake_openvmm.windows.pipes import PipeListener
from nvx_ref.deadline import Deadline
from nvx_ref.errors import Refused, SessionFailed, TimedOut, VmmExited
from nvx_ref.platform import endpoint
from nvx_ref.process import ProcessRef

BIG = 1 << 20


def soon() -> Deadline:
    return Deadline.after(60)


def alive() -> bool:
    return True


@pytest.fixture
def name() -> str:
    return endpoint.choose("C:\\anywhere")


@pytest.fixture
def pair(name: str) -> Iterator[tuple[endpoint.Connection, pipe_server.Server]]:
    """Both ends of one connection."""
    with pipe_server.Server(name) as server, endpoint.connect(name, soon(), alive=alive) as connection:
        server.accept()
        yield connection, server


Pair = tuple[endpoint.Connection, pipe_server.Server]


def test_an_endpoint_is_fresh_and_one_that_openvmm_takes(name: str) -> None:
    assert name.startswith("//./pipe/openvmm-microvm-")
    assert len(name.removeprefix("//./pipe/openvmm-microvm-")) == 32
    assert endpoint.choose("C:\\anywhere") != name


def test_an_endpoint_tells_for_which_directory_it_was_chosen(name: str) -> None:
    assert not endpoint.is_elsewhere(name, "c:/ANYWHERE/")
    assert endpoint.is_elsewhere(name, "C:\\anywhere else")


def test_bytes_go_both_ways(pair: Pair) -> None:
    connection, server = pair
    connection.send(b"hello", soon())
    assert server.receive(5) == b"hello"
    server.send(b"world")
    assert connection.receive(100, soon()) == b"world"
    server.send(b"abc")
    assert connection.receive(2, soon()) == b"ab"
    assert connection.receive(2, soon()) == b"c"


def test_a_deadline_ends_a_wait_and_nothing_is_lost(pair: Pair) -> None:
    connection, server = pair
    with pytest.raises(TimedOut):
        connection.receive(10, Deadline.after(0.05))
    server.send(b"late")
    assert connection.receive(10, soon()) == b"late"


def test_a_send_that_nobody_reads_ends_at_its_deadline(pair: Pair) -> None:
    connection, _ = pair
    with pytest.raises(TimedOut):
        connection.send(b"x" * BIG, Deadline.after(0.2))


def test_what_was_sent_before_the_end_arrives_first(pair: Pair) -> None:
    connection, server = pair
    server.send(b"last words")
    server.close()
    assert connection.receive(100, soon()) == b"last words"
    assert connection.receive(100, soon()) == b""
    with pytest.raises(SessionFailed):
        connection.send(b"x", soon())


def test_two_sides_that_both_have_much_to_say_don_t_wait_for_each_other(pair: Pair) -> None:
    connection, server = pair
    sent = os.urandom(BIG)
    answer = os.urandom(BIG)
    writer = threading.Thread(target=server.send, args=(answer,))
    writer.start()
    arrived = b""
    taken: list[bytes] = []
    reader: threading.Thread | None = None
    rest = memoryview(sent)
    while rest:
        count, more = connection.exchange(rest, 65536, soon())
        rest = rest[count:]
        arrived += more or b""
        if len(arrived) > BIG // 4 and reader is None:
            # Only now does the other side begin to read.
            reader = threading.Thread(target=lambda: taken.append(server.receive(BIG)))
            reader.start()
    while len(arrived) < BIG:
        arrived += connection.receive(65536, soon())
    writer.join(60)
    assert reader is not None
    reader.join(60)
    assert arrived == answer
    assert taken == [sent]


def test_an_exchange_may_leave_what_arrives_alone(pair: Pair) -> None:
    connection, server = pair
    server.send(b"there")
    assert connection.exchange(memoryview(b"abc"), 0, soon()) == (3, None)
    assert connection.receive(10, soon()) == b"there"
    assert server.receive(3) == b"abc"


def test_closing_ends_a_wait_in_another_thread(pair: Pair) -> None:
    connection, _ = pair
    told: list[BaseException] = []

    def wait() -> None:
        try:
            connection.receive(10, soon())
        except SessionFailed as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not connection._users:
        assert soon().pause()
    connection.close()
    thread.join(60)
    assert [error.detail for error in told if isinstance(error, SessionFailed)] == ["closed"]
    connection.close()
    with pytest.raises(SessionFailed):
        connection.send(b"x", soon())


@pytest.mark.case("T14")
def test_the_kernel_names_the_server(pair: Pair) -> None:
    with pair[0].peer() as pin:
        assert pin.pid == os.getpid()
    with ProcessRef.from_peer(pair[0]) as server:
        assert server.identity.pid == os.getpid()


def test_a_server_that_is_gone_isn_t_named(pair: Pair) -> None:
    connection, server = pair
    server.close()
    with pytest.raises(VmmExited):
        connection.peer()


@pytest.mark.case("T14")
def test_a_server_that_is_gone_isn_t_named_whatever_it_has_left_to_read(pair: Pair) -> None:
    """Its number may be another's by then, and what it said stays in the pipe."""
    connection, server = pair
    server.send(b"last words")
    server.close()
    with pytest.raises(VmmExited):
        connection.peer()
    assert connection.receive(100, soon()) == b"last words"


def interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "act", [lambda one: one.receive(100, soon()), lambda one: one.exchange(memoryview(b"x"), 100, soon())]
)
def test_what_arrives_while_a_wait_is_interrupted_isn_t_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, act: Callable[[endpoint.Connection], object]
) -> None:
    connection, server = pair
    server.send(b"hello")
    with monkeypatch.context() as patched:
        patched.setattr(endpoint, "wait_for_any", interrupted)
        with pytest.raises(KeyboardInterrupt):
            act(connection)
    assert connection.receive(2, soon()) == b"he"
    assert connection.receive(100, soon()) == b"llo"
    server.send(b" world")
    assert connection.receive(100, soon()) == b" world"


def test_a_pipe_that_isn_t_there_yet_is_waited_for(name: str) -> None:
    with pytest.raises(TimedOut):
        endpoint.connect(name, Deadline.after(0.1), alive=alive)
    with pytest.raises(VmmExited):
        endpoint.connect(name, soon(), alive=lambda: False)
    made: list[pipe_server.Server] = []
    timer = threading.Timer(0.2, lambda: made.append(pipe_server.Server(name)))
    timer.start()
    endpoint.connect(name, soon(), alive=alive).close()
    timer.join()
    made[0].close()


def test_a_busy_pipe_is_waited_for(pair: Pair, name: str) -> None:
    with pytest.raises(TimedOut) as told:
        endpoint.connect(name, Deadline.after(0.1), alive=alive)
    assert told.value.detail == "session-in-use"
    pair[0].close()


@wine.differs("a pipe's access list isn't enforced")
def test_a_pipe_that_this_user_may_not_open_is_refused(name: str) -> None:
    with pipe_server.Server(name, security="D:P(D;;GA;;;WD)"), pytest.raises(Refused):
        endpoint.connect(name, soon(), alive=alive)


def test_a_server_takes_one_that_has_come_and_gone(name: str) -> None:
    """Between the creation of a pipe and its server's first wait, somebody may look whether it is there."""
    with pipe_server.Server(name) as server:
        endpoint.connect(name, soon(), alive=alive).close()
        server.accept()
        assert server.receive_some(10) == b""


def test_the_stand_in_takes_one_that_has_come_and_gone(name: str) -> None:
    listener = PipeListener(name, "D:P(A;;GA;;;WD)")
    try:
        endpoint.connect(name, soon(), alive=alive).close()
        listener.listen()
        gone, _ = listener.accept()
        assert gone.recv(10) == b""
        gone.close()
        with endpoint.connect(name, soon(), alive=alive):
            here, _ = listener.accept()
            with pytest.raises(BlockingIOError):
                here.recv(10)
    finally:
        listener.close()
