"""A client of the control session written from the contract alone, with its own packing: it shares no code.

What it packs and expects is the text of the contract, sections 1.7, 3 and 4. Only the standard library is imported.
"""

from __future__ import annotations

import json
import lzma
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

RECORD = struct.Struct("<4sHBB16sQQI")
FRAME = struct.Struct("<4sBBHQiI")
GUEST_ATTACH, HOST_ATTACH, RESET, ACK, DATA, WAIT, READY, ERROR, CREDIT = range(1, 10)
PING, EXEC, STOP, CANCEL, FEATURES, MAPS = range(1, 7)
R_READY, R_STDOUT, R_STDERR, R_EXIT, R_STOPPED, R_ERROR = 0x81, 0x82, 0x83, 0x84, 0x85, 0xFF

CAPABILITY = bytes(range(1, 33))
UUID = "11111111-1111-1111-1111-111111111111"
CALLER = (
    f"nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs:{UUID} nvx_scratch=0xd0006000,ext4 "
    "nvx_entrypoint=/bin/sh nvx_hostname=nvx-sandbox"
)
PATIENCE = 60.0
IMAGES = Path(__file__).resolve().parents[2] / "harness" / "images"
PIECE = 1 << 16


def record(kind: int, payload: bytes = b"", instance: bytes = bytes(16), epoch: int = 0, sequence: int = 0) -> bytes:
    return RECORD.pack(b"NVXS", 1, kind, 0, instance, epoch, sequence, len(payload)) + payload


def frame(kind: int, payload: bytes = b"", request: int = 1, status: int = 0) -> bytes:
    return FRAME.pack(b"NVXC", 1, kind, 0, request, status, len(payload)) + payload


