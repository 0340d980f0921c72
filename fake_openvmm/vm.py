"""One boot of the guest: what is mounted, what runs, and how it ends."""

from __future__ import annotations

import time

from fake_openvmm import messages
from fake_openvmm.workload import Workloads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.boot import Mounted
    from fake_openvmm.execution import Execution, Sink
    from fake_openvmm.machine import Tools
    from fake_openvmm.nvxc import ExecRequest

REFUSED = 125
TARGET = "openvmm_entry::vm_controller"
DRAIN_SECONDS = 5.0
"""How long a host that doesn't read can hold up a guest that ends (contract openvmm 10, item 2)."""
ACCOUNTS = {65534: "nobody"}


class Vm:
    """A guest from its boot to its end.

    Attributes:
        mounted: what its init has mounted, None before and after a refusal.
        status: the byte that it wrote to its status port, None while it runs.
        drain_until: monotonic seconds until which its last words may still be read.
        halted: whether it stands still for ever without having ended.
        reboots: whether it is about to boot again in place.
        execution: the workload that runs, or None.
    """

    def __init__(self, tools: Tools, identity: tuple[int, int] | None) -> None:
        self.tools = tools
        self.mounted: Mounted | None = None
        uid = (identity or (0, 0))[0]
        self.workloads = Workloads(ACCOUNTS.get(uid, f"user{uid}"), self._home)
        self.execution: Execution | None = None
        self.status: int | None = None
        self.drain_until = 0.0
        self.halted = False
        self.reboots = False
        self._hits: dict[str, int] = {}

    @property
    def runs(self) -> bool:
        """Whether it still does anything."""
        return self.status is None and not self.halted and not self.reboots

    def at(self, point: str) -> bool:
        """Pass a point at which the harness may hold the machine or end the guest; False if the guest goes no further.

        Raises:
            Failure: the knob `fail_at` names this point.
        """
        self.tools.pauses.at(point)
        return self.passes(point)

    def passes(self, point: str) -> bool:
        """As `at`, for a point at which the harness has been waited for already."""
        knobs = self.tools.knobs
        hit = self._hits[point] = self._hits.get(point, 0) + 1
        names = {point, f"{point}#{hit}"}
        table = knobs.table("guest_exit_at")
        status = table.get(f"{point}#{hit}", table.get(point))
        if isinstance(status, int):
            self.power_off(status)
        if not names.isdisjoint(filter(_is_text, knobs.items("guest_dead_at"))):
            self.halt()
        if not names.isdisjoint(filter(_is_text, knobs.items("guest_hangs_at"))):
            self.halted = True
            self.abandon()
            self.tools.evidence.event("guest_hangs")
        if not names.isdisjoint(filter(_is_text, knobs.items("reboot_at"))):
            self.reboots = True
        return self.runs

    def power_off(self, status: int) -> None:
        """End the guest with a status byte; only the first one counts."""
        if self.status is not None:
            return
        self.status = self.tools.knobs.integer("exit_code", status & 0xFF) if status == 0 else status & 0xFF
        self.drain_until = time.monotonic() + DRAIN_SECONDS
        self.tools.log.line("INFO", TARGET, "guest halted", reason="power off", status=self.status)
        self.tools.evidence.event("guest_exit", status=self.status)

    def halt(self) -> None:
        """Stand still as after a triple fault: the VMM stays up with a dead guest."""
        self.halted = True
        self.abandon()
        self.tools.log.line("INFO", TARGET, "guest halted", reason="triple fault")
        self.tools.evidence.event("guest_dead")

    def agent_failed(self, stage: str, reason: str) -> None:
        """The agent, or init before it, gives up: a line on port 0xe9, then power off with 125."""
        self.tools.log.portb(f"NVX-MANAGED-ERROR: stage={stage} status={REFUSED}\n".encode())
        self.tools.log.line("WARN", "fake_openvmm::guest", reason, stage=stage)
        self.tools.evidence.event("refused", stage=stage, reason=reason)
        self.abandon()
        self.power_off(REFUSED)

    def execute(self, request: ExecRequest, sink: Sink, *, limited: bool = True) -> None:
        """Start a workload, its output limited or not.

        Raises:
            OSError: there is no guest process to run it.
        """
        from fake_openvmm.execution import OUTPUT_LIMIT, Execution  # noqa: PLC0415 - many a guest runs none

        self.tools.evidence.event(
            "exec",
            argv=[argument.decode(errors="surrogateescape") for argument in request.arguments],
            cwd=None if request.directory is None else request.directory.decode(errors="surrogateescape"),
            timeoutMs=request.timeout_ms,
        )
        limit = OUTPUT_LIMIT if limited else None
        self.execution = Execution(self.workloads, request, sink, time.monotonic(), limit)

    def abandon(self) -> None:
        """Kill the workload that runs, of which nothing more is said."""
        if self.execution is not None:
            self.execution.kill(messages.ABANDONED)
            self.execution = None

    def serve_workloads(self) -> None:
        """Take what the guest process has said."""
        found = self.workloads.receive()
        if found is None:
            self.workloads.close()
            self.agent_failed("guest-process", "the guest process is gone")
            return
        for message in found:
            if self.execution is not None and self.execution.take(message):
                self.execution = None

    def end(self, *, clean: bool) -> None:
        """Leave the guest: its data is kept if it ends cleanly, and every process of it is gone."""
        try:
            if clean and self.mounted is not None:
                self._save()
                self.mounted.unmount()
        except OSError as error:
            self.tools.log.line("WARN", "fake_openvmm::guest", "the upper is lost", error=error.strerror or "")
        finally:
            self.workloads.close()

    def _home(self) -> bytes:
        upper = self.mounted.upper if self.mounted is not None else None
        return upper.load() if upper is not None else b""

    def _save(self) -> None:
        upper = self.mounted.upper if self.mounted is not None else None
        data = self.workloads.save() if upper is not None else None
        if upper is None or data is None:
            return
        from fake_openvmm.ext4 import NoSpace  # noqa: PLC0415 - loaded already with the upper

        try:
            upper.save(data)
        except NoSpace as error:
            self.tools.log.line("WARN", "fake_openvmm::guest", "guest data not kept", error=str(error))
        self.tools.evidence.event("saved", size=len(data))


def _is_text(value: object) -> bool:
    return isinstance(value, str)
