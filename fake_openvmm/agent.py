"""The guest's end of the control terminal: NVXS as the guest speaks it, for whatever agent sits on it."""

from __future__ import annotations

from fake_openvmm import nvxs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.vm import Vm

WINDOW = 1 << 20
MALFORMED = 125
HIGH_WATER = 2 << 20


class Agent:
    """What every agent shares: attaching, epochs, sequences and credit.

    Attributes:
        vm: the guest that it runs in.
        epoch: the session's epoch, 0 before the first RESET.
        out: whole records for the broker, oldest first.
    """

    def __init__(self, vm: Vm) -> None:
        self.vm = vm
        self.out: list[bytes] = []
        self.waiting = 0
        self.epoch = 0
        self._instance = nvxs.NO_INSTANCE
        self._parser = nvxs.Parser()
        self._received = 0
        self._sent = 0

    def attach(self) -> None:
        """Announce the guest to the broker."""
        self._put(nvxs.encode(nvxs.GUEST_ATTACH))

    @property
    def blocked(self) -> bool:
        """Whether so much waits for the host that a workload's output has to wait too."""
        return self.waiting > HIGH_WATER

    def take(self) -> bytes | None:
        """Give the next record for the broker."""
        if not self.out:
            return None
        record = self.out.pop(0)
        self.waiting -= len(record)
        return record

    def feed(self, raw: bytes) -> None:
        """Take bytes of the broker."""
        self._parser.feed(raw)
        try:
            while self.vm.runs and (record := self._parser.take()) is not None:
                self._record(record)
        except nvxs.RecordError as error:
            self.vm.agent_failed("session", str(error))

    def _record(self, record: nvxs.Record) -> None:
        if record.type == nvxs.RESET and not record.sequence:
            self._reset(record)
        elif (
            record.type != nvxs.DATA
            or not self.epoch
            or (record.instance, record.epoch, record.sequence) != (self._instance, self.epoch, self._received)
        ):
            self.vm.agent_failed("session", f"unexpected {record!r}")
        else:
            self._received += 1
            self.data(record.payload)

    def _reset(self, record: nvxs.Record) -> None:
        self.out.clear()
        self.waiting = 0
        self._instance, self.epoch = record.instance, record.epoch
        self._received = 1
        self._sent = 0
        self.reset()
        self._send_credit(nvxs.ACK, WINDOW)

    def credit(self, size: int) -> None:
        """Give back what a payload took of the window."""
        self._send_credit(nvxs.CREDIT, size)

    def send(self, payload: bytes) -> None:
        """Send opaque bytes to the host, in as many DATA records as they take."""
        for start in range(0, len(payload), nvxs.MAX_DATA):
            part = payload[start : start + nvxs.MAX_DATA]
            self._put(
                nvxs.encode(nvxs.DATA, part, instance=self._instance, epoch=self.epoch, sequence=self._sequence())
            )

    def noise(self, raw: bytes) -> None:
        """Write bytes to the control terminal that are no record."""
        self._put(raw)

    def _send_credit(self, type_: int, amount: int) -> None:
        self._put(nvxs.credit(type_, amount, instance=self._instance, epoch=self.epoch, sequence=self._sequence()))

    def _sequence(self) -> int:
        self._sent += 1
        return self._sent - 1

    def _put(self, record: bytes) -> None:
        self.out.append(record)
        self.waiting += len(record)

    # What an agent of its own kind does

    def reset(self) -> None:
        """The session starts over: forget the host that was there."""

    def data(self, payload: bytes) -> None:
        """Serve the payload of one DATA record."""
        self.credit(len(payload))