def items(texts: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def command(*arguments: bytes, timeout_ms: int = 0) -> bytes:
    return struct.pack("<IHH", timeout_ms, len(arguments), 0) + items(arguments)


def extended(flags: int, *arguments: bytes, cwd: bytes = b"", environment: tuple[bytes, ...] = ()) -> bytes:
    head = struct.pack("<IHHHHI", 0, len(arguments), 1, flags, len(environment), len(cwd))
    return head + items(arguments) + cwd + items(environment)


def message(**fields: object) -> bytes:
    """One message of the test adapter's stream (contract 10, item 7)."""
    body = json.dumps(fields).encode()
    return struct.pack("<I", len(body)) + body


class Ended(Exception):  # noqa: N818 - it did
    """The broker closed the connection."""


class Session:
    """One host connection: sends what it is told, and takes records one by one."""

    def __init__(self, path: Path, alive: Callable[[], bool]) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        while True:
            try:
                self.sock.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                assert alive(), "the stand-in ended"
                select.select([], [], [], 0.025)  # nothing announces that a socket is served
            else:
                break
        self.instance, self.epoch, self.sent, self.expected = bytes(16), 0, 0, 0

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self.sock.recv(size - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                if data:
                    raise AssertionError(f"cut within a record: {data!r}")
                raise Ended
            data += piece
        return data

    def take(self) -> tuple[int, bytes, int, bytes]:
        """Take one record: type, identity, sequence, payload; its header is strictly what the contract says."""
        magic, version, kind, flags, instance, epoch, sequence, length = RECORD.unpack(self.exactly(RECORD.size))
        assert (magic, version, flags) == (b"NVXS", 1, 0)
        assert kind in {WAIT, READY, DATA}, f"the broker sent type {kind}"
        assert (1 <= length <= 65_536) if kind == DATA else length == 0
        return kind, instance + struct.pack("<Q", epoch), sequence, self.exactly(length) if length else b""

    def attach(self, capability: bytes = CAPABILITY) -> None:
        """Attach; the counter of WAIT and READY starts at 0 and has no gap."""
        self.sock.sendall(record(HOST_ATTACH, capability))
        number = 0
        while True:
            kind, identity, sequence, _ = self.take()
            assert sequence == number
            number += 1
            if kind == READY:
                break
            assert kind == WAIT
        self.instance, self.epoch = identity[:16], int.from_bytes(identity[16:], "little")
        assert any(self.instance)
        assert self.epoch > 0
        self.expected = number

    def say(self, payload: bytes) -> None:
        self.sock.sendall(record(DATA, payload, self.instance, self.epoch, self.sent))
        self.sent += 1

    def hear(self) -> bytes:
        """Take the next DATA and compare its whole header byte for byte."""
        kind, identity, sequence, payload = self.take()
        assert (kind, identity, sequence) == (DATA, self.instance + struct.pack("<Q", self.epoch), self.expected)
        self.expected += 1
        return payload

    def ask(self, payload: bytes, *answers: bytes) -> None:
        """Send one request and compare its answers byte for byte."""
        self.say(payload)
        for answer in answers:
            heard = self.hear()
            assert heard == answer, f"{heard!r} instead of {answer!r}"

    def hear_message(self) -> dict[str, object]:
        """Take records until they hold one message of the test adapter, and nothing more."""
        heard = b""
        while len(heard) < 4 or len(heard) < 4 + int.from_bytes(heard[:4], "little"):
            heard += self.hear()
        size = 4 + int.from_bytes(heard[:4], "little")
        assert len(heard) == size
        answer: dict[str, object] = json.loads(heard[4:])
        return answer

    def ended(self) -> bool:
        """Tell whether the next thing is the end of the stream."""
        try:
            self.take()
        except Ended:
            return True
        return False

    def close(self) -> None:
        self.sock.close()


class Machine:
    """One launch of the stand-in, as contract 1.7 and 3.1 say, in a private directory."""

    def __init__(
        self, root: Path, *, capability: bytes = CAPABILITY, writer_open: bool = False, adapter: bool = False
    ) -> None:
        self.root = root
        self.state = root / "box"
        self.state.mkdir(mode=0o700)
        self.endpoint, self.report, self.log = (
            self.state / name for name in ("control.sock", "outcome.json", "openvmm.log")
        )
        make_files(root, b"nvx-fake-initramfs adapter\n" if adapter else b"an initramfs\n")
        self.sessions: list[Session] = []
        self.writer: int | None = None
        reader, writer = os.pipe()
        os.write(writer, capability)
        if writer_open:
            self.writer = writer
        else:
            os.close(writer)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fake_openvmm", *self.arguments()],
                stdin=reader,
                stdout=log,
                stderr=log,
                cwd=self.state,
                start_new_session=True,
            )
        os.close(reader)

    def arguments(self) -> list[str]:
        root = self.root
        return [
            *("--machine", "microvm"),
            *("--microvm-sandbox-block", f"distro:file:{root}/distro.erofs,ro"),
            *("--microvm-sandbox-block", f"scratch:file:{root}/scratch.ext4"),
            *("--microvm-workload-identity", "65534:65534"),
            *("--microvm-lifecycle", "managed"),
            "--single-process",
            *("--hypervisor", "kvm"),
            *("--memory", "256M"),
            *("--kernel", f"{root}/vmlinux"),
            *("--initrd", f"{root}/initramfs.cpio.gz"),
            *("--cmdline", CALLER),
            *("--virtio-console", "none"),
            *("--microvm-control-console", f"listen={self.endpoint}"),
            "--microvm-control-auth-stdin",
            *("--microvm-report", str(self.report)),
        ]

    def connect(self) -> Session:
        self.sessions.append(Session(self.endpoint, lambda: self.process.poll() is None))
        return self.sessions[-1]

    def attached(self) -> Session:
        session = self.connect()
        session.attach()
        return session

    def exit_status(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        for session in self.sessions:
            session.close()
        if self.writer is not None:
            os.close(self.writer)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def make_files(root: Path, initramfs: bytes) -> None:
    """Place the committed distro and scratch, a kernel that is an ELF64 x86-64 header, and an initramfs."""
    (root / "distro.erofs").write_bytes((IMAGES / "distro.erofs").read_bytes())
    with (root / "scratch.ext4").open("wb") as file:
        scratch = lzma.decompress((IMAGES / "scratch.ext4.xz").read_bytes())
        for start in range(0, len(scratch), PIECE):
            piece = scratch[start : start + PIECE]
            if piece.strip(b"\0"):
                file.seek(start)
                file.write(piece)
        file.truncate(len(scratch))
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, 0, 0, 64, 56, 0, 0, 0, 0)
    (root / "vmlinux").write_bytes(header)
    (root / "initramfs.cpio.gz").write_bytes(initramfs)
