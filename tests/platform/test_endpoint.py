"""The endpoint: which paths can be served, connecting with deadlines, and who is at the other end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import NvxError, Refused, SessionFailed, TimedOut, VmmExited
from nvx_ref.platform import endpoint, process
from nvx_ref.platform.contract import ProcessGone, Unpinnable
from nvx_ref.process import ProcessRef

pytestmark = pytest.mark.usefixtures("no_leak")

Run = Callable[..., "subprocess.Popen[bytes]"]


def alive() -> bool:
    return True


@pytest.fixture
def path(short_root: str) -> str:
    """An endpoint that nothing serves yet."""
    return endpoint.choose(short_root)


@pytest.fixture
def server(path: str) -> Iterator[socket.socket]:
    """A listening socket at the endpoint, in this process."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        yield listening


@pytest.fixture
def pair(server: socket.socket, path: str, soon: Deadline) -> Iterator[tuple[endpoint.Connection, socket.socket]]:
    """A connection and its other end."""
    with endpoint.connect(path, soon, alive=alive) as connection:
        accepted, _ = server.accept()
        with accepted:
            yield connection, accepted


def test_an_endpoint_is_in_its_directory(short_root: str) -> None:
    assert endpoint.choose(short_root) == f"{short_root}/control.sock"


@pytest.mark.parametrize("character", [",", "="])
def test_a_path_that_the_vmm_would_cut_is_refused(short_root: str, character: str) -> None:
    with pytest.raises(Refused) as caught:
        endpoint.choose(f"{short_root}/a{character}b")
    assert character in caught.value.reason
    assert caught.value.hint


def test_a_path_has_at_most_107_bytes(short_root: str, soon: Deadline) -> None:
    room = 107 - len("/control.sock")
    longest = f"{short_root}/".ljust(room, "x")
    os.mkdir(longest)
    path = endpoint.choose(longest)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        endpoint.connect(path, soon, alive=alive).close()
    for too_long in (f"{longest}x", f"{longest[:-1]}\u00fc"):
        with pytest.raises(Refused, match="108"):
            endpoint.choose(too_long)


def test_a_short_link_to_a_long_path_is_refused(short_root: str) -> None:
    """The VMM resolves the directory before it binds."""
    long_path = f"{short_root}/{'x' * 100}"
    os.mkdir(long_path)
    os.symlink(long_path, f"{short_root}/link")
    with pytest.raises(Refused):
        endpoint.choose(f"{short_root}/link")


def test_a_server_that_comes_late_is_reached(path: str, soon: Deadline) -> None:
    """No file, then a socket that nobody listens on, then a server."""
    looks: list[None] = []
    with socket.socket(socket.AF_UNIX) as listening:

        def check() -> bool:
            looks.append(None)
            if len(looks) == 2:
                listening.bind(path)
            elif len(looks) == 4:
                listening.listen()
            return True

        endpoint.connect(path, soon, alive=check).close()
    assert len(looks) == 4


def test_a_full_backlog_is_waited_out(server: socket.socket, path: str, soon: Deadline) -> None:
    server.listen(0)
    waiting = []
    try:
        while True:
            waiting.append(client := socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect(path)
    except BlockingIOError:
        pass

    def check() -> bool:
        server.accept()[0].close()
        return True

    endpoint.connect(path, soon, alive=check).close()
    for client in waiting:
        client.close()


def test_a_vmm_that_exits_first_is_reported_at_once(path: str) -> None:
    with pytest.raises(VmmExited):
        endpoint.connect(path, Deadline.after(1000), alive=lambda: False)


def test_nobody_by_the_deadline_is_a_time_out(path: str) -> None:
    with pytest.raises(TimedOut) as caught:
        endpoint.connect(path, Deadline.after(0.03), alive=alive)
    assert caught.value.subject == path


def test_what_is_no_socket_is_refused_or_waited_out(path: str) -> None:
    with open(path, "wb"):
        pass
    with pytest.raises(NvxError):
        endpoint.connect(path, Deadline.after(0.03), alive=alive)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOTDIR])
def test_a_fault_that_time_doesnt_heal_is_refused_at_once(
    path: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "connect", fail)
    with pytest.raises(Refused, match=errno.errorcode[number]):
        endpoint.connect(path, Deadline.after(1000), alive=alive)


