"""Both ends of a control session for tests: a scripted transport, and a broker in a thread over a socket pair."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from nvx_ref.deadline import Deadline
from nvx_ref.errors import SessionFailed, TimedOut
from nvx_ref.session import Record, RecordParser, RecordType, SessionDriver, encode

CAPABILITY = b"\x5a" * 32
INSTANCE = bytes(range(1, 17))
EPOCH = 3
PAST = Deadline(0.0)


def soon() -> Deadline:
    return Deadline.after(120)


def record(kind: RecordType, payload: bytes = b"", *, sequence: int = 0) -> bytes:
    return encode(Record(kind, payload, INSTANCE, EPOCH, sequence))


READY, WAIT = record(RecordType.READY), record(RecordType.WAIT)


def data(sequence: int, payload: bytes = b"x") -> bytes:
    return record(RecordType.DATA, payload, sequence=sequence)


class Scripted:
    """A transport that plays a list: bytes arrive, an error is raised; an empty list means that nothing comes."""

    def __init__(self, *script: bytes | Exception) -> None:
        self.script = list(script)
        self.sent = b""
        self.closed = 0
        self.fault: BaseException | None = None

    def send(self, data: bytes, deadline: Deadline) -> None:
        del deadline
        if self.fault:
            raise self.fault
        self.sent += data

    def receive(self, limit: int, deadline: Deadline) -> bytes:
        del deadline
        if self.closed:
            raise SessionFailed("closed")
        if not self.script:
            raise TimedOut("nothing came")
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        assert len(step) <= limit
        return step

    def close(self) -> None:
        self.closed += 1


class SocketTransport:
    """A plain transport over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.waiting = threading.Event()

    def _wait(self, deadline: Deadline, *, receive: bool, send: bool) -> tuple[bool, bool]:
        self.waiting.set()
        reads, writes = [self.sock] if receive else [], [self.sock] if send else []
        readable, writable, _ = select.select(reads, writes, [], deadline.remaining())
        if not readable and not writable:
            raise TimedOut("the test's deadline passed")
        return bool(readable), bool(writable)

    def send(self, data: bytes, deadline: Deadline) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(deadline, receive=False, send=True)
            rest = rest[self.sock.send(rest) :]

    def receive(self, limit: int, deadline: Deadline) -> bytes:
        self._wait(deadline, receive=True, send=False)
        return self.sock.recv(limit)

    def close(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


class DuplexSocketTransport(SocketTransport):
    """The same, able to wait for both directions."""

    def exchange(self, data: memoryview, limit: int, deadline: Deadline) -> tuple[int, bytes | None]:
        readable, writable = self._wait(deadline, receive=limit > 0, send=True)
        arrived = self.sock.recv(limit) if readable else None
        return (self.sock.send(data) if writable else 0), arrived


class Stream(Protocol):
    """What a peer needs of its end: a socket has it."""

    def settimeout(self, seconds: float, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...


class Peer:
    """The broker's end of a socket pair, or of an endpoint."""

    def __init__(self, sock: Stream) -> None:
        sock.settimeout(60)
        self.sock = sock
        self.parser = RecordParser()
        self.records: list[Record] = []

    def take(self) -> Record | None:
        while not self.records:
            if not (piece := self.sock.recv(1 << 16)):
                return None
            self.records += self.parser.feed(piece)
        return self.records.pop(0)

    def accept(self) -> None:
        attach = self.take()
        assert attach == Record(RecordType.HOST_ATTACH, CAPABILITY)
        self.sock.sendall(READY)


@contextmanager
def peer(
    behave: Callable[[Peer], None], kind: type[SocketTransport] = DuplexSocketTransport, *, buffer: int | None = None
) -> Iterator[SessionDriver]:
    ours, theirs = socket.socketpair()
    if buffer:
        # Connections of TCP, which pairs are where there are no sockets of one machine, come to a halt with small ones.
        buffer = buffer if ours.family == getattr(socket, "AF_UNIX", None) else 1 << 16
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    faults: list[BaseException] = []

    def run() -> None:
        try:
            behave(Peer(theirs))
        except BaseException as fault:  # noqa: BLE001 - shown by the test below
            faults.append(fault)
        finally:
            theirs.close()

    thread = threading.Thread(target=run)
    thread.start()
    driver = SessionDriver(kind(ours), CAPABILITY)
    try:
        yield driver
    finally:
        driver.close()
        # The peer's own end is only now: a connection of TCP doesn't tell who sends that nobody will read it.
        ours.close()
        thread.join(60)
    assert not thread.is_alive()
    if faults:
        raise faults[0]
