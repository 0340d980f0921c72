"""Images and machines for the tests of the fake's machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fake_openvmm import guest
from fake_openvmm.blocks import open_block
from fake_openvmm.knobs import Knobs
from fake_openvmm.machine import Block, Evidence, Log, MachineConfig, Tools
from fake_openvmm.pauses import Pauses
from harness.images import copy_scratch
from tests.fake.machine.client import CAPABILITY, Host

if TYPE_CHECKING:
    from fake_openvmm.machine import Json

DISTRO = "11111111-2222-3333-4444-555555555555"
DISK = "aabbccdd-1122-3344-5566-778899aabbcc"
BASES = {"distro": 0xD0003000, "runtime": 0xD0004000, "custom": 0xD0005000, "scratch": 0xD0006000}
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def erofs(identity: str = DISTRO, *, bits: int = 12, magic: int = 0xE0F5E1E2) -> bytes:
    """Just enough of an EROFS: a superblock without a checksum."""
    image = bytearray(8192)
    struct.pack_into("<IIIB", image, 1024, magic, 0, 0, bits)
    image[1024 + 48 : 1024 + 64] = uuid.UUID(identity).bytes
    return bytes(image)


def gpt(content: bytes, guid: str = DISK, *, block: int = 512, skip: int = 0, used: bool = True) -> bytes:
    """A GPT disk with `content` in its first used entry, which is the one after `skip` unused ones."""
    first = 64
    blocks = first + -(-len(content) // block) + 64
    image = bytearray(blocks * block)
    image[first * block : first * block + len(content)] = content
    entries = bytearray(128 * 128)
    kind, own = uuid.UUID(int=1).bytes_le, uuid.UUID(int=2).bytes_le
    last = first + -(-len(content) // block) - 1
    if used:
        struct.pack_into("<16s16sQQQ", entries, 128 * skip, kind, own, first, last, 0)
    image[2 * block : 2 * block + len(entries)] = entries
    header = bytearray(92)
    struct.pack_into("<8sIIIIQQQQ", header, 0, b"EFI PART", 0x10000, 92, 0, 0, 1, blocks - 1, first, blocks - 34)
    header[56:72] = uuid.UUID(guid).bytes_le
    struct.pack_into("<QIII", header, 72, 2, 128, 128, zlib.crc32(bytes(entries)))
    struct.pack_into("<I", header, 16, zlib.crc32(bytes(header)))
    image[block : block + 92] = header
    return bytes(image)


class Witness(Evidence):
    """Keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, object]] = []
        self._counts: Counter[str] = Counter()
        self._news = threading.Condition()

    def __bool__(self) -> bool:
        return True

    def event(self, kind: str, **fields: object) -> None:
        with self._news:
            self.events.append({"kind": kind, **fields})
            self._counts[kind] += 1
            self._news.notify_all()

    def of(self, kind: str) -> list[dict[str, object]]:
        return [event for event in list(self.events) if event["kind"] == kind]

    def wait_for(self, kind: str, count: int = 1) -> dict[str, object]:
        with self._news:
            assert self._news.wait_for(lambda: self._counts[kind] >= count, 60), f"no {kind}"
        return self.of(kind)[count - 1]


HOST_TOKENS = "nvx_workload_uid=65534 nvx_workload_gid=65534 nvx_lifecycle=managed nvx_control_tty=hvc2"
RAM_LAYERED = f"nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs nvx_overlay_upper=ramfs {HOST_TOKENS}"


