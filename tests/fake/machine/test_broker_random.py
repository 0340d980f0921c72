"""Random histories of the broker: what must hold whatever host and guest do."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fake_openvmm import broker as b
from fake_openvmm import nvxs
from tests.fake.machine.rig import CAPABILITY, WINDOW, Rig, Seen, record, word

STEPS = 120


class History(Rig):
    """Takes random steps, most of them legal, and checks after each."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)  # noqa: S311 - a history to repeat, no secret
        self.guest_sent = 0
        self.host_sent = 0
        self.host_seen: list[Seen] = []
        self.epoch = 1

    def step(self) -> None:
        before = (self.broker.state, self.broker.epoch)
        actions = (
            self.guest_acts,
            self.guest_acts,
            self.guest_reads,
            self.guest_reads,
            self.host_acts,
            self.host_acts,
            self.host_reads,
            self.noise,
        )
        action = self.chance.choice(actions)
        action()
        if self.chance.random() < 0.02:
            self.broker.start_device()
            self.guest_sent = 0
            assert (self.broker.state, self.broker.epoch) == (b.AWAIT_GUEST_ATTACH, 1)
        self.check(before)

    def guest_acts(self) -> None:
        name = self.chance.choice(("GUEST_ATTACH", "ACK", "CREDIT", "DATA"))
        payload = {"ACK": word(WINDOW), "CREDIT": word(self.chance.randrange(1, 9)), "DATA": b"guest"}.get(name, b"")
        sequence = 0 if name == "ACK" else self.guest_sent
        if self.legal(name):
            self.guest(name, payload, epoch=self.broker.epoch, sequence=sequence)
            self.guest_sent = sequence + 1

    def legal(self, name: str) -> bool:
        state = self.broker.state
        return (
            (name == "GUEST_ATTACH" and state == b.AWAIT_GUEST_ATTACH)
            or (name == "ACK" and state == b.AWAIT_GUEST_ACK)
            or (name == "CREDIT" and state in {b.READY_NO_HOST, b.ACTIVE} and self.broker.reads_guest)
            or (name == "DATA" and state == b.ACTIVE and self.broker.reads_guest)
            or self.chance.random() < 0.01
        )

    def guest_reads(self) -> None:
        if self.broker.to_guest.take() is not None or self.broker.to_guest.writing is not None:
            self.broker.guest_written()

    def host_acts(self) -> None:
        if self.broker.accepts:
            self.broker.host_opened()
            self.host_sent = 0
            self.host_seen.clear()
        elif self.broker.host == b.UNPROVEN:
            wrong = self.chance.random() < 0.1
            self.host("HOST_ATTACH", bytes(32) if wrong else CAPABILITY)
        elif self.broker.reads_host and self.chance.random() < 0.8:
            size = self.chance.choice((1, 30_000, 65_536))
            self.host("DATA", bytes(size), epoch=self.broker.epoch, sequence=self.host_sent)
            self.host_sent += 1
        elif self.chance.random() < 0.3:
            self.broker.host_ended()

    def host_reads(self) -> None:
        for item in self.at_host():
            assert item[2] == len(self.host_seen)
            self.host_seen.append(item)

    def noise(self) -> None:
        if self.broker.host != b.NO_HOST and self.chance.random() < 0.1:
            self.broker.host_bytes(self.chance.randbytes(50))
        elif self.chance.random() < 0.05:
            self.broker.guest_bytes(record("DATA", b"x", epoch=self.broker.epoch, sequence=99_999))

    def check(self, before: tuple[int, int]) -> None:
        broker = self.broker
        state, epoch = before
        assert broker.epoch in {epoch, epoch + 1, 1}
        if broker.epoch == epoch + 1:
            assert state == b.ACTIVE
            assert broker.state in {b.RESET_PENDING, b.AWAIT_GUEST_ACK}
        assert broker.state != b.ACTIVE or broker.host == b.PROVEN
        assert not (broker.accepts and broker.to_host)
        assert len(broker.to_guest._waiting) <= b.QUEUE_RECORDS + 1
        assert broker.to_guest._size <= b.QUEUE_BYTES + nvxs.HEADER_SIZE
        assert broker._credit >= 0


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 64))
def test_whatever_happens_the_broker_stays_within_its_rules(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
