"""The host's half of NVXC over a session: one request at a time, replies matched, every wait bounded."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol, Self

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Busy, Malformed, NvxError, SessionFailed, TimedOut
from nvx_ref.nvxc.frame import Frame, Kind, category, decode_reply, encode_frame
from nvx_ref.nvxc.requests import encode_exec, encode_maps
from nvx_ref.nvxc.results import ExecResult, Feature, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from nvx_ref.nvxc.requests import ExecRequest, MapEntry
    from nvx_ref.nvxc.results import Stream

RESPONSE_GRACE = 30.0
"""Seconds that a guest has to report a timeout of its own after that timeout."""
CANCEL_GRACE = 10.0
"""Seconds that a cancelled program has to end before its session is given up."""
MAX_OUTPUT = 1_048_576
"""The most output of one program, in bytes; the guest ends a program that passes it."""
_MASK_SIZE = 4


class Channel(Protocol):
    """What NVXC needs of a session; :class:`~nvx_ref.session.SessionDriver` has it."""

    def send(self, payload: bytes, deadline: Deadline) -> None:
        """Send one DATA payload."""
        ...

    def receive(self, deadline: Deadline) -> bytes:
        """Return the next DATA payload."""
        ...

    def close(self) -> None:
        """End the session, from any thread."""
        ...


def random_request_id() -> int:
    """Return a random nonzero u64."""
    while not (number := int.from_bytes(os.urandom(8), "little")):
        pass
    return number


class _Execution:
    """One EXEC on its way, as a canceller in another thread sees it."""

    __slots__ = ("cancelled", "ended", "request", "sent", "thread")

    def __init__(self, request: int) -> None:
        self.request = request
        self.thread = threading.get_ident()
        self.sent = False
        self.cancelled = False
        self.ended = threading.Event()


class _Turn:
    """The one outstanding request. Left without its answer, it takes the session with it."""

    __slots__ = ("_channel", "_lock", "answered")

    def __init__(self, lock: threading.Lock, channel: Channel) -> None:
        self._lock = lock
        self._channel = channel
        self.answered = False

    def __enter__(self) -> Self:
        if not self._lock.acquire(blocking=False):
            raise Busy("another request is outstanding", subject="NVXC", detail="request-outstanding")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self.answered:
                self._channel.close()
        finally:
            self._lock.release()


class NvxcClient:
    """Speaks NVXC over an attached session, which it owns from here on.

    A request whose reply didn't come (deadline, interrupt, a failing output callback, a protocol failure) can't be
    taken back: the session is closed, the broker resets the guest's half and the guest ends a running program.
    An ERROR is a reply, so the session goes on after it.

    Args:
        channel: The attached session.
        request_ids: Where request IDs come from.
        response_grace: Seconds over a program's own timeout that the guest has to report it.
        cancel_grace: Seconds that a cancelled program has to end.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        request_ids: Callable[[], int] = random_request_id,
        response_grace: float = RESPONSE_GRACE,
        cancel_grace: float = CANCEL_GRACE,
    ) -> None:
        self._channel = channel
        self._request_ids = request_ids
        self._response_grace = response_grace
        self._cancel_grace = cancel_grace
        self._lock = threading.Lock()
        self._guard = threading.Lock()
        self._execution: _Execution | None = None

    def ping(self, deadline: Deadline) -> None:
        """Ask whether the agent answers.

        Raises:
            GuestRefused: It answered with ERROR.
            TimedOut: No answer by the deadline. The session is closed.
            SessionFailed: The session ended or broke the protocol: its own details, or ``malformed-frame``,
                ``unexpected-frame``, ``wrong-request``.
            Busy: Another request is outstanding in another thread (``request-outstanding``).
        """
        if self._call(Kind.PING, b"", Kind.READY, deadline).payload:
            raise self._broken("PING was answered with a payload", "unexpected-frame")

    def features(self, deadline: Deadline) -> Feature:
        """Return the guest's feature mask.

        Raises:
            Unsupported: The agent is too old to say.
            NvxError: As :meth:`ping`.
        """
        reply = self._call(Kind.FEATURES, b"", Kind.READY, deadline).payload
        if len(reply) < _MASK_SIZE:
            raise self._broken("FEATURES was answered without a mask", "unexpected-frame")
        return Feature(int.from_bytes(reply[:_MASK_SIZE], "little"))

    def maps(self, entries: Iterable[MapEntry], deadline: Deadline, *, first: int = 0) -> int:
        """Apply a mapping table, in order and in as many requests as it takes; an empty one is no request.

        Args:
            entries: The table, or the part that comes next.
            deadline: For all of it.
            first: How many entries have been applied already.

        Returns:
            How many entries are applied now.

        Raises:
            Malformed, Refused: The table is invalid as :func:`encode_maps` lists; nothing was sent.
            GuestRefused: ``category`` and ``status`` are the guest's, ``subject`` the entries of the request. Earlier
                requests stay applied; after a ``mapping-failed`` the guest takes no other and runs nothing.
            NvxError: As :meth:`ping`.
        """
        done = first
        for count, payload in encode_maps(entries, first=first):
            reply = self._call(Kind.MAPS, payload, Kind.READY, deadline, f"mappings {done} to {done + count - 1}")
            if reply.payload:
                raise self._broken("MAPS was answered with a payload", "unexpected-frame")
            done += count
        return done

    def stop(self, deadline: Deadline) -> None:
        """Ask the guest to power off and wait for its word that it does. The VMM's exit is the supervisor's to see.

        Raises:
            NvxError: As :meth:`ping`.
        """
        self._call(Kind.STOP, b"", Kind.STOPPED, deadline)

    def exec(self, request: ExecRequest, output: Callable[[Stream, bytes], None], deadline: Deadline) -> ExecResult:
        """Run a program and hand its output on as it comes.

        A KeyboardInterrupt cancels the program, waits for its end up to the cancel grace, without output, and is
        raised again; the session stays usable if the end came.

        Args:
            request: What to run.
            output: Called in this thread with ``stdout`` or ``stderr`` and the bytes. What it raises ends the session.
            deadline: For all of it. A program with a timeout of its own has that and the response grace at most.

        Returns:
            How it ended, also when the guest refused to run it.

        Raises:
            Malformed, Refused: The request is invalid as :func:`encode_exec` lists; nothing was sent.
            NvxError: As :meth:`ping`, except that an ERROR is a result.
        """
        payload = encode_exec(request)
        if request.timeout_ms:
            deadline = deadline.sooner(request.timeout_ms / 1000 + self._response_grace)
        with _Turn(self._lock, self._channel) as turn:
            execution = self._execution = _Execution(self._request_ids())
            try:
                self._send_exec(execution, payload, deadline)
                result = self._follow(execution.request, output, deadline)
                turn.answered = True
            except KeyboardInterrupt:
                turn.answered = turn.answered or self._end_interrupted(execution)
                raise
            finally:
                self._execution = None
                execution.ended.set()
        return result

    def cancel(self, deadline: Deadline | None = None) -> bool:
        """End the program that runs in another thread's :meth:`exec`, and wait until that has returned.

        From within that ``exec``'s output callback it only asks.

        Args:
            deadline: For the request and the program's end; None is the cancel grace.

        Returns:
            Whether there was a program to end. Its result says ``cancelled``, or how it ended first.

        Raises:
            TimedOut: The guest didn't end it (``cancel-ignored``). The session has been closed, so ``exec`` returns.
            SessionFailed: The session is over, and so is the program.
        """
        deadline = deadline or Deadline.after(self._cancel_grace)
        execution = self._execution
        if execution is None:
            return False
        with self._guard:
            execution.cancelled = True
            sent = execution.sent
        try:
            if sent:
                self._send_cancel(execution, deadline)
            ended = execution.thread == threading.get_ident() or execution.ended.wait(deadline.remaining())
        except TimedOut:
            ended = False
        if not ended:
            self._channel.close()
            raise TimedOut(
                "the guest did not end the program; the session is closed", subject="NVXC", detail="cancel-ignored"
            )
        return True

    def close(self) -> None:
        """End the session; the guest ends a running program. Idempotent, from any thread."""
        self._channel.close()

    def _call(self, kind: Kind, payload: bytes, expected: Kind, deadline: Deadline, about: str | None = None) -> Frame:
        with _Turn(self._lock, self._channel) as turn:
            request = self._request_ids()
            self._channel.send(encode_frame(Frame(kind, request, 0, payload)), deadline)
            reply = self._reply(request, deadline)
            if reply.kind not in {expected, Kind.ERROR}:
                raise self._broken(f"{kind.name} was answered with {reply.kind.name}", "unexpected-frame")
            turn.answered = True
        if reply.kind is Kind.ERROR:
            raise refusal(kind, reply, about)
        return reply

    def _reply(self, request: int, deadline: Deadline) -> Frame:
        try:
            frame = decode_reply(self._channel.receive(deadline))
        except TimedOut:
            raise TimedOut(
                "the guest did not reply by the deadline; the session is closed", subject="NVXC", detail="no-reply"
            ) from None
        except Malformed as fault:
            raise self._broken(f"the guest sent no valid frame ({fault.reason})", "malformed-frame") from None
        if frame.request != request:
            raise self._broken(f"{frame.kind.name} answers another request", "wrong-request")
        return frame

    def _send_exec(self, execution: _Execution, payload: bytes, deadline: Deadline) -> None:
        self._channel.send(encode_frame(Frame(Kind.EXEC, execution.request, 0, payload)), deadline)
        with self._guard:
            execution.sent = True
            cancelled = execution.cancelled
        if cancelled:
            self._send_cancel(execution, deadline)

    def _send_cancel(self, execution: _Execution, deadline: Deadline) -> None:
        self._channel.send(encode_frame(Frame(Kind.CANCEL, execution.request)), deadline)

    def _follow(self, request: int, output: Callable[[Stream, bytes], None], deadline: Deadline) -> ExecResult:
        total = 0
        while True:
            frame = self._reply(request, deadline)
            if frame.kind is Kind.EXIT or frame.kind is Kind.ERROR:
                return ExecResult(category(frame), frame.status, frame.kind is Kind.ERROR)
            if frame.kind is not Kind.STDOUT and frame.kind is not Kind.STDERR:
                raise self._broken(f"EXEC was answered with {frame.kind.name}", "unexpected-frame")
            total += len(frame.payload)
            if total > MAX_OUTPUT:
                raise self._broken(f"a program sent more than {MAX_OUTPUT} bytes", "unexpected-frame")
            output("stdout" if frame.kind is Kind.STDOUT else "stderr", frame.payload)

    def _end_interrupted(self, execution: _Execution) -> bool:
        deadline = Deadline.after(self._cancel_grace)
        try:
            self._send_cancel(execution, deadline)
            self._follow(execution.request, _discard, deadline)
        except NvxError:
            return False
        return True

    def _broken(self, reason: str, detail: str) -> SessionFailed:
        self._channel.close()
        return SessionFailed(reason, subject="NVXC", detail=detail)


def _discard(_stream: Stream, _data: bytes) -> None:
    """Take output that nobody wants any more."""
