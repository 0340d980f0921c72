"""The host's half of an NVXS session, without any input or output (contract openvmm 3.4, 3.5, 3.7).

Bytes that arrived go in, events come out; bytes to send are returned. So the same machine serves a blocking driver,
an event loop and a test, and every decision in it can be replayed.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nvx_ref.errors import Malformed, Refused, SessionFailed
from nvx_ref.session.parser import RecordParser
from nvx_ref.session.record import CAPABILITY_SIZE, MAX_DATA, NO_INSTANCE, Record, RecordType, encode

_MAX_SEQUENCE = 2**64 - 1


class State(StrEnum):
    """Where a session stands. It only moves downwards in this list."""

    CONNECTING = "connecting"
    ATTACH_SENT = "attach-sent"
    WAITING = "waiting"
    READY = "ready"
    CLOSED = "closed"
    FAILED = "failed"


class Waiting(Struct, frozen=True):
    """The broker knows the capability; the guest isn't there yet. How long to wait is the caller's deadline."""


class Ready(Struct, frozen=True):
    """The session stands.

    Args:
        instance: The broker's instance ID, 16 bytes, not zero: one for each OpenVMM process.
        epoch: The broker's epoch, not zero. A guest that resets its device starts again at 1, so the pair may repeat.
    """

    instance: bytes
    epoch: int


class Data(Struct, frozen=True):
    """The payload of one DATA record; its text form doesn't show the bytes.

    Args:
        payload: 1 to 65,536 opaque bytes.
    """

    payload: bytes

    def __repr__(self) -> str:
        return f"Data({len(self.payload)} bytes)"


class Closed(Struct, frozen=True):
    """The peer ended a session that was ready. What this means is for the application to know."""


class Failed(Struct, frozen=True):
    """The session is over; always the last event.

    Args:
        error: Why. Its ``detail`` is one of

            * ``malformed-record``: bytes that are no valid record;
            * ``unexpected-record``: a record that the broker may not send, or not in this state;
            * ``wrong-identity``: a READY with a zero instance or epoch, or DATA of another instance or epoch;
            * ``wrong-sequence``: DATA lost, repeated or out of order;
            * ``session-reset``: a RESET;
            * ``authentication``: a valid ERROR record before READY;
            * ``authentication-or-gone``: the end of the stream after HOST_ATTACH and before READY. OpenVMM answers
              a wrong capability by closing, so only a look at its process tells the two apart;
            * ``closed``: bytes after the end, or an end before HOST_ATTACH or in the middle of a record.
    """

    error: SessionFailed


Event = Waiting | Ready | Data | Closed | Failed


class HostSession:
    """One attachment of a host to a broker.

    Args:
        capability: The sandbox's secret, 32 bytes, not all zero. It is never part of a text form or an error.

    Raises:
        Refused: The capability can't be one (``detail`` is ``capability``).
    """

    __slots__ = ("_capability", "_error", "_parser", "_ready", "_receive_sequence", "_send_sequence", "_state")

    def __init__(self, capability: bytes) -> None:
        if len(capability) != CAPABILITY_SIZE or not any(capability):
            raise Refused(
                f"a capability is {CAPABILITY_SIZE} bytes that are not all zero", subject="NVXS", detail="capability"
            )
        self._capability = bytes(capability)
        self._parser = RecordParser()
        self._state = State.CONNECTING
        self._ready: Ready | None = None
        self._error: SessionFailed | None = None
        self._send_sequence = 0
        self._receive_sequence = 0

    def __repr__(self) -> str:
        return f"HostSession({self._state.value})"

    @property
    def state(self) -> State:
        """Where the session stands."""
        return self._state

    @property
    def ready(self) -> Ready | None:
        """The identity that READY announced; it stays after the end."""
        return self._ready

    @property
    def error(self) -> SessionFailed | None:
        """Why the session failed, if it did."""
        return self._error

    def start(self) -> bytes:
        """Return HOST_ATTACH, the one record that may be sent before READY.

        Raises:
            Refused: It has been sent before; a new attachment is a new session.
        """
        if self._state is not State.CONNECTING:
            raise Refused("the session has been started already", subject="NVXS", detail="started")
        self._state = State.ATTACH_SENT
        return encode(Record(RecordType.HOST_ATTACH, self._capability))

    def send_data(self, payload: bytes) -> bytes:
        """Return one DATA record; its place in the sequence is taken, so it must be sent whole and in order.

        Args:
            payload: 1 to 65,536 bytes. Splitting a longer message is the application's business.

        Raises:
            Refused: The payload has another length (``detail`` is ``length``), or the session isn't ready yet
                (``not-ready``). The session is as it was.
            SessionFailed: The session is over; ``closed``, or its failure's detail.
        """
        if self._state in {State.CLOSED, State.FAILED}:
            raise self._over()
        if self._ready is None:
            raise Refused("the session is not ready", subject="NVXS", detail="not-ready")
        if not 1 <= len(payload) <= MAX_DATA:
            raise Refused(f"a payload has 1 to {MAX_DATA} bytes, not {len(payload)}", subject="NVXS", detail="length")
        if self._send_sequence > _MAX_SEQUENCE:
            raise SessionFailed("the sequence is used up", subject="NVXS", detail="wrong-sequence")
        record = Record(RecordType.DATA, bytes(payload), self._ready.instance, self._ready.epoch, self._send_sequence)
        self._send_sequence += 1
        return encode(record)

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the peer's and return what they mean, in order.

        The events don't depend on how the stream was cut. A fault is the last event, never an exception, so that
        what came before it isn't lost.

        Args:
            data: Bytes from the transport; the end of the stream is :meth:`closed`.
        """
        if self._state in {State.CLOSED, State.FAILED}:
            return [Failed(self._over())]
        events: list[Event] = []
        try:
            self._parser.push(data)
            while (record := self._parser.take()) is not None:
                events.append(self._handle(record))
        except Malformed as fault:
            events.append(self._fail(f"the peer sent no valid record ({fault.reason})", "malformed-record"))
        except SessionFailed as error:
            events.append(self._fail_with(error))
        return events

    def closed(self) -> Event:
        """Take note that the peer closed, or half-closed, the connection.

        Returns:
            :class:`Closed` for a session that was ready, at a record's end; otherwise :class:`Failed`.
        """
        if self._state in {State.CLOSED, State.FAILED}:
            return Failed(self._over())
        if self._state is State.CONNECTING:
            return self._fail("the peer closed before it was spoken to", "closed")
        if self._state is not State.READY:
            return self._fail(
                "the peer closed before the session was ready: it refused the capability, or the VMM is gone",
                "authentication-or-gone",
            )
        if self._parser.pending:
            return self._fail("the peer closed in the middle of a record", "closed")
        self._state = State.CLOSED
        return Closed()

    def close(self) -> None:
        """Take note that this side ended the session. A failure that came first is kept."""
        if self._state is not State.FAILED:
            self._state = State.CLOSED

    def _handle(self, record: Record) -> Event:
        if self._state is State.CONNECTING:
            raise SessionFailed(f"{record.type.name} before HOST_ATTACH", subject="NVXS", detail="unexpected-record")
        if record.type is RecordType.RESET:
            raise SessionFailed("the peer reset the session", subject="NVXS", detail="session-reset")
        if record.type is RecordType.DATA and self._ready is not None:
            return self._data(record, self._ready)
        if self._ready is None:
            if record.type is RecordType.WAIT:
                self._state = State.WAITING
                return Waiting()
            if record.type is RecordType.READY:
                return self._attached(record)
            if record.type is RecordType.ERROR:
                raise SessionFailed("the peer refused the capability", subject="NVXS", detail="authentication")
        when = "after" if self._ready else "before"
        raise SessionFailed(f"{record.type.name} {when} READY", subject="NVXS", detail="unexpected-record")

    def _attached(self, record: Record) -> Ready:
        if record.instance == NO_INSTANCE or not record.epoch:
            raise SessionFailed("READY has no instance or no epoch", subject="NVXS", detail="wrong-identity")
        self._ready = Ready(record.instance, record.epoch)
        self._receive_sequence = record.sequence + 1
        self._state = State.READY
        return self._ready

    def _data(self, record: Record, ready: Ready) -> Data:
        if (record.instance, record.epoch) != (ready.instance, ready.epoch):
            raise SessionFailed("DATA of another instance or epoch", subject="NVXS", detail="wrong-identity")
        if record.sequence != self._receive_sequence:
            raise SessionFailed(
                f"DATA has the sequence {record.sequence}, not {self._receive_sequence}",
                subject="NVXS",
                detail="wrong-sequence",
            )
        self._receive_sequence += 1
        return Data(record.payload)

    def _fail(self, reason: str, detail: str) -> Failed:
        return self._fail_with(SessionFailed(reason, subject="NVXS", detail=detail))

    def _fail_with(self, error: SessionFailed) -> Failed:
        self._error = error
        self._state = State.FAILED
        return Failed(error)

    def _over(self) -> SessionFailed:
        return self._error or SessionFailed("the session is closed", subject="NVXS", detail="closed")
