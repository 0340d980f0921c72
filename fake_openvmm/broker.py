"""The control broker: the state machine of contract openvmm 3.4, without a socket and without a clock.

Whoever drives it feeds bytes from both sides, takes whole records for both sides and says when one has been written,
tells of accepted, ended and late hosts, and closes the host's connection when `host` says that none is left.
"""

from __future__ import annotations

from fake_openvmm import nvxs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

AWAIT_GUEST_ATTACH: Final = 1
AWAIT_GUEST_ACK: Final = 2
READY_NO_HOST: Final = 3
ACTIVE: Final = 4
RESET_PENDING: Final = 5
FAILED: Final = 6

NO_HOST: Final = 0
UNPROVEN: Final = 1
PROVEN: Final = 2

QUEUE_RECORDS = 16
QUEUE_BYTES = 1 << 20


def _silent(kind: str, detail: str) -> None:
    del kind, detail


def _through(point: str) -> None:
    del point


class Queue:
    """Whole records on their way to one side: 16 of them and 1 MiB, plus the one that is being written."""

    __slots__ = ("_size", "_waiting", "writing")

    def __init__(self) -> None:
        self._waiting: list[tuple[int, bytes]] = []
        self._size = 0
        self.writing: tuple[int, bytes] | None = None

    def has_room(self, size: int) -> bool:
        """Whether a record of `size` bytes still fits."""
        return len(self._waiting) < QUEUE_RECORDS and self._size + size <= QUEUE_BYTES

    def put(self, type_: int, record: bytes) -> None:
        """Add a record, room or not: the broker's own records are few."""
        self._waiting.append((type_, record))
        self._size += len(record)

    def take(self) -> bytes | None:
        """Give the next record to write, if none is being written."""
        if self.writing is not None or not self._waiting:
            return None
        self.writing = self._waiting.pop(0)
        self._size -= len(self.writing[1])
        return self.writing[1]

    def written(self) -> int:
        """Say that the record has been written whole; its type comes back."""
        type_ = self.writing[0] if self.writing else 0
        self.writing = None
        return type_

    def drop_unstarted(self) -> None:
        """Forget what waits; the record being written stays whole."""
        self._waiting.clear()
        self._size = 0

    def drop(self) -> None:
        """Forget everything."""
        self.drop_unstarted()
        self.writing = None

    def __bool__(self) -> bool:
        return bool(self._waiting) or self.writing is not None


