"""A small host of its own for the tests: it packs and unpacks by hand and shares nothing with the fake."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import NamedTuple

RECORD = struct.Struct("<4sHBB16sQQI")
FRAME = struct.Struct("<4sBBHQiI")
PING, EXEC, STOP, CANCEL, FEATURES, MAPS = 1, 2, 3, 4, 5, 6
READY, STDOUT, STDERR, EXIT, STOPPED, ERROR = 0x81, 0x82, 0x83, 0x84, 0x85, 0xFF
CAPABILITY = bytes(range(100, 132))
WAITING, ATTACHED, DATA = 6, 7, 5


class Record(NamedTuple):
    type: int
    instance: bytes
    epoch: int
    sequence: int
    payload: bytes


class Frame(NamedTuple):
    kind: int
    request: int
    status: int
    payload: bytes


class Ended(NamedTuple):
    stdout: bytes
    stderr: bytes
    kind: int
    status: int
    category: str


def items(*texts: str | bytes) -> bytes:
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(struct.pack("<I", len(item)) + item for item in raw)


def exec_payload(
    *argv: str,
    timeout: int = 0,
    cwd: str | None = None,
    environment: list[str] | None = None,
    inherit: bool = False,
) -> bytes:
    if cwd is None and environment is None:
        return struct.pack("<IHH", timeout, len(argv), 0) + items(*argv)
    flags = (cwd is not None) | (environment is not None) << 1 | inherit << 2
    where = (cwd or "").encode()
    head = struct.pack("<IHHHHI", timeout, len(argv), 1, flags, len(environment or []), len(where))
    return head + items(*argv) + where + items(*(environment or []))


def maps_payload(first: int, *entries: tuple[str, str, bool]) -> bytes:
    packed = b"".join(
        struct.pack("<HHH", read_only, len(source), len(target)) + source.encode() + target.encode()
        for source, target, read_only in entries
    )
    return struct.pack("<II", first, len(entries)) + packed


class Host:
    """One connection."""

    def __init__(self, path: str, *, timeout: float = 60.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.instance = bytes(16)
        self.epoch = 0
        self.sequence = 0
        self.received = 0
        self._request = 100

    def close(self) -> None:
        self.socket.close()

    def raw(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError(data)
            data += part
        return data

    def record(self) -> Record:
        magic, version, type_, flags, instance, epoch, sequence, length = RECORD.unpack(self.raw(RECORD.size))
        assert (magic, version, flags) == (b"NVXS", 1, 0)
        return Record(type_, instance, epoch, sequence, self.raw(length))

    def show(self, capability: bytes = CAPABILITY) -> None:
        self.socket.sendall(RECORD.pack(b"NVXS", 1, 2, 0, bytes(16), 0, 0, len(capability)) + capability)

    def attach(self, *, waits: bool = False) -> Host:
        self.show()
        record = self.record()
        if waits:
            assert (record.type, record.sequence) == (WAITING, 0)
            record = self.record()
        assert (record.type, record.sequence) == (ATTACHED, int(waits))
        self.instance, self.epoch, self.received = record.instance, record.epoch, record.sequence + 1
        return self

    def data(self, payload: bytes) -> None:
        head = RECORD.pack(b"NVXS", 1, DATA, 0, self.instance, self.epoch, self.sequence, len(payload))
        self.sequence += 1
        self.socket.sendall(head + payload)

    def receive(self) -> bytes:
        record = self.record()
        assert (record.type, record.instance, record.epoch) == (DATA, self.instance, self.epoch)
        assert record.sequence == self.received
        self.received += 1
        return record.payload

    def ask(self, kind: int, payload: bytes = b"", *, request: int | None = None) -> int:
        self._request += 1
        number = self._request if request is None else request
        self.data(FRAME.pack(b"NVXC", 1, kind, 0, number, 0, len(payload)) + payload)
        return number

    def frame(self) -> Frame:
        payload = self.receive()
        magic, version, kind, flags, request, status, length = FRAME.unpack_from(payload)
        assert (magic, version, flags, length) == (b"NVXC", 1, 0, len(payload) - FRAME.size)
        return Frame(kind, request, status, payload[FRAME.size :])

    def call(self, kind: int, payload: bytes = b"") -> tuple[int, int, bytes]:
        number = self.ask(kind, payload)
        frame = self.frame()
        assert frame.request == number
        return frame.kind, frame.status, frame.payload

    def finish(self, number: int) -> Ended:
        said = {STDOUT: b"", STDERR: b""}
        while True:
            frame = self.frame()
            assert frame.request == number
            if frame.kind not in said:
                return Ended(said[STDOUT], said[STDERR], frame.kind, frame.status, frame.payload.decode())
            assert 0 < len(frame.payload) <= 32_768
            said[frame.kind] += frame.payload

    def run(self, *argv: str, **options: object) -> Ended:
        return self.finish(self.ask(EXEC, exec_payload(*argv, **options)))  # type: ignore[arg-type]

    def at_end(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return self.socket.recv(1) == b""
        return True
