"""A blocking session over a transport: the host's state machine, two locks and deadlines."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nvx_ref.closing import Closing
from nvx_ref.errors import Busy, SessionFailed, TimedOut
from nvx_ref.session.host import Closed, Data, Failed, HostSession, Ready, State
from nvx_ref.session.record import HEADER, MAX_DATA

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Generator

    from nvx_ref.deadline import Deadline
    from nvx_ref.session.host import Event

RECEIVE_SIZE = HEADER.size + MAX_DATA
"""The most bytes asked of the transport at once: one whole record."""
INBOX_LIMIT = 4 * 1024 * 1024
"""Payload bytes kept while a send is held up; beyond them the peer has to wait for its turn too."""


class Transport(Protocol):
    """A connected byte stream. One thread may send while another receives.

    A broken connection is either :class:`SessionFailed` or ``OSError``; the driver takes both for the end.
    """

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all the bytes; raises TimedOut when the deadline passes first (some may have gone)."""
        ...

    def receive(self, limit: int, deadline: Deadline) -> bytes:
        """Return 1 to ``limit`` bytes once some are there, ``b""`` at the end; raises TimedOut."""
        ...

    def close(self) -> None:
        """Close it, which also ends a wait in another thread; idempotent."""
        ...


@runtime_checkable
class DuplexTransport(Transport, Protocol):
    """A transport that can wait for both directions at once."""

    def exchange(self, data: memoryview, limit: int, deadline: Deadline) -> tuple[int, bytes | None]:
        """Wait until either direction can move, then move what can be moved without waiting.

        Args:
            data: Bytes to send, at least one.
            limit: The most bytes to receive; 0 leaves what arrives alone.
            deadline: When to give up.

        Returns:
            How many bytes were sent, and what arrived: None for nothing, ``b""`` at the end.

        Raises:
            TimedOut: The deadline passed and nothing moved.
            SessionFailed: The connection is broken.
        """
        ...


