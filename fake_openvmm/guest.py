"""The machine: boots the guest and serves host and guest in one loop until the guest ends."""

from __future__ import annotations

import time

from fake_openvmm.blocks import Unmountable
from fake_openvmm.boot import boot
from fake_openvmm.gate import Gate
from fake_openvmm.hostside import MS, HostSide
from fake_openvmm.vm import Vm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.agent import Agent
    from fake_openvmm.boot import Mounted
    from fake_openvmm.broker import Broker
    from fake_openvmm.machine import MachineConfig, Tools

ODD = ("guest", "frames", "host_records", "guest_exit_at", "guest_dead_at", "guest_hangs_at", "reboot_at")
"""Knobs whose values name things, which a test may have misspelt."""


def run(config: MachineConfig, opened: dict[str, int], tools: Tools) -> int:
    """Run the machine until its guest ends; give the guest's status byte.

    Args:
        config: the machine.
        opened: descriptors of its blocks (by role), `kernel` and `initrd`; nothing is opened by path.
        tools: log, evidence, knobs and pauses.

    Raises:
        Failure: the knob `fail_at` asks for one.
        SideFileError: a knob asks for what doesn't exist.
    """
    if any(name in tools.knobs for name in ODD):
        from fake_openvmm import mischief  # noqa: PLC0415 - at the harness's request only

        mischief.check(tools.knobs)
    machine = Machine(config, opened, tools)
    try:
        return machine.run()
    finally:
        machine.close()


class Machine:
    """The loop, and the phases of a boot: powered on, device started, agent attached, ending."""

    def __init__(self, config: MachineConfig, opened: dict[str, int], tools: Tools) -> None:
        self._config = config
        self._opened = opened
        self._tools = tools
        self._host = HostSide(config, tools, self._ready)
        self._power_on()

    def _power_on(self) -> None:
        self._vm = Vm(self._tools, self._config.identity)
        self._agent: Agent | None = None
        self._boot_gate: Gate | None = self._gate("guest_boot", "boot_delay_ms")
        self._attach_gate: Gate | None = None
        self._trigger: Gate | None = None

    def _gate(self, point: str, delay: str = "") -> Gate:
        seconds = self._tools.knobs.integer(delay, 0) / MS if delay else 0.0
        return Gate(self._tools.pauses, point, self._host.wake, seconds)

    def run(self) -> int:
        """Serve until the guest has ended and its last words are read, or their time is over."""
        while True:
            self._advance()
            self._pump()
            status = self._vm.status
            if status is not None and self._drained():
                self._tools.pauses.at("before_unmount")
                self._vm.end(clean=True)
                return status
            if self._vm.reboots:
                self._vm.end(clean=False)
                self._power_on()
                continue
            self._wait()

    def close(self) -> None:
        """End what the guest has left and close the host's connection."""
        self._vm.end(clean=False)
        self._host.close()

    # Phases

    def _advance(self) -> None:
        if self._boot_gate is not None and self._boot_gate.passed():
            self._boot_gate = None
            if self._vm.passes("guest_boot"):
                self._boot()
        if self._attach_gate is not None and self._attach_gate.passed():
            self._attach_gate = None
            if self._vm.passes("guest_attach") and self._agent is not None:
                self._agent.attach()
        if self._trigger is not None and self._trigger.passed():
            self._trigger = None
            self._vm.passes("guest_trigger")

    def _boot(self) -> None:
        if self._host.broker is not None:
            self._host.broker.start_device()
        try:
            mounted = boot(self._config, self._opened, self._tools)
        except (Unmountable, OSError) as error:
            self._tools.console(f"NVX-SANDBOX-ERROR: {error}\r\n".encode(errors="replace"))
            self._vm.agent_failed("init", str(error))
            return
        self._vm.mounted = mounted
        self._tools.evidence.event("guest", **mounted.facts)
        managed = mounted.tokens.lifecycle == "managed"
        if managed and mounted.tokens.layered:
            self._tools.console(f"NVX-SANDBOX-READY: managed layers={len(mounted.tokens.layers)}\r\n".encode())
        if not managed:
            from fake_openvmm.oneshot import start  # noqa: PLC0415 - most guests are managed

            start(self._vm, mounted)
        elif not self._tools.knobs.flag("never_attaches"):
            self._agent = self._make_agent(mounted)
            self._attach_gate = self._gate("guest_attach", "attach_delay_ms")
            self._advance()

    def _make_agent(self, mounted: Mounted) -> Agent:
        from fake_openvmm.mappings import Mappings  # noqa: PLC0415 - only with an agent

        tokens = mounted.tokens
        if mounted.adapter:
            from fake_openvmm.adapter import ANY_MAPPINGS, Adapter  # noqa: PLC0415 - the test adapter's guest only

            needed = tokens.mappings > 0
            mappings = Mappings(self._config, self._tools, tokens.mappings or ANY_MAPPINGS, needed=needed)
            return Adapter(self._vm, mappings, mounted.facts)
        from fake_openvmm.managed import Managed  # noqa: PLC0415 - every other managed guest

        mappings = Mappings(self._config, self._tools, tokens.mappings)
        return Managed(self._vm, mappings, layered=tokens.layered)

    def _ready(self) -> None:
        self._vm.at("after_ready")
        if self._trigger is None and self._tools.pauses.holds("guest_trigger"):
            self._trigger = self._gate("guest_trigger")

    # Moving bytes

    def _pump(self) -> None:
        """Move whole records between agent and broker, and bytes to the host, until nothing moves any more."""
        link, broker = self._host.link, self._host.broker
        if broker is None or link is None:
            return
        moved = True
        while moved:
            moved = self._to_broker(broker) | self._to_agent(broker) | link.flush()

    def _to_broker(self, broker: Broker) -> bool:
        moved = False
        while self._agent is not None and broker.reads_guest and (record := self._agent.take()) is not None:
            broker.guest_bytes(record)
            moved = True
        return moved

    def _to_agent(self, broker: Broker) -> bool:
        moved = False
        while self._agent is not None and self._vm.runs and (record := broker.to_guest.take()) is not None:
            self._agent.feed(record)
            broker.guest_written()
            moved = True
        return moved

    def _drained(self) -> bool:
        """Whether the host has what the guest said last, or can't get it in time."""
        link = self._host.link
        if link is None or time.monotonic() >= self._vm.drain_until:
            return True
        return link.idle and (self._agent is None or not self._agent.out or not self._attached())

    def _attached(self) -> bool:
        broker = self._host.broker
        return broker is not None and broker.host != 0

    def _wait(self) -> None:
        vm = self._vm
        reads, writes = list[int](), list[int]()
        if vm.workloads.running:
            if vm.execution is None or self._agent is None or not self._agent.blocked:
                reads.append(vm.workloads.fileno())
            if vm.workloads.writes:
                writes.append(vm.workloads.fileno())
        ready = self._host.wait(reads, writes, self._due(), serve=vm.status is None)
        readable, writable = ready.get(vm.workloads.fileno(), (False, False))
        if writable:
            vm.workloads.flush()
        if readable:
            vm.serve_workloads()
        if vm.execution is not None:
            vm.execution.late(time.monotonic())

    def _due(self) -> list[float | None]:
        """Return the moments at which the guest wants something."""
        return [
            self._vm.execution.deadline if self._vm.execution is not None else None,
            self._vm.drain_until if self._vm.status is not None else None,
            *(gate.due for gate in (self._boot_gate, self._attach_gate) if gate is not None),
        ]
