"""QEMU as a child of the VMM: what it is told, what it is given, and how it ends.

It gets descriptors and no paths: the disks, the kernel and the initramfs that the front has opened, one end of four
socket pairs, and the log as its standard output and error, so that the log's claim is held as long as it runs. The
holder that becomes it ties its life to the thread that starts it; see `agent/holder.c`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

assert sys.platform != "win32"

from fake_openvmm import system
from fake_openvmm.blocks import LARGE_BLOCK, SMALL_BLOCK
from fake_openvmm.machine import Failure
from fake_openvmm.qemu.archive import appended
from fake_openvmm.qemu.settings import guest_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.knobs import Knobs
    from fake_openvmm.machine import Block, MachineConfig
    from fake_openvmm.qemu.settings import Settings

BUSES = {"distro": 4, "runtime": 5, "custom": 6, "scratch": 7}
CONSOLE_BUS = 1
"""Bus 0 of the microvm machine never interrupts."""
FIRST_BUS = 0xFEB00000
BUS_SIZE = 0x200
CHANNELS = ("control", "report", "text", "status")
MIB = 1 << 20
EMULATED = "qemu64"
"""The processor that is emulated: with all that QEMU knows a boot takes a seventh longer."""
SHIFT = 3
"""The virtual clock counts instructions, 2**3 ns each: a machine that gets little time has slow time, not wrong time.

Without that the kernel calibrates its clocks against the host's, which fails where others load the host.
"""


class Qemu:
    """One QEMU.

    Attributes:
        pid: its number.
        channels: this end of its sockets, by `CHANNELS`.

    Raises:
        Failure: it can't be started.
    """

    __slots__ = ("_lifeline", "_pin", "channels", "pid", "status")

    def __init__(self, settings: Settings, config: MachineConfig, opened: dict[str, int], knobs: Knobs) -> None:
        self.channels: dict[str, socket.socket] = {}
        self.status: int | None = None
        theirs: dict[str, socket.socket] = {}
        initrd = _initrd(config, opened, knobs)
        reader, self._lifeline = os.pipe()
        try:
            for name in CHANNELS:
                self.channels[name], theirs[name] = socket.socketpair()
                self.channels[name].setblocking(False)
            kept = {name: opened[name] for name in (*(block.role for block in config.blocks), "kernel")}
            kept |= {"initrd": initrd} | {name: end.fileno() for name, end in theirs.items()}
            argv = [settings.holder, str(reader), settings.qemu, *arguments(settings, config, kept, knobs)]
            self.pid = _spawn(argv, [reader, *kept.values()])
        except OSError as error:
            self._release()
            raise Failure(f"failed to start {settings.qemu}: {error.strerror}") from error
        finally:
            for end in theirs.values():
                end.close()
            os.close(reader)
            os.close(initrd)
        self._pin = os.pidfd_open(self.pid)

    def fileno(self) -> int:
        """A descriptor that can be read once it has ended."""
        return self._pin

    def reap(self) -> int:
        """Take its status, negative for a signal, once it has ended."""
        if self.status is None:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED)
            self.status = 0
            if info is not None:
                self.status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        return self.status

    def end(self) -> int:
        """End it, whatever it does, and reap it; give its status."""
        if self.status is None:
            signal.pidfd_send_signal(self._pin, signal.SIGKILL)
        return self.reap()

    def close(self) -> None:
        """End it and let go of everything."""
        self.end()
        os.close(self._pin)
        self._release()

    def _release(self) -> None:
        for end in self.channels.values():
            end.close()
        os.close(self._lifeline)


def arguments(settings: Settings, config: MachineConfig, kept: dict[str, int], knobs: Knobs) -> list[str]:
    """Return QEMU's arguments.

    Args:
        settings: the side file's.
        config: the machine.
        kept: descriptors by what they are: blocks by role, `kernel`, `initrd`, and the channels.
        knobs: `blockSize` is looked at.
    """
    fast = settings.accelerator == "kvm"
    machine = f"microvm,accel={settings.accelerator},auto-kernel-cmdline=off"
    words = ["-M", machine, "-cpu", "host" if fast else EMULATED, "-smp", str(config.processors)]
    words += [] if fast else ["-icount", f"shift={SHIFT}"]
    words += ["-m", f"{-(-config.memory // MIB)}", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    words += ["-kernel", _path(kept["kernel"]), "-initrd", _path(kept["initrd"]), "-append", config.cmdline]
    for name in CHANNELS:
        words += ["-chardev", f"socket,id={name},fd={kept[name]}"]
    words += ["-device", f"virtio-serial-device,bus=virtio-mmio-bus.{CONSOLE_BUS}"]
    for number, name in enumerate(("control", "report"), 1):
        words += ["-device", f"virtserialport,nr={number},chardev={name},name=nvx.{name}"]
    words += ["-device", "isa-debugcon,iobase=0xe9,chardev=text", "-device", "isa-debugcon,iobase=0x604,chardev=status"]
    for block in config.blocks:
        words += _disk(block, kept[block.role], knobs)
    return words


def _disk(block: Block, fd: int, knobs: Knobs) -> list[str]:
    size = logical_block(block, fd, knobs)
    mode = "on" if block.readonly else "off"
    drive = f"if=none,id={block.role},format=raw,read-only={mode},file.locking=off,file.filename={_path(fd)}"
    device = f"virtio-blk-device,drive={block.role},bus=virtio-mmio-bus.{BUSES[block.role]}"
    return ["-drive", drive, "-device", f"{device},logical_block_size={size},physical_block_size={size}"]


def logical_block(block: Block, fd: int, knobs: Knobs) -> int:
    """The logical block size that a disk shows: where its GPT is, or as the knob says (contract openvmm 6, 10.3)."""
    if not block.readonly:
        return SMALL_BLOCK
    if system.read_at(fd, 8, LARGE_BLOCK) == b"EFI PART" and system.read_at(fd, 8, SMALL_BLOCK) != b"EFI PART":
        return LARGE_BLOCK
    return knobs.integer("blockSize", SMALL_BLOCK)


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _initrd(config: MachineConfig, opened: dict[str, int], knobs: Knobs) -> int:
    if "initrd" not in opened:
        raise Failure("a real guest needs an initramfs")
    lines = [f"block 0x{block.base:x} 0x{FIRST_BUS + BUSES[block.role] * BUS_SIZE:x}" for block in config.blocks]
    return appended(opened["initrd"], [*lines, *guest_lines(knobs)])


def _spawn(argv: list[str], kept: list[int]) -> int:
    same = [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in kept]
    environment = {name: value for name in ("LD_LIBRARY_PATH", "TMPDIR") if (value := os.environ.get(name))}
    return os.posix_spawn(
        argv[0],
        argv,
        environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *same],
        setsigmask=[],
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )
