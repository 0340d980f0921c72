"""Front and machine together: a direct guest from launch to a published report, byte for byte over its socket."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.support.openvmm_channel import Channel
from tests.support.openvmm_stand import CAPABILITY, Stand, made

RECORD = struct.Struct("<4sHBB16sQQI")
FRAME = struct.Struct("<4sBBHQiI")
DIRECT = "~microvm-sandbox-block cmdline=hostname=box"
READY, WAIT, DATA = 7, 6, 5


@pytest.fixture
def whole() -> Iterator[Stand]:
    yield from made(still_guest=False)


class Client:
    """A host that speaks both protocols by hand."""

    def __init__(self, stand: Stand) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        path = str(stand.path / "control.sock")
        while True:
            try:
                self.socket.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                assert stand.process is not None
                assert stand.process.poll() is None, stand.log()
                os.sched_yield()
        self.sequence = 0
        self.instance, self.epoch = bytes(16), 0

    def attach(self, capability: bytes = CAPABILITY) -> int:
        self.socket.sendall(RECORD.pack(b"NVXS", 1, 2, 0, bytes(16), 0, 0, 32) + capability)
        while True:
            type_, _ = self.receive()
            if type_ != WAIT:
                return type_

    def receive(self) -> tuple[int, bytes]:
        header = self.exactly(RECORD.size)
        if not header:
            return 0, b""
        _, _, type_, _, self.instance, self.epoch, _, length = RECORD.unpack(header)
        return type_, self.exactly(length)

    def exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size and (part := self.socket.recv(size - len(found))):
            found += part
        return found

    def ask(self, kind: int, payload: bytes = b"") -> tuple[int, int, bytes]:
        frame = FRAME.pack(b"NVXC", 1, kind, 0, 99, 0, len(payload)) + payload
        head = RECORD.pack(b"NVXS", 1, DATA, 0, self.instance, self.epoch, self.sequence, len(frame))
        self.socket.sendall(head + frame)
        self.sequence += 1
        type_, answer = self.receive()
        assert type_ == DATA
        _, _, answered, _, request, status, _ = FRAME.unpack(answer[: FRAME.size])
        assert request == 99
        return answered, status, answer[FRAME.size :]


@pytest.fixture
def connect(whole: Stand) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def connected() -> Client:
        clients.append(Client(whole))
        return clients[-1]

    yield connected
    for client in clients:
        client.socket.close()


def test_a_managed_run_from_launch_to_report(whole: Stand, connect: Callable[[], Client]) -> None:
    process = whole.start(whole.argv(DIRECT), side={})
    client = connect()
    assert client.attach() == READY
    assert client.epoch == 1
    assert client.ask(1) == (0x81, 0, b"")
    assert client.ask(5) == (0x81, 0, struct.pack("<I", 0x7D))
    assert client.ask(3) == (0x85, 0, b"")
    assert client.exactly(1) == b""
    outcome = whole.finish()
    assert outcome.status == 0, outcome.log
    assert outcome.category == "success"
    assert not outcome.socket_left
    assert whole.evidence("start")[0]["pid"] == process.pid
    assert CAPABILITY.hex() not in str(whole.evidence())


def test_a_wrong_capability_is_closed_without_a_word(whole: Stand, connect: Callable[[], Client]) -> None:
    whole.start(whole.argv(DIRECT))
    client = connect()
    assert client.attach(bytes([9]) * 32) == 0
    other = connect()
    assert other.attach() == READY
    assert other.epoch == 1
    assert other.ask(3) == (0x85, 0, b"")
    assert whole.finish().status == 0


def test_a_boot_that_the_guest_refuses(whole: Stand) -> None:
    whole.start(whole.argv("cmdline='nvx_sandbox=1 nvx_layer=nonsense'"))
    outcome = whole.finish()
    assert outcome.status == 125
    assert outcome.report
    assert outcome.report["outcome"] == {"operation": "managed", "category": "guest-exit", "status_code": 125}
    assert not outcome.socket_left


def test_the_machine_pauses_where_the_harness_says(
    whole: Stand, channel: Channel, connect: Callable[[], Client]
) -> None:
    side = {"channel": channel.path, "pauses": ["before_ready"]}
    whole.start(whole.argv(DIRECT), side=side)
    program = channel.accept()
    client = connect()
    client.socket.sendall(RECORD.pack(b"NVXS", 1, 2, 0, bytes(16), 0, 0, 32) + CAPABILITY)
    program.paused("before_ready")
    program.send(resume="before_ready")
    type_ = WAIT
    while type_ == WAIT:
        type_, _ = client.receive()
    assert type_ == READY
    assert client.ask(3) == (0x85, 0, b"")
    assert whole.finish().status == 0


def test_the_guest_ends_with_the_program(whole: Stand, connect: Callable[[], Client]) -> None:
    process = whole.start(whole.argv(DIRECT))
    client = connect()
    assert client.attach() == READY
    payload = struct.pack("<IHH", 0, 3, 0)
    for word in (b"/bin/sh", b"-c", b"echo $$; exec sleep 1000"):
        payload += struct.pack("<I", len(word)) + word
    kind, _, shown = client.ask(2, payload)
    assert kind == 0x82
    pidfd = os.pidfd_open(int(shown))
    process.kill()
    assert whole.finish().status == -9
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
