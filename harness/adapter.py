"""The host half of the test adapter: another application protocol than NVXC over the same session.

It shows that the reference's public session is enough for an orchestrator with a framing of its own. Over the DATA
payloads runs one byte stream of messages, each a little-endian u32 length and that many bytes of a JSON object; a
message starts, ends and spans wherever it likes (contract openvmm 10, item 7).
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import TYPE_CHECKING, Protocol, cast

from nvx_ref.errors import GuestRefused, Malformed, Refused, SessionFailed
from nvx_ref.session import MAX_DATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvx_ref.deadline import Deadline

MAX_MESSAGE = 1_048_576
"""The most bytes of one message's JSON."""
_LENGTH = struct.Struct("<I")

Message = dict[str, object]


class AdapterRefused(GuestRefused):
    """The guest answered a request with ``"ok": false``. The session goes on.

    Args:
        category: The guest's word, also the ``detail``.
        status: Its errno-like status.
    """

    def __init__(self, reason: str, *, category: str, status: int) -> None:
        super().__init__(reason, category=category, status=status, subject="adapter")


class AdapterResult:
    """How an ``exec`` ended.

    Args:
        category: The end's category, such as ``exit``.
        status: Its status.
        stdout: What the program wrote there.
        stderr: What the program wrote there.
    """

    __slots__ = ("category", "status", "stderr", "stdout")

    def __init__(self, category: str, status: int, stdout: bytes, stderr: bytes) -> None:
        self.category = category
        self.status = status
        self.stdout = stdout
        self.stderr = stderr

    def __repr__(self) -> str:
        return f"AdapterResult({self.category}, {self.status}, {len(self.stdout)} + {len(self.stderr)} bytes)"


def encode_message(message: Mapping[str, object]) -> bytes:
    """Return a message's bytes in the stream.

    Raises:
        Refused: Its JSON is longer than 1,048,576 bytes (``length``).
    """
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE:
        raise Refused(f"a message of {len(body)} bytes is over {MAX_MESSAGE}", subject="adapter", detail="length")
    return _LENGTH.pack(len(body)) + body


class MessageReader:
    """Takes messages from the byte stream; holds at most one message beyond what it was fed."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add the bytes of one DATA payload."""
        self._buffer += data

    def take(self) -> Message | None:
        """Take one message, or return None until it is whole.

        Raises:
            Malformed: The length is out of range (``length``), or the bytes are no JSON object (``message``). Nothing
                can be taken after that.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 1 <= length <= MAX_MESSAGE:
            raise Malformed(f"a message declares {length} bytes", subject="adapter", detail="length")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        message = _decode(bytes(self._buffer[_LENGTH.size : end]))
        del self._buffer[:end]
        return message


def _decode(body: bytes) -> Message:
    try:
        value: object = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise Malformed("a message is no JSON", subject="adapter", detail="message") from None
    if not isinstance(value, dict):
        raise Malformed("a message is no JSON object", subject="adapter", detail="message")
    return cast("Message", value)


class Channel(Protocol):
    """What the adapter needs of a session; ``nvx_ref.session.SessionDriver`` has it."""

    def send(self, payload: bytes, deadline: Deadline) -> None:
        """Send one DATA payload."""
        ...

    def receive(self, deadline: Deadline) -> bytes:
        """Return the next DATA payload."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


