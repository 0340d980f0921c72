"""The run: checks in the order of contract openvmm 5, the machine, teardown, report and exit status."""

from __future__ import annotations

import os
import sys

from fake_openvmm import cmdline, endpoints, host, report, system, validate
from fake_openvmm.knobs import SIDE_FILE_STATUS, Knobs, SideFileError
from fake_openvmm.machine import Evidence, Failure, Log, MachineConfig, TeardownFailure, Tools, WorkerDied, write_all
from fake_openvmm.options import Options, Usage, parse
from fake_openvmm.pauses import Pauses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from fake_openvmm.machine import Block, Share
    from fake_openvmm.transport import Server

PANIC_STATUS = 101
TARGET = "openvmm_entry"
ELF_START = b"\x7fELF\x02\x01"
X86_64 = b"\x3e\x00"
DISK_FORMATS = (".vhd", ".vhdx", ".vmgs")


def start(argv: list[str], side_file: str | None) -> NoReturn:
    """Run with these arguments and end the process; nothing is left to the interpreter's own shutdown."""
    try:
        tools = _tools(argv, side_file)
        without_leader = tools.knobs.flag("leader_exits")
        # The interpreter runs handlers in its first thread only.
        host.default_signals(_recorder(tools.evidence) if tools.evidence and not without_leader else None)
        if without_leader:
            from fake_openvmm import tricks  # noqa: PLC0415 - for this knob only

            def when(call: Callable[[], None]) -> None:
                # Paths below /proc/self name nothing any more in a process without its first thread.
                tools.opened = call

            tricks.end_first_thread(lambda: _run(argv, tools), when)
        _run(argv, tools)
    except SideFileError as error:
        write_all(2, f"fake-openvmm: side file: {error}\n".encode(errors="surrogateescape"))
    os._exit(SIDE_FILE_STATUS)


def _tools(argv: list[str], side_file: str | None) -> Tools:
    if side_file is None:
        return Tools(Evidence(), Knobs(), Pauses(), Log())
    from fake_openvmm.sidefile import SideFile  # noqa: PLC0415 - what it imports costs half an interpreter start

    return SideFile(side_file, argv).tools


def _recorder(evidence: Evidence) -> Callable[[int], None]:
    return lambda number: evidence.event("signal", number=number)


def _run(argv: list[str], tools: Tools) -> None:
    try:
        status = _status(argv, tools)
        tools.pauses.at("before_exit")
        status = tools.knobs.integer("exit_status", status)
        _linger(tools.knobs)
        tools.evidence.event("exit", status=status)
    except SideFileError as error:
        write_all(2, f"fake-openvmm: {error}\n".encode(errors="surrogateescape"))
        tools.evidence.event("exit", status=SIDE_FILE_STATUS)
        status = SIDE_FILE_STATUS
    except BaseException as error:  # noqa: BLE001 - a fault of the stand-in itself must be seen, whatever it is
        sys.excepthook(type(error), error, error.__traceback__)
        status = PANIC_STATUS
    os._exit(status)


def _status(argv: list[str], tools: Tools) -> int:
    try:
        options = parse(argv)
    except Usage as usage:
        write_all(usage.stream, usage.text.encode(errors="surrogateescape"))
        return usage.status
    fault = validate.precheck(options)
    try:
        planned = report.plan(options)
        result: int | Failure = Failure(fault) if fault else _machine(options, tools)
        if planned is not None:
            result = _reported(planned, result, tools)
    except Failure as failure:
        result = failure
    if isinstance(result, WorkerDied):
        tools.log.line("ERROR", TARGET, str(result))
    elif isinstance(result, Failure):
        tools.log.fatal(str(result))
    return result if isinstance(result, int) else 1


def _reported(planned: report.Report, result: int | Failure, tools: Tools) -> int | Failure:
    try:
        planned.write(result, tools)
    except Failure as failure:
        if isinstance(result, Failure):
            return Failure(f"{result}: {failure}")
        return failure
    return result


