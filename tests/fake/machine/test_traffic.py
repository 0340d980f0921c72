"""Random traffic: a host that writes and reads in any portions gets every answer, in order."""

from __future__ import annotations

import random
import select
from typing import Any

import pytest

from tests.fake.machine.client import EXEC, FEATURES, FRAME, PING, RECORD, Host, exec_payload

REQUESTS = 300
SEEDS = 4


class Traffic:
    """Requests on their way out and answers on their way in, over one non-blocking socket."""

    def __init__(self, host: Host, seed: int) -> None:
        self.host = host
        self.chance = random.Random(seed)  # noqa: S311 - traffic to repeat, no secret
        self.out = bytearray()
        self.data = bytearray()
        self.expected: dict[int, str] = {}
        self.ended: list[tuple[int, str]] = []

    def ask(self, number: int) -> None:
        kind, payload, name = self.chance.choice(
            [
                (PING, b"", "ready"),
                (FEATURES, b"", "ready"),
                (PING, bytes(self.chance.randrange(1, 60_000)), "invalid-request"),
                (EXEC, b"", "invalid-request"),
            ]
        )
        frame = FRAME.pack(b"NVXC", 1, kind, 0, number, 0, len(payload)) + payload
        self.out += RECORD.pack(b"NVXS", 1, 5, 0, self.host.instance, self.host.epoch, self.host.sequence, len(frame))
        self.out += frame
        self.host.sequence += 1
        self.expected[number] = name

    def run(self) -> None:
        sock = self.host.socket
        sock.setblocking(False)
        while len(self.ended) < len(self.expected):
            reads = self.chance.random() < 0.5 or not self.out
            readable, writable, _ = select.select([sock] if reads else [], [sock] if self.out else [], [], 60)
            assert readable or writable, f"{len(self.ended)} of {len(self.expected)} answers, then silence"
            if writable:
                del self.out[: sock.send(self.out[: self.chance.choice((1, 50, 4096, 100_000))])]
            if readable:
                part = sock.recv(self.chance.choice((1, 44, 5000, 100_000)))
                assert part, "closed"
                self.data += part
                self.take()

    def take(self) -> None:
        while len(self.data) >= RECORD.size:
            *_, sequence, length = RECORD.unpack_from(self.data)
            if len(self.data) < RECORD.size + length:
                return
            assert sequence == self.host.received
            self.host.received += 1
            frame = bytes(self.data[RECORD.size : RECORD.size + length])
            del self.data[: RECORD.size + length]
            _, _, kind, _, request, _, _ = FRAME.unpack_from(frame)
            text = frame[FRAME.size :]
            self.ended.append((request, "ready" if kind == 0x81 else text.decode()))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_answer_comes_in_its_turn(machines: Any, seed: int) -> None:
    host = machines.layered().host().attach()
    traffic = Traffic(host, seed)
    for number in range(1, REQUESTS + 1):
        traffic.ask(number)
    traffic.run()
    assert traffic.ended == list(traffic.expected.items())
    host.socket.settimeout(60)
    script = "i=0; while [ $i -lt 3000 ]; do echo line; i=$((i+1)); done"
    ended = host.finish(host.ask(EXEC, exec_payload("/bin/sh", "-c", script)))
    assert ended.stdout == b"line\n" * 3000
