"""A broker with both of its ends in a test's hand."""

from __future__ import annotations

import struct

from fake_openvmm import broker as b
from fake_openvmm import nvxs

INSTANCE = bytes(range(1, 17))
CAPABILITY = bytes(range(32))
WINDOW = 1 << 20
Seen = tuple[str, int, int, bytes]


def record(name: str, payload: bytes = b"", *, epoch: int = 1, sequence: int = 0, instance: bytes = INSTANCE) -> bytes:
    type_ = nvxs.NAMES.index(name)
    if name.endswith("ATTACH"):
        instance, epoch, sequence = bytes(16), 0, 0
    return struct.pack("<4sHBB16sQQI", b"NVXS", 1, type_, 0, instance, epoch, sequence, len(payload)) + payload


def word(value: int) -> bytes:
    return struct.pack("<I", value)


def seen(raw: bytes) -> Seen:
    _, _, type_, _, instance, epoch, sequence, length = struct.unpack_from("<4sHBB16sQQI", raw)
    assert instance == INSTANCE
    assert len(raw) == 44 + length
    return nvxs.NAMES[type_], epoch, sequence, raw[44:]


class Rig:
    """A broker with both ends in hand."""

    def __init__(self, *, start: bool = True) -> None:
        self.points: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.broker = b.Broker(
            INSTANCE,
            CAPABILITY,
            tell=lambda kind, detail: self.told.append((kind, detail)),
            before=self.points.append,
        )
        if start:
            self.broker.start_device()

    def guest(self, name: str, payload: bytes = b"", *, epoch: int = 1, sequence: int = 0) -> None:
        self.broker.guest_bytes(record(name, payload, epoch=epoch, sequence=sequence))

    def host(self, name: str, payload: bytes = b"", *, epoch: int = 1, sequence: int = 0) -> None:
        self.broker.host_bytes(record(name, payload, epoch=epoch, sequence=sequence))

    def at_guest(self) -> list[Seen]:
        found: list[Seen] = []
        while (raw := self.broker.to_guest.take()) is not None:
            found.append(seen(raw))
            self.broker.guest_written()
        return found

    def at_host(self) -> list[Seen]:
        found: list[Seen] = []
        while (raw := self.broker.to_host.take()) is not None:
            found.append(seen(raw))
            self.broker.host_written()
        return found

    def acknowledge(self, epoch: int = 1, window: int = WINDOW) -> None:
        if self.broker.state == b.AWAIT_GUEST_ATTACH:
            self.guest("GUEST_ATTACH")
        assert self.at_guest() == [("RESET", epoch, 0, b"")]
        self.guest("ACK", word(window), epoch=epoch)

    def attach(self, capability: bytes = CAPABILITY) -> None:
        self.broker.host_opened()
        self.host("HOST_ATTACH", capability)

    def active(self, window: int = WINDOW) -> Rig:
        self.acknowledge(window=window)
        self.attach()
        assert self.at_host() == [("READY", 1, 0, b"")]
        return self
