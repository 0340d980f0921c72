"""One workload at a time, and how it ends (contract openvmm 3.6)."""

from __future__ import annotations

from fake_openvmm import messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.nvxc import ExecRequest
    from fake_openvmm.workload import Workloads

OUTPUT_LIMIT = 1_048_576
MS = 1000.0


class Sink:
    """Who asked for the workload: one of `ended` and `refused` comes last."""

    def output(self, stream: int, data: bytes) -> None:
        """Take bytes of `messages.STDOUT` or `messages.STDERR`, as one read gave them."""

    def ended(self, category: str, status: int) -> None:
        """The workload is over and so are both of its pipes."""

    def refused(self, stage: int, error: int) -> None:
        """It couldn't be started: `messages.STAGE_*` and the errno."""


class Execution:
    """A workload that runs.

    Attributes:
        deadline: monotonic seconds at which it is killed, or None.
        number: what the guest process calls it.
    """

    __slots__ = ("_limit", "_over", "_sent", "_sink", "_workloads", "deadline", "number")

    def __init__(
        self, workloads: Workloads, request: ExecRequest, sink: Sink, now: float, limit: int | None = OUTPUT_LIMIT
    ) -> None:
        self._workloads = workloads
        self._sink = sink
        self._limit = limit
        self._sent = 0
        self._over = False
        self.deadline = now + request.timeout_ms / MS if request.timeout_ms else None
        self.number = workloads.start(request)

    def kill(self, reason: int) -> None:
        """Kill it for a reason of `messages`, unless its leader has exited already."""
        self._workloads.kill(self.number, reason)

    def late(self, now: float) -> None:
        """Kill it if its time is up."""
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.kill(messages.TIMEOUT)

    def take(self, message: messages.Message) -> bool:
        """Take a message of the guest process; True when the workload is over."""
        number, first, second = message.numbers
        if number != self.number:
            return False
        if message.kind in {messages.STDOUT, messages.STDERR}:
            self._output(message.kind, message.data)
        elif message.kind == messages.REFUSED:
            self._sink.refused(first, second)
            return True
        elif message.kind == messages.DONE:
            self._sink.ended(*self._end(first, second))
            return True
        return False

    def _output(self, stream: int, data: bytes) -> None:
        if self._limit is not None and self._sent + len(data) > self._limit:
            self._over = True
            self.kill(messages.OUTPUT_LIMIT)
            return
        self._sent += len(data)
        self._sink.output(stream, data)

    def _end(self, status: int, reasons: int) -> tuple[str, int]:
        if reasons & messages.CANCELLED:
            return "cancelled", 137
        if reasons & messages.TIMEOUT:
            return "timeout", 124
        if self._over:
            return "output-limit", 125
        if status < 0:
            return "signal", 128 - status
        return "exit", status