class SessionDriver(Closing):
    """Runs one :class:`HostSession` over a transport, which it owns from here on.

    One thread may send while another receives; two of a kind take turns. :meth:`close` may come from any thread and
    ends the others' waits.

    The peer may send while this side sends. If the transport is a :class:`DuplexTransport` and nobody else is
    receiving, a send that is held up goes on taking what arrives (for the next :meth:`receive`), so that two sides
    that both have much to say don't wait for each other. Otherwise the send waits to its deadline.

    A send that doesn't finish leaves half a record behind, so no later send is tried: it ends with
    ``send-interrupted``. Receiving goes on to the end of the stream. A failure of the session closes the transport.

    Args:
        transport: A connection to the broker; nothing has been sent on it.
        capability: The sandbox's secret, 32 bytes.

    Raises:
        Refused: The capability can't be one.
    """

    __slots__ = (
        "_duplex",
        "_end",
        "_inbox",
        "_inbox_size",
        "_receiving",
        "_send_fault",
        "_sending",
        "_session",
        "_transport",
    )

    def __init__(self, transport: Transport, capability: bytes) -> None:
        self._session = HostSession(capability)
        self._transport = transport
        self._duplex = transport if isinstance(transport, DuplexTransport) else None
        self._inbox: deque[bytes] = deque()
        self._inbox_size = 0
        self._end: SessionFailed | None = None
        self._send_fault: SessionFailed | None = None
        self._sending = allocate_lock()
        self._receiving = allocate_lock()

    def __repr__(self) -> str:
        return f"SessionDriver({self._session.state.value})"

    @property
    def state(self) -> State:
        """Where the session stands."""
        return self._session.state

    @property
    def ready(self) -> Ready | None:
        """The identity that READY announced, once it has."""
        return self._session.ready

    def attach(self, deadline: Deadline) -> Ready:
        """Send HOST_ATTACH and wait for READY; a WAIT may last as long as the deadline.

        Returns:
            The broker's instance and epoch; at once if the session is ready already. After a TimedOut another call
            goes on waiting.

        Raises:
            TimedOut: ``detail`` is ``guest-not-ready`` after a WAIT. It is ``no-answer`` when nothing came: the
                broker serves one host at a time, and none before the guest has started its queues.
            SessionFailed: As :class:`~nvx_ref.session.Failed` lists. A refused capability is
                ``authentication-or-gone``.
            Busy: Another thread receives, to the deadline.
        """
        with self._turn(self._receiving, deadline):
            if self._end:
                raise self._end
            try:
                if self._session.state is State.CONNECTING:
                    self._send_attach(deadline)
                while (ready := self._session.ready) is None:
                    self._pull(deadline)
            except TimedOut:
                raise self._unanswered() from None
            return ready

    def send(self, payload: bytes, deadline: Deadline) -> None:
        """Send one DATA record.

        Args:
            payload: 1 to 65,536 bytes.
            deadline: When to give up, for a peer that doesn't read too.

        Raises:
            Refused: Not ready, or the payload has another length; nothing was sent.
            TimedOut: The deadline passed; part of the record may have been sent, so nothing more can be.
            SessionFailed: The session is over (``closed``, or its failure's detail), or an earlier send was cut
                (``send-interrupted``).
            Busy: Another thread sends, to the deadline; nothing was sent.
        """
        with self._turn(self._sending, deadline):
            if self._send_fault:
                raise self._send_fault
            self._send_whole(self._session.send_data(payload), deadline)

    def receive(self, deadline: Deadline) -> bytes:
        """Return the payload of the next DATA record.

        Raises:
            TimedOut: The deadline passed; nothing is lost.
            SessionFailed: The session is over: ``closed`` when the peer ended it, else the failure's detail. What
                had arrived before has been returned first.
            Busy: Another thread receives, to the deadline.
        """
        with self._turn(self._receiving, deadline):
            while not self._inbox:
                self._pull(deadline)
            payload = self._inbox.popleft()
            self._inbox_size -= len(payload)
            return payload

    def close(self) -> None:
        """End the session; idempotent. The broker resets the guest's half, which ends a running workload."""
        self._session.close()
        self._end = self._end or SessionFailed("the session was closed", subject="NVXS", detail="closed")
        self._transport.close()

    @contextmanager
    def _turn(self, lock: LockType, deadline: Deadline) -> Generator[None, None, None]:
        if not lock.acquire(timeout=deadline.remaining()):
            raise Busy("another thread uses the session", subject="NVXS", detail="session-in-use")
        try:
            yield
        finally:
            lock.release()

    def _send_attach(self, deadline: Deadline) -> None:
        record = self._session.start()
        try:
            self._send_whole(record, deadline)
        except SessionFailed:
            self._arrived(b"")

    def _send_whole(self, record: bytes, deadline: Deadline) -> None:
        try:
            self._transmit(record, deadline)
        except BaseException as fault:
            self._send_fault = SessionFailed(
                "an earlier record was not sent whole", subject="NVXS", detail="send-interrupted"
            )
            # An end that this side has understood keeps its reason; a transport's own is one thing: closed.
            if isinstance(fault, OSError) or (isinstance(fault, SessionFailed) and fault is not self._end):
                raise SessionFailed("the peer closed the connection", subject="NVXS", detail="closed") from fault
            raise

    def _transmit(self, record: bytes, deadline: Deadline) -> None:
        if self._duplex is None or not self._receiving.acquire(blocking=False):
            self._transport.send(record, deadline)
            return
        try:
            rest = memoryview(record)
            while rest:
                if self._end:
                    raise self._end
                limit = RECEIVE_SIZE if self._inbox_size < INBOX_LIMIT else 0
                sent, arrived = self._duplex.exchange(rest, limit, deadline)
                rest = rest[sent:]
                if arrived is not None:
                    self._arrived(arrived)
        finally:
            self._receiving.release()

    def _pull(self, deadline: Deadline) -> None:
        if self._end:
            raise self._end
        try:
            data = self._transport.receive(RECEIVE_SIZE, deadline)
        except (SessionFailed, OSError):
            data = b""
        self._arrived(data)

    def _arrived(self, data: bytes) -> None:
        events: list[Event] = self._session.receive(data) if data else [self._session.closed()]
        for event in events:
            if isinstance(event, Data):
                self._inbox.append(event.payload)
                self._inbox_size += len(event.payload)
            elif isinstance(event, Failed):
                self._end = event.error
            elif isinstance(event, Closed):
                self._end = SessionFailed("the peer closed the session", subject="NVXS", detail="closed")
        if self._end:
            self._transport.close()

    def _unanswered(self) -> TimedOut:
        if self._session.state is State.WAITING:
            return TimedOut("the guest was not ready by the deadline", subject="NVXS", detail="guest-not-ready")
        return TimedOut(
            "the control endpoint did not answer by the deadline",
            subject="NVXS",
            hint="another process may hold the session, or the guest hasn't started",
            detail="no-answer",
        )