def test_no_descriptors_left_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "no")

    monkeypatch.setattr(socket, "socket", fail)
    with pytest.raises(Refused, match="EMFILE"):
        endpoint.connect(path, Deadline.after(1000), alive=alive)


Pair = tuple[endpoint.Connection, socket.socket]


def test_bytes_go_both_ways_and_end(pair: Pair, soon: Deadline) -> None:
    connection, other = pair
    connection.send(b"hello", soon)
    assert other.recv(10) == b"hello"
    other.sendall(b"abcdef")
    assert connection.receive(4, soon) == b"abcd"
    assert connection.receive(4, soon) == b"ef"
    other.shutdown(socket.SHUT_WR)
    assert connection.receive(4, soon) == b""
    assert connection.receive(4, soon) == b""


def test_a_large_send_waits_for_room(pair: Pair, soon: Deadline) -> None:
    connection, other = pair
    data = os.urandom(3_000_000)
    got = bytearray()

    def drain() -> None:
        while len(got) < len(data):
            got.extend(other.recv(65536))

    thread = threading.Thread(target=drain)
    thread.start()
    connection.send(data, soon)
    thread.join()
    assert got == data


def test_silence_is_a_time_out(pair: Pair) -> None:
    connection, _ = pair
    with pytest.raises(TimedOut):
        connection.receive(1, Deadline.after(0.01))
    with pytest.raises(TimedOut):
        connection.send(b"x" * 10_000_000, Deadline.after(0.05))


def test_what_has_arrived_is_returned_after_the_deadline_too(pair: Pair) -> None:
    connection, other = pair
    other.sendall(b"x")
    late = Deadline.after(0.001)
    while not late.expired():
        pass
    assert connection.receive(1, late) == b"x"


def test_a_send_to_a_closed_end_fails_and_what_came_before_is_still_read(pair: Pair, soon: Deadline) -> None:
    connection, other = pair
    other.sendall(b"last words")
    other.close()
    # Some callers have the signal end them, as it does by default.
    heard: list[int] = []
    ignored = signal.signal(signal.SIGPIPE, lambda number, _: heard.append(number))
    try:
        with pytest.raises(SessionFailed):
            connection.send(b"x", soon)
    finally:
        signal.signal(signal.SIGPIPE, ignored)
    assert heard == []
    assert connection.receive(100, soon) == b"last words"
    assert connection.receive(100, soon) == b""


def test_an_end_with_unread_bytes_is_an_end(pair: Pair, soon: Deadline) -> None:
    connection, other = pair
    connection.send(b"unread", soon)
    other.close()
    assert connection.receive(100, soon) == b""


def test_an_exchange_moves_what_can_be_moved(pair: Pair, soon: Deadline) -> None:
    connection, other = pair
    assert connection.exchange(memoryview(b"abc"), 10, soon) == (3, None)
    other.sendall(b"xyz")
    assert connection.exchange(memoryview(b"def"), 0, soon) == (3, None)
    sent, arrived = connection.exchange(memoryview(b"g"), 2, soon)
    assert (sent, arrived) == (1, b"xy")
    assert connection.receive(10, soon) == b"z"
    fill(connection)
    other.sendall(b"!")
    assert connection.exchange(memoryview(b"x"), 10, soon) == (0, b"!")
    with pytest.raises(TimedOut):
        connection.exchange(memoryview(b"x"), 10, Deadline.after(0.02))


def fill(connection: endpoint.Connection) -> None:
    """Send until the other end's buffer is full."""
    try:
        while True:
            connection.exchange(memoryview(b"x" * 1000), 0, Deadline.after(0.02))
    except TimedOut:
        return


def test_an_exchange_gives_the_last_words_before_the_failure(pair: Pair, soon: Deadline) -> None:
    connection, other = pair
    other.sendall(b"bye")
    other.close()
    assert connection.exchange(memoryview(b"x"), 10, soon) == (0, b"bye")
    assert connection.exchange(memoryview(b"x"), 10, soon) == (0, b"")
    with pytest.raises(SessionFailed):
        connection.exchange(memoryview(b"x"), 0, soon)