class AdapterClient:
    """Speaks the adapter's protocol over an attached session, one request at a time, in one thread.

    A request without its answer ends the session, as NVXC's do.

    Args:
        channel: The attached session.
        cut: The most bytes of the stream in one DATA payload, 1 to 65,536: where messages are cut.
    """

    def __init__(self, channel: Channel, *, cut: int = MAX_DATA) -> None:
        if not 1 <= cut <= MAX_DATA:
            raise Refused(f"a payload has 1 to {MAX_DATA} bytes, not {cut}", subject="adapter", detail="length")
        self._channel = channel
        self._cut = cut
        self._reader = MessageReader()
        self._last = 0

    def hello(self, deadline: Deadline) -> Message:
        """Return the guest's greeting; raises as :meth:`request`."""
        return self.request("hello", deadline)

    def facts(self, deadline: Deadline) -> Message:
        """Return what the guest selected and found at boot; raises as :meth:`request`."""
        return self.request("facts", deadline)

    def maps(self, entries: Sequence[tuple[str, str, bool]], deadline: Deadline, *, first: int = 0) -> None:
        """Apply mappings in order, in as many messages as it takes; raises as :meth:`request`.

        Args:
            entries: For each its source, its target and whether it is read-only.
            deadline: For all of it.
            first: How many have been applied already.
        """
        rest, done = list(entries), first
        while rest:
            count = _fitting(rest)
            self.request("maps", deadline, first=done, entries=[list(entry) for entry in rest[:count]])
            rest, done = rest[count:], done + count

    def exec(self, argv: Sequence[str], deadline: Deadline, *, timeout_ms: int = 0) -> AdapterResult:
        """Run a program to its end; raises as :meth:`request`.

        Args:
            argv: The program, an absolute guest path, and its arguments.
            deadline: For all of it.
            timeout_ms: When the guest ends the program, in milliseconds, 0 for never.
        """
        answer = self.request("exec", deadline, argv=list(argv), timeoutMs=timeout_ms)
        category, status = answer.get("category"), answer.get("status")
        stdout, stderr = _bytes(answer.get("stdout")), _bytes(answer.get("stderr"))
        if not isinstance(category, str) or type(status) is not int or stdout is None or stderr is None:
            raise self._broken("an exec was answered without its result")
        return AdapterResult(category, status, stdout, stderr)

    def stop(self, deadline: Deadline) -> None:
        """Ask the guest to power off and wait for its word that it does; raises as :meth:`request`."""
        self.request("stop", deadline)

    def request(self, op: str, deadline: Deadline, **fields: object) -> Message:
        """Send one request and return its answer, without ``id`` and ``ok``.

        Args:
            op: The operation.
            deadline: For all of it.
            fields: The request's other members.

        Raises:
            AdapterRefused: The guest answered that it doesn't.
            TimedOut: No answer by the deadline. The session is closed.
            SessionFailed: The session ended, or ``malformed-message``.
            Refused: The request is too long; nothing was sent.
        """
        self._last += 1
        stream = encode_message({"id": self._last, "op": op, **fields})
        try:
            for at in range(0, len(stream), self._cut):
                self._channel.send(stream[at : at + self._cut], deadline)
            answer = self._receive(deadline)
        except BaseException:
            self._channel.close()
            raise
        number, ok = answer.pop("id", None), answer.pop("ok", None)
        if type(number) is not int or number != self._last or not isinstance(ok, bool):
            raise self._broken("an answer to another request")
        if ok:
            return answer
        category, status = answer.get("category"), answer.get("status")
        if not isinstance(category, str) or type(status) is not int:
            raise self._broken("a refusal without category and status")
        raise AdapterRefused(f"the guest refused {op}: {category} (status {status})", category=category, status=status)

    def close(self) -> None:
        """End the session; idempotent."""
        self._channel.close()

    def _receive(self, deadline: Deadline) -> Message:
        try:
            while (message := self._reader.take()) is None:
                self._reader.feed(self._channel.receive(deadline))
        except Malformed as fault:
            raise self._broken(fault.reason) from None
        return message

    def _broken(self, reason: str) -> SessionFailed:
        self._channel.close()
        return SessionFailed(f"the guest sent {reason}", subject="adapter", detail="malformed-message")


def _fitting(entries: Sequence[tuple[str, str, bool]]) -> int:
    """Return how many entries from the front fit into one message, at least one."""
    room = MAX_MESSAGE - 100
    for count, entry in enumerate(entries):
        room -= len(json.dumps(list(entry), ensure_ascii=False, separators=(",", ":")).encode()) + 1
        if room < 0:
            return max(1, count)
    return len(entries)


def _bytes(value: object) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