class Running:
    """A machine in a thread of its own, and the way to its endpoint."""

    def __init__(self, config: MachineConfig, opened: dict[str, int], tools: Tools, witness: Witness) -> None:
        self.witness = witness
        self.directory = tempfile.mkdtemp(prefix="nvx", dir="/tmp")
        self.path = os.path.join(self.directory, "c.sock")
        config.listener = socket.socket(socket.AF_UNIX)
        config.listener.bind(self.path)
        config.listener.listen(8)
        config.listener.setblocking(False)
        config.capability = CAPABILITY
        self._listener = config.listener
        self.status: int | None = None
        self.failure: Exception | None = None
        self._hosts: list[Host] = []
        self._machine: guest.Machine | None = None
        self._made = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(config, opened, tools), daemon=True)
        self._thread.start()

    def _run(self, config: MachineConfig, opened: dict[str, int], tools: Tools) -> None:
        try:
            machine = self._machine = guest.Machine(config, opened, tools)
            self._made.set()
            try:
                self.status = machine.run()
            finally:
                machine.close()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failure = error
        finally:
            self._made.set()

    def host(self, **options: float) -> Host:
        made = Host(self.path, **options)
        self._hosts.append(made)
        return made

    def let_go(self, gate: str) -> None:
        """End the delay of `boot` or `attach`: a test that waits out a short one needs a machine that isn't busy."""
        assert self._made.wait(60)
        assert self._machine is not None
        getattr(self._machine, f"_{gate}_gate")._opens_at = 0.0
        self._machine._host.wake.ring()

    def time_is_up(self) -> None:
        """Have the time of the workload that runs end now."""
        assert self._machine is not None
        execution = self._machine._vm.execution
        assert execution is not None
        assert execution.deadline is not None
        execution.deadline = 0.0
        self._machine._host.wake.ring()

    def wait(self) -> int | None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the machine still runs"
        if self.failure is not None:
            raise self.failure
        return self.status

    def close(self) -> None:
        assert self._made.wait(60)
        if self._thread.is_alive() and self._machine is not None:
            self._machine._vm.power_off(0)
            with contextlib.suppress(OSError):
                self._machine._host.wake.ring()
        for host in self._hosts:
            host.close()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listener.close()
        shutil.rmtree(self.directory)


class Machines:
    """Builds configurations, opens their blocks, and closes everything at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.witness = Witness()
        self._running: list[Running] = []
        self._fds: list[int] = []

    def write(self, name: str, content: bytes) -> str:
        path = self.root / name
        path.write_bytes(content)
        return str(path)

    def ext4(self, name: str = "scratch.img", *options: str, size: int = 8 << 20) -> str:
        path = self.root / name
        if not options and size == 8 << 20:
            path.unlink(missing_ok=True)
            return copy_scratch(str(path))
        program = shutil.which("mkfs.ext4", path=PATH)
        if program is None:
            pytest.skip("mkfs.ext4 is missing: install the Debian package e2fsprogs")
        with path.open("wb") as file:
            file.truncate(size)
        subprocess.run([program, "-q", "-F", *options, path], check=True)
        return str(path)

    def block(self, role: str, path: str) -> Block:
        return Block(role, path, readonly=role != "scratch", base=BASES[role])

    def config(self, cmdline: str, *blocks: Block, initrd: bytes = b"initrd\n") -> MachineConfig:
        config = MachineConfig()
        config.blocks = list(blocks)
        config.cmdline = cmdline
        config.identity = (65534, 65534)
        config.lifecycle = "managed"
        config.initrd = self.write("initrd", initrd)
        return config

    def opened(self, config: MachineConfig) -> dict[str, int]:
        fds = {block.role: open_block(block) for block in config.blocks}
        if config.initrd:
            fds["initrd"] = os.open(config.initrd, os.O_RDONLY | os.O_CLOEXEC)
        self._fds += fds.values()
        return fds

    def tools(self, **knobs: Json) -> Tools:
        return Tools(self.witness, Knobs(knobs), Pauses(), Log())

    def start(self, config: MachineConfig, **knobs: Json) -> Running:
        made = Running(config, self.opened(config), self.tools(**knobs), self.witness)
        self._running.append(made)
        return made

    def layered(self, **knobs: Json) -> Running:
        """A layered guest with an upper in memory."""
        distro = self.block("distro", self.write("distro.erofs", erofs()))
        return self.start(self.config(RAM_LAYERED, distro), **knobs)

    def direct(self, tokens: str = "", **knobs: Json) -> Running:
        """A direct guest."""
        return self.start(self.config(f"hostname=box {tokens} {HOST_TOKENS}"), **knobs)

    def close(self) -> None:
        for running in self._running:
            running.close()
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_erofs() -> Callable[..., bytes]:
    return erofs


@pytest.fixture
def make_gpt() -> Callable[..., bytes]:
    return gpt
