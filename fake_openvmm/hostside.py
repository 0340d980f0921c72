"""The host's half of a machine: the control session, if there is one, and the wait that serves it."""

from __future__ import annotations

import os
import time

from fake_openvmm import nvxs, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fake_openvmm.broker import Broker
    from fake_openvmm.hostlink import HostLink
    from fake_openvmm.machine import MachineConfig, Tools

TARGET = "virtio_console::control"
MS = 1000.0

Ready = dict[int, tuple[bool, bool]]
"""By descriptor: whether it can be read, and written."""


class HostSide:
    """What the loop of a machine has to do with its host, whatever the guest is.

    Attributes:
        wake: wakes the loop.
        broker: the control session's broker, None without a control console.
        link: the host's connection to it, None as above.
    """

    __slots__ = ("_tools", "broker", "link", "wake")

    def __init__(self, config: MachineConfig, tools: Tools, ready: Callable[[], None]) -> None:
        """Take over the listener and the capability that the front has got.

        Args:
            config: the machine.
            tools: log, evidence and pauses.
            ready: called when a host has been told READY.
        """
        self._tools = tools
        self.wake = system.Wake()
        self.broker: Broker | None = None
        self.link: HostLink | None = None
        if config.listener is None or config.capability is None:
            return
        from fake_openvmm.broker import Broker  # noqa: PLC0415 - only with a control console
        from fake_openvmm.hostlink import HostLink  # noqa: PLC0415 - as above

        instance = nvxs.NO_INSTANCE
        while instance == nvxs.NO_INSTANCE:
            instance = os.urandom(16)
        self.broker = Broker(instance, config.capability, tell=self._told, before=tools.pauses.at)
        self.link = HostLink(config.listener, self.broker, tools, config.auth_timeout_ms / MS, ready)
        tools.evidence.event("instance", instance=instance.hex())

    def _told(self, kind: str, detail: str) -> None:
        if kind in {"rejected", "failed"}:
            self._tools.log.line("WARN", TARGET, f"control session: {detail}")
        self._tools.evidence.event("session", what=kind, detail=detail)

    def wait(self, reads: list[int], writes: list[int], due: Iterable[float | None], *, serve: bool) -> Ready:
        """Wait for a descriptor or a moment, and serve the host.

        Args:
            reads: the guest's descriptors to read.
            writes: the guest's descriptors to write.
            due: moments of the monotonic clock, in seconds.
            serve: whether a new host is let in.

        Returns:
            What can be read and written.
        """
        watched = list[int]()
        times = [*due]
        reads = [self.wake.fileno(), *reads]
        if self.link is not None:
            more_reads, more_writes, watched = self.link.wanted(serve=serve)
            reads, writes = [*reads, *more_reads], [*writes, *more_writes]
            times.append(self.link.deadline)
        next_one = min((at for at in times if at is not None), default=None)
        patience = None if next_one is None else max(0.0, next_one - time.monotonic())
        ready = system.wait(reads, writes, patience, watched)
        if ready.get(self.wake.fileno()):
            self.wake.clear()
        if self.link is not None:
            self.link.serve(ready)
            self.link.tick()
        return ready

    def close(self) -> None:
        """Close the host's connection."""
        if self.link is not None:
            self.link.close()
        self.wake.close()