def _machine(options: Options, tools: Tools) -> int | Failure:
    launch = Launch(options, tools)
    try:
        result: int | Failure = launch.run()
    except Failure as failure:
        result = failure
    try:
        tools.pauses.at("before_teardown")
    except Failure as failure:
        result = failure
    launch.close()
    broken = tools.knobs.text("teardown_fails")
    if broken:
        result = TeardownFailure(
            "microVM workers did not stop cleanly", vm_stopped=broken != "vm", control_closed=broken != "control"
        )
    return result


class Launch:
    """One launch: what it has opened so far, and its way through steps 4 to 9 of section 5."""

    def __init__(self, options: Options, tools: Tools) -> None:
        """Nothing is opened yet."""
        self.options = options
        self.tools = tools
        self.config = MachineConfig()
        self.control: host.Listener | None = None
        self.boot: endpoints.BootConsole | None = None
        self.opened: dict[str, int] = {}

    def run(self) -> int:
        """Go through every step; give the guest's status.

        Raises:
            Failure: the first check that fails; what was opened stays for `close`.
        """
        o, tools, config = self.options, self.tools, self.config
        validate.check(o)
        config.shares = self._shares()
        where = endpoints.identity(o.virtio_console)
        control = endpoints.identity(o.microvm_control_console)
        if o.microvm_control_auth_stdin:
            tools.pauses.at("before_capability")
            config.capability = host.read_capability()
            tools.evidence.protect(config.capability)
            tools.evidence.event("capability")
            tools.log.portb_to(2)
        if control is not None and control == where:
            raise Failure("microVM control console must differ from the boot console endpoint")
        self._bind(where, control)
        self._open_blocks()
        text = self._boot_files()
        tools.evidence.event("cmdline", text=text)
        config.cmdline = text
        self._describe()
        self._note_manifest(o.kernel or "")
        tools.opened()
        tools.pauses.at("before_guest")
        return _guest(config, self.opened, tools)

    def _shares(self) -> list[Share]:
        if not self.options.mount and self.options.mount_aggregate is None:
            return []
        from fake_openvmm import shares  # noqa: PLC0415 - only with shares

        return shares.resolve(self.options)

    def _bind(self, boot: str | None, control: str | None) -> None:
        tools, knobs = self.tools, self.tools.knobs
        tools.pauses.at("before_bind")
        self.boot = endpoints.BootConsole(self.options.virtio_console, boot)
        tools.console = self.boot.write
        if control is not None:
            listen = None if knobs.flag("no_listen") else _listen(tools)
            mode = knobs.integer("socket_mode", 0o600)
            self.control = host.Listener.bind(control, private=True, mode=mode, listen=listen)
            self.config.listener = self.control.socket
            tools.evidence.event("listening", path=control, device=self.control.device, inode=self.control.inode)
        tools.pauses.at("after_bind")

    def _open_blocks(self) -> None:
        o = self.options
        if o.memory.size == 0:
            raise Failure("microVM memory size must be nonzero")
        if o.memory.file is not None:
            self._open("memory", o.memory.file)
        for item in o.microvm_sandbox_block:
            block = item.block
            self.tools.pauses.at(f"before_open:{block.role}")
            suffix = os.path.splitext(block.path or "")[1].lower()
            if suffix in DISK_FORMATS:
                raise Failure(f"failed to open {block.path} as a {suffix[1:]} disk: not supported by this stand-in")
            if suffix == ".iso" and not block.readonly:
                raise Failure(f"failed to open {block.path}: an .iso disk can't be writable")
            self._opened(block.role, _open_block(block), readonly=block.readonly)
            self.config.blocks.append(block)

    def _boot_files(self) -> str:
        o = self.options
        if o.kernel is None:
            raise Failure("must specify a kernel: microVM requires Linux direct boot")
        self.tools.pauses.at("before_open:kernel")
        self._open("kernel", o.kernel)
        if o.initrd is not None:
            self.tools.pauses.at("before_open:initrd")
            self._open("initrd", o.initrd)
        limit = cmdline.OLD_LIMIT if self.tools.knobs.flag("old_limit") else cmdline.LIMIT
        irq = 5 if (o.hypervisor or "").startswith("whp") else host.NET_IRQ
        text = cmdline.discover(cmdline.build(o), o, self.config.shares, net_irq=irq)
        cmdline.check_length(text, limit)
        self._check_kernel(o.kernel)
        return text

    def _open(self, role: str, path: str) -> None:
        try:
            fd = host.open_file(path)
        except OSError as error:
            raise Failure(f"failed to open {role} {path}: {error.strerror}") from error
        self._opened(role, fd, readonly=True)

    def _opened(self, role: str, fd: int, *, readonly: bool) -> None:
        self.opened[role] = fd
        found = os.fstat(fd)
        self.tools.evidence.event(
            "opened", role=role, device=found.st_dev, inode=found.st_ino, size=found.st_size, readonly=readonly
        )

    def _check_kernel(self, path: str) -> None:
        try:
            header = system.read_at(self.opened["kernel"], 20, 0)
        except OSError as error:
            raise Failure(f"failed to read kernel {path}: {error.strerror}") from error
        if not header.startswith(ELF_START) or header[18:20] != X86_64:
            raise Failure(f"failed to load kernel {path}: not an uncompressed x86-64 ELF64 image")

    def _describe(self) -> None:
        o, config = self.options, self.config
        config.kernel, config.initrd = o.kernel or "", o.initrd
        config.identity = o.microvm_workload_identity
        config.lifecycle = o.microvm_lifecycle
        config.auth_timeout_ms = o.microvm_control_auth_timeout_ms
        config.aggregate = o.mount_aggregate is not None
        config.owner = o.mount_owner or "vmm"
        config.processors = o.processors
        config.memory = o.memory.size
        if o.cpu_profile == "auto":
            self.tools.log.line("WARN", "openvmm_core", "NVX-CPU-PROFILE-FALLBACK: no pinned profile serves this host")
        self.tools.log.info(TARGET, "starting microVM", processors=o.processors, memory=o.memory.size)

    def _note_manifest(self, kernel: str) -> None:
        if not self.tools.evidence:
            return
        from fake_openvmm import manifest  # noqa: PLC0415 - for the evidence only, and after the endpoint exists

        found = manifest.of_kernel(kernel)
        if found is not None:
            self.tools.evidence.event("manifest", **found)

    def close(self) -> None:
        """Close everything; remove the sockets that still are ours."""
        knobs = self.tools.knobs
        if self.control is not None:
            if knobs.flag("leave_socket"):
                self.control.socket.close()
            else:
                removed = self.control.remove(whatever=knobs.flag("unlink_any_socket"))
                self.tools.evidence.event("removed", path=self.control.path, removed=removed)
        if self.boot is not None:
            self.boot.close()
        for fd in self.opened.values():
            os.close(fd)
        self.opened.clear()


def _listen(tools: Tools) -> Callable[[Server], None]:
    server = tools.knobs.text("wrong_server")
    if not server:
        return host.listen_here
    from fake_openvmm import tricks  # noqa: PLC0415 - for this knob only

    return lambda made: tools.evidence.event("server", pid=tricks.listen_elsewhere(made, stay=server == "alive"))


def _linger(knobs: Knobs) -> None:
    import _thread  # noqa: PLC0415 - built in

    gate = _thread.allocate_lock()
    gate.acquire()
    if knobs.flag("never_exit"):
        gate.acquire()
    if knobs.integer("slow_exit_ms", 0):
        gate.acquire(timeout=knobs.integer("slow_exit_ms", 0) / 1000)


def _open_block(block: Block) -> int:
    from fake_openvmm import blocks  # noqa: PLC0415 - after the endpoint exists

    return blocks.open_block(block)


def _guest(config: MachineConfig, opened: dict[str, int], tools: Tools) -> int:
    if tools.machine is not None:
        from fake_openvmm import qemu  # noqa: PLC0415 - at the harness's request only

        return qemu.run(config, opened, tools, tools.machine)
    from fake_openvmm import guest  # noqa: PLC0415 - after the endpoint exists

    return guest.run(config, opened, tools)