class Broker:
    """One control session broker.

    Args:
        instance: 16 random bytes, not all zero; the same for the life of the process.
        capability: what a host must show.
        tell: takes (kind, detail) of what happened, for log and evidence. Never the capability.
        before: called with `before_wait` or `before_ready` right before that record is queued.

    Attributes:
        state: 1 to 6.
        host: `NO_HOST`, `UNPROVEN` or `PROVEN`. Once it is `NO_HOST` the driver closes the connection that it has.
        running: whether the guest has started the device; until then nobody accepts a host.
    """

    __slots__ = (
        "_before",
        "_begun",
        "_capability",
        "_credit",
        "_from_guest",
        "_from_host",
        "_guest_held",
        "_guest_next",
        "_host_held",
        "_host_next",
        "_tell",
        "_to_guest_next",
        "_to_host_next",
        "epoch",
        "host",
        "instance",
        "running",
        "state",
        "to_guest",
        "to_host",
    )

    def __init__(
        self,
        instance: bytes,
        capability: bytes,
        *,
        tell: Callable[[str, str], None] = _silent,
        before: Callable[[str], None] = _through,
    ) -> None:
        self.instance = instance
        self._capability = capability
        self._tell = tell
        self._before = before
        self.running = False
        self.host: int = NO_HOST
        self.to_guest = Queue()
        self.to_host = Queue()
        self._begun = False
        self._start_over()

    def _start_over(self) -> None:
        self.state: int = AWAIT_GUEST_ATTACH
        self.epoch = 1
        self._credit = 0
        self._from_guest = nvxs.Parser()
        self._from_host = nvxs.Parser()
        self._guest_held: nvxs.Record | None = None
        self._host_held: nvxs.Record | None = None
        self._guest_next = 0
        self._host_next = 0
        self._to_guest_next = 0
        self._to_host_next = 0
        self.to_guest.drop()

    # What the driver asks

    @property
    def accepts(self) -> bool:
        """Whether a host may be accepted now: the device runs, no host is there, the session hasn't failed."""
        return self.running and self.host == NO_HOST and self.state != FAILED

    @property
    def reads_host(self) -> bool:
        """Whether bytes of the host are wanted: not while one of its records is held."""
        return self.host != NO_HOST and self._host_held is None

    @property
    def reads_guest(self) -> bool:
        """Whether bytes of the guest are wanted: not while one of its records is held."""
        return self._guest_held is None and self.state != FAILED

    # The guest's side

    def start_device(self) -> None:
        """The guest's driver starts the device, the first time or again after a reboot in place."""
        self.running = True
        kept = self.host != NO_HOST and not self._begun
        self._start_over()
        if not kept:
            self._drop_host("device reset")

    def guest_bytes(self, data: bytes) -> None:
        """Take bytes that the guest wrote."""
        if self.state == FAILED:
            return
        self._from_guest.feed(data)
        self._serve_guest()

    def guest_written(self) -> None:
        """The record that `to_guest.take` gave has been written whole."""
        if self.to_guest.written() == nvxs.RESET and self.state == RESET_PENDING:
            self.state = AWAIT_GUEST_ACK
        self._resume_host()

    def _serve_guest(self) -> None:
        while self._guest_held is None and self.state != FAILED:
            try:
                record = self._from_guest.take()
            except nvxs.RecordError as error:
                self._fail(f"guest record: {error}")
                return
            if record is None:
                return
            self._guest_record(record)

    def _guest_record(self, record: nvxs.Record) -> None:
        if record.type == nvxs.GUEST_ATTACH and self.state == AWAIT_GUEST_ATTACH:
            self._reset_guest()
        elif record.type not in {nvxs.ACK, nvxs.DATA, nvxs.CREDIT}:
            self._fail(f"unexpected {nvxs.NAMES[record.type]} from the guest")
        elif record.instance != self.instance:
            self._fail("guest names another instance")
        elif record.epoch < self.epoch and self.state in {RESET_PENDING, AWAIT_GUEST_ACK}:
            return  # on its way when the epoch ended
        elif record.epoch != self.epoch or record.sequence != self._guest_next:
            self._fail("guest names another epoch or sequence")
        else:
            self._guest_next += 1
            self._guest_says(record)

    def _guest_says(self, record: nvxs.Record) -> None:
        if record.type == nvxs.ACK and self.state == AWAIT_GUEST_ACK:
            self._credit = record.credit
            self.state = READY_NO_HOST
            if self.host == PROVEN:
                self._send_ready()
        elif record.type == nvxs.CREDIT and self.state in {READY_NO_HOST, ACTIVE}:
            self._credit += record.credit
            self._resume_host()
        elif record.type == nvxs.DATA and self.state == ACTIVE:
            self._guest_held = record
            self._pass_to_host()
        else:
            self._fail(f"unexpected {nvxs.NAMES[record.type]} from the guest")

    def _reset_guest(self) -> None:
        self.state = RESET_PENDING
        self._guest_next = 0
        self._to_guest_next = 1
        self.to_guest.put(nvxs.RESET, nvxs.encode(nvxs.RESET, instance=self.instance, epoch=self.epoch))
        self._tell("reset", f"epoch {self.epoch}")

    def _pass_to_host(self) -> None:
        held = self._guest_held
        if held is None or not self.to_host.has_room(nvxs.HEADER_SIZE + len(held.payload)):
            return
        self._guest_held = None
        self._send_host(nvxs.DATA, held.payload)

    # The host's side

    def host_opened(self) -> None:
        """A host was accepted, and its peer is one that may ask."""
        self.host = UNPROVEN
        self._begun = False
        self._from_host = nvxs.Parser()
        self._host_next = 0
        self._to_host_next = 0

    def host_bytes(self, data: bytes) -> None:
        """Take bytes of the host, at most what one read gives."""
        self._begun = True
        self._from_host.feed(data)
        self._serve_host()

    def host_ended(self, reason: str = "closed by the host") -> None:
        """The host's connection is at its end, a half-close too."""
        self._drop_host(reason)

    def host_late(self) -> None:
        """No valid HOST_ATTACH came in time."""
        if self.host == UNPROVEN:
            self._tell("rejected", "authentication timed out")
            self._drop_host("authentication timed out")

    def host_written(self) -> None:
        """The record that `to_host.take` gave has been written whole."""
        self.to_host.written()
        self._pass_to_host()
        self._serve_guest()

    def _serve_host(self) -> None:
        while self.host != NO_HOST and self._host_held is None:
            try:
                record = self._from_host.take()
            except nvxs.RecordError as error:
                self._reject(f"host record: {error}")
                return
            if record is None:
                return
            self._host_record(record)

    def _resume_host(self) -> None:
        self._forward()
        self._serve_host()

    def _host_record(self, record: nvxs.Record) -> None:
        if self.host == UNPROVEN:
            self._authenticate(record)
        elif record.type != nvxs.DATA or self.state != ACTIVE:
            self._reject(f"unexpected {nvxs.NAMES[record.type]} from the host")
        elif record.instance != self.instance or record.epoch != self.epoch or record.sequence != self._host_next:
            self._reject("host names another instance, epoch or sequence")
        else:
            self._host_next += 1
            self._host_held = record
            self._forward()

    def _authenticate(self, record: nvxs.Record) -> None:
        if record.type != nvxs.HOST_ATTACH:
            self._reject(f"{nvxs.NAMES[record.type]} before HOST_ATTACH")
        elif record.payload != self._capability:
            self._reject("authentication failed")
        else:
            self.host = PROVEN
            self._tell("proven", f"epoch {self.epoch}")
            if self.state == READY_NO_HOST:
                self._send_ready()
            else:
                self._before("before_wait")
                self._send_host(nvxs.WAIT)

    def _forward(self) -> None:
        """Pass the held record on, if the guest's credit and its queue have room for it."""
        held = self._host_held
        if held is None:
            return
        size = len(held.payload)
        if size > self._credit or not self.to_guest.has_room(nvxs.HEADER_SIZE + size):
            return
        sequence, self._to_guest_next = self._to_guest_next, self._to_guest_next + 1
        if sequence > nvxs.MAX_NUMBER:
            self._fail("sequence overflow")
            return
        self._host_held = None
        self._credit -= size
        record = nvxs.encode(nvxs.DATA, held.payload, instance=self.instance, epoch=self.epoch, sequence=sequence)
        self.to_guest.put(nvxs.DATA, record)

    def _send_ready(self) -> None:
        self._before("before_ready")
        self.state = ACTIVE
        self._send_host(nvxs.READY)

    def _send_host(self, type_: int, payload: bytes = b"") -> None:
        sequence, self._to_host_next = self._to_host_next, self._to_host_next + 1
        if sequence > nvxs.MAX_NUMBER:
            self._fail("sequence overflow")
            return
        record = nvxs.encode(type_, payload, instance=self.instance, epoch=self.epoch, sequence=sequence)
        self.to_host.put(type_, record)
        if type_ != nvxs.DATA:
            self._tell(nvxs.NAMES[type_].lower(), f"epoch {self.epoch}")

    # Ends

    def _reject(self, reason: str) -> None:
        self._tell("rejected", reason)
        self._drop_host(reason)

    def _drop_host(self, reason: str) -> None:
        self.to_host.drop()
        self._host_held = None
        if self.host == NO_HOST:
            return
        self.host = NO_HOST
        self._tell("host_gone", reason)
        if self.state == ACTIVE:
            self._next_epoch()

    def _next_epoch(self) -> None:
        if self.epoch >= nvxs.MAX_NUMBER:
            self._fail("epoch overflow")
            return
        self.epoch += 1
        self._credit = 0
        self._guest_held = None
        self.to_guest.drop_unstarted()
        self._reset_guest()
        self._serve_guest()

    def _fail(self, reason: str) -> None:
        self.state = FAILED
        self._tell("failed", reason)
        self.to_guest.drop_unstarted()
        self._drop_host(reason)