def test_closing_ends_a_wait_in_another_thread(pair: Pair) -> None:
    connection, _ = pair
    ended: list[object] = []
    number = connection.fileno()

    def wait() -> None:
        try:
            ended.append(connection.receive(1, Deadline.after(100)))
        except SessionFailed:
            ended.append(b"")

    thread = threading.Thread(target=wait)
    thread.start()
    connection.close()
    thread.join(30)
    assert ended == [b""]
    assert connection.fileno() == -1 != number
    for attempt in (
        lambda: connection.send(b"x", Deadline.after(1)),
        lambda: connection.receive(1, Deadline.after(1)),
        connection.peer,
    ):
        with pytest.raises(SessionFailed):
            attempt()
    connection.close()


SERVER = """
import os, socket, signal, sys
s = socket.socket(socket.AF_UNIX); s.bind({path!r}); s.listen()
{more}
print("up", flush=True)
signal.pause()
"""


@pytest.fixture(params=["pidfd", "number"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the kernel names the peer: by pidfd, or, before Linux 6.5, by number only."""
    if request.param == "number":
        monkeypatch.setattr("nvx_ref.platform.linux.endpoint._SO_PEERPIDFD", 9999)
    return str(request.param)


@pytest.mark.usefixtures("by")
def test_the_peer_is_the_process_that_serves(python: Run, path: str, soon: Deadline) -> None:
    child = python(SERVER.format(path=path, more=""))
    with endpoint.connect(path, soon, alive=alive) as connection, connection.peer() as pin:
        assert pin.pid == child.pid
        assert not pin.has_exited()
        with ProcessRef.from_peer(connection) as ref, process.Pin.open(child.pid) as known:
            assert ref.identity == known.identity()
            ref.terminate()
        assert pin.wait(soon)


@pytest.mark.parametrize("reaped", [False, True])
def test_a_peer_that_has_ended_is_told(python: Run, path: str, soon: Deadline, by: str, *, reaped: bool) -> None:
    child = python(SERVER.format(path=path, more=""))
    with endpoint.connect(path, soon, alive=alive) as connection, process.Pin.open(child.pid) as known:
        known.terminate()
        assert known.wait(soon)
        if reaped:
            child.wait()
        if reaped or by == "number":
            with pytest.raises(ProcessGone):
                connection.peer()
        else:
            with connection.peer() as pin:
                assert pin.has_exited()


@pytest.mark.usefixtures("by")
def test_a_dead_listener_is_not_taken_for_who_serves_now(python: Run, path: str, soon: Deadline) -> None:
    """The kernel names who listened; a child that inherited the socket answers."""
    child = python(SERVER.format(path=path, more="if os.fork(): os._exit(0)"), start_new_session=True)
    child.wait()
    try:
        with endpoint.connect(path, soon, alive=alive) as connection, pytest.raises(ProcessGone):
            connection.peer()
    finally:
        os.killpg(child.pid, signal.SIGKILL)  # noqa: TID251 - the session of the test's own child


def test_a_peer_without_a_number_here_is_unknown(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvx_ref.platform.linux.endpoint._SO_PEERPIDFD", 9999)
    monkeypatch.setattr("nvx_ref.platform.linux.endpoint._SO_PEERCRED", 9998)
    connection, _ = pair
    with pytest.raises(Unpinnable):
        connection.peer()


def test_without_pidfds_a_peer_is_unknown(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSYS, "no")

    monkeypatch.setattr("nvx_ref.platform.linux.endpoint._SO_PEERPIDFD", 9999)
    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(Unpinnable):
        pair[0].peer()


@pytest.mark.usefixtures("server")
def test_a_served_endpoint_in_another_pid_namespace_is_unknown(isolated: Callable[..., str], path: str) -> None:
    code = """
import sys
from nvx_ref.deadline import Deadline
from nvx_ref.errors import Indeterminate
from nvx_ref.platform import endpoint
connection = endpoint.connect(sys.argv[1], Deadline.after(10), alive=lambda: True)
for attempt in (connection.peer, connection._peer_by_number):
    try:
        attempt()
    except Indeterminate as error:
        print(error.detail)
"""
    assert isolated(code, path, flags="-m -p -f --mount-proc").split() == ["foreign-namespace"] * 2
