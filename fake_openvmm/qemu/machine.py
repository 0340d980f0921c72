"""The machine with a real guest: moves bytes between host, broker and QEMU until the guest ends."""

from __future__ import annotations

import sys
import time

assert sys.platform != "win32"

from fake_openvmm import jsontext
from fake_openvmm.gate import Gate
from fake_openvmm.hostside import MS, HostSide
from fake_openvmm.machine import WorkerDied
from fake_openvmm.qemu.process import Qemu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.broker import Broker
    from fake_openvmm.hostside import Ready
    from fake_openvmm.machine import Json, MachineConfig, Tools
    from fake_openvmm.qemu.settings import Settings

TARGET = "openvmm_entry::vm_controller"
PIECE = 65_536
DRAIN_SECONDS = 5.0
"""How long a host that doesn't read can hold up a guest that ends (contract openvmm 10, item 2)."""
MAX_LINE = 1 << 20


def run(config: MachineConfig, opened: dict[str, int], tools: Tools, settings: Settings) -> int:
    """Run the machine until its guest ends; give the guest's status byte.

    Args:
        config: the machine.
        opened: descriptors of its blocks (by role), `kernel` and `initrd`; nothing is opened by path.
        tools: log, evidence, knobs and pauses.
        settings: which QEMU.

    Raises:
        Failure: QEMU can't be started, or the knob `fail_at` asks for one.
        WorkerDied: QEMU ended by itself, and not because the guest did.
        SideFileError: a knob asks for what a real guest can't do.
    """
    machine = Machine(config, opened, tools, settings)
    try:
        return machine.run()
    finally:
        machine.close()


class Machine:
    """The loop. A guest that stops dead leaves the VMM as it is: only the status port ends it (contract openvmm 5)."""

    def __init__(self, config: MachineConfig, opened: dict[str, int], tools: Tools, settings: Settings) -> None:
        self._config = config
        self._opened = opened
        self._tools = tools
        self._settings = settings
        self._host = HostSide(config, tools, self._ready)
        self._qemu: Qemu | None = None
        self._writing = memoryview(b"")
        self._report = bytearray()
        self._status: int | None = None
        self._dead = False
        self._drain_until = 0.0
        delay = tools.knobs.integer("boot_delay_ms", 0) / MS
        self._gate: Gate | None = Gate(tools.pauses, "guest_boot", self._host.wake, delay)

    def _ready(self) -> None:
        self._tools.pauses.at("after_ready")

    def run(self) -> int:
        """Serve until the guest has ended and its last words are read, or their time is over."""
        while True:
            if self._gate is not None and self._gate.passed():
                self._gate = None
                self._qemu = Qemu(self._settings, self._config, self._opened, self._tools.knobs)
                self._tools.evidence.event("qemu", pid=self._qemu.pid, accel=self._settings.accelerator)
            self._pump()
            if self._status is not None and self._drained():
                self._tools.pauses.at("before_unmount")
                return self._status
            self._wait()

    def close(self) -> None:
        """End QEMU and close the host's connection."""
        if self._qemu is not None:
            self._qemu.close()
        self._host.close()

    # Moving bytes

    def _pump(self) -> None:
        link, broker = self._host.link, self._host.broker
        if broker is None or link is None:
            return
        moved = True
        while moved:
            moved = self._to_guest(broker) | link.flush()

    def _to_guest(self, broker: Broker) -> bool:
        """Write records to the guest, as much as goes now; True if one has been written whole."""
        if self._qemu is None or self._ended:
            return False
        if not self._writing:
            record = broker.to_guest.take()
            if record is None:
                return False
            self._writing = memoryview(record)
        try:
            self._writing = self._writing[self._qemu.channels["control"].send(self._writing) :]
        except BlockingIOError:
            return False
        except OSError:
            self._writing = memoryview(b"")
            return False
        if self._writing:
            return False
        broker.guest_written()
        return True

    @property
    def _ended(self) -> bool:
        return self._status is not None or self._dead

    def _read(self, name: str) -> bytes:
        if self._qemu is None:
            return b""
        try:
            return self._qemu.channels[name].recv(PIECE)
        except OSError:
            return b""

    def _from_guest(self) -> bool:
        """Take a piece of what the agent said; False if there is none."""
        broker = self._host.broker
        if broker is None or not broker.reads_guest or not (data := self._read("control")):
            return False
        if not broker.running:
            broker.start_device()
        broker.guest_bytes(data)
        return True

    def _from_port(self, name: str) -> bool:
        if not (data := self._read(name)):
            return False
        if name == "text":
            self._tools.log.portb(data)
        elif name == "report":
            self._take_report(data)
        elif self._status is None:
            self._power_off(data[0])
        return True

    def _take_report(self, data: bytes) -> None:
        self._report += data
        *lines, rest = self._report.split(b"\n")
        self._report = bytearray(rest[-MAX_LINE:])
        for line in lines:
            try:
                found: Json = jsontext.decode(line.decode(errors="replace"))
            except ValueError:
                found = None
            if isinstance(found, dict) and isinstance(kind := found.pop("kind", None), str):
                self._told_by_guest(kind, found)
            else:
                self._tools.log.line("WARN", TARGET, "the guest reported what is no report")

    def _told_by_guest(self, kind: str, fields: dict[str, Json]) -> None:
        if kind == "console":
            self._tools.console(str(fields.get("text", "")).encode())
            return
        self._tools.evidence.event(kind, **{name: value for name, value in fields.items() if name != "time"})
        if kind == "refused":
            self._tools.log.line("WARN", TARGET, str(fields.get("reason")), stage=str(fields.get("stage")))
            self._tools.console(f"NVX-SANDBOX-ERROR: {fields.get('reason')}\r\n".encode())
        elif kind == "guest" and fields.get("layered") and self._config.lifecycle == "managed":
            layers = fields.get("layers")
            count = len(layers) if isinstance(layers, list) else 0
            self._tools.console(f"NVX-SANDBOX-READY: managed layers={count}\r\n".encode())

    def _power_off(self, status: int) -> None:
        # What it said before is in the sockets already: the port is written after it.
        while self._from_port("text") | self._from_port("report") | self._from_guest():
            pass
        self._status = status
        self._drain_until = time.monotonic() + DRAIN_SECONDS
        if self._qemu is not None:
            self._qemu.end()
        if self._config.lifecycle != "managed":
            self._tools.console(f"NVX-SANDBOX-EXIT: status={status}\r\n".encode())
        self._tools.log.line("INFO", TARGET, "guest halted", reason="power off", status=status)
        self._tools.evidence.event("guest_exit", status=status)

    def _drained(self) -> bool:
        link = self._host.link
        if link is None or time.monotonic() >= self._drain_until:
            return True
        if self._from_guest():
            return False
        return link.idle

    # Waiting

    def _wait(self) -> None:
        qemu, broker = self._qemu, self._host.broker
        reads, writes = list[int](), list[int]()
        ports: dict[int, str] = {}
        if qemu is not None and not self._ended:
            ports = {qemu.channels[name].fileno(): name for name in ("text", "report", "status")}
            reads = [*ports, qemu.fileno()]
            control = qemu.channels["control"].fileno()
            if broker is not None and broker.reads_guest:
                reads.append(control)
            if self._writing:
                writes.append(control)
        ready = self._host.wait(reads, writes, self._due(), serve=self._status is None)
        if qemu is not None and not self._ended:
            self._serve_guest(qemu, ready, ports)

    def _serve_guest(self, qemu: Qemu, ready: Ready, ports: dict[int, str]) -> None:
        if ready.get(qemu.channels["control"].fileno(), (False, False))[0]:
            self._from_guest()
        for fd, name in ports.items():
            if ready.get(fd, (False, False))[0] and not self._ended:
                self._from_port(name)
        if ready.get(qemu.fileno()) and not self._ended:
            self._worker_ended(qemu)

    def _worker_ended(self, qemu: Qemu) -> None:
        """QEMU has ended: by the guest's last word, because the guest is dead, or by itself."""
        status = qemu.reap()
        while self._from_port("text") | self._from_port("report") | self._from_guest() | self._from_port("status"):
            pass
        if self._status is not None:
            return
        if status:
            raise WorkerDied(f"the VM worker ended with {status}")
        self._dead = True
        self._tools.log.line("INFO", TARGET, "guest halted", reason="triple fault")
        self._tools.evidence.event("guest_dead")

    def _due(self) -> list[float | None]:
        """Return the moments at which the machine wants something."""
        return [
            self._drain_until if self._status is not None else None,
            self._gate.due if self._gate is not None else None,
        ]
