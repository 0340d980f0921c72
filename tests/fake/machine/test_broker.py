"""The broker, one test per row of contract openvmm 3.4, without a socket and without a clock."""

from __future__ import annotations

import pytest

from fake_openvmm import broker as b
from fake_openvmm import nvxs
from tests.fake.machine.rig import CAPABILITY, WINDOW, Rig, record, word


def test_a_guest_that_attaches_is_reset() -> None:
    rig = Rig()
    rig.guest("GUEST_ATTACH")
    assert rig.broker.state == b.RESET_PENDING
    assert rig.broker.to_guest.take() is not None
    assert rig.broker.state == b.RESET_PENDING
    rig.broker.guest_written()
    assert rig.broker.state == b.AWAIT_GUEST_ACK


def test_an_acknowledgement_without_a_host_waits_for_one() -> None:
    rig = Rig()
    rig.acknowledge()
    assert rig.broker.state == b.READY_NO_HOST
    assert rig.at_host() == []


def test_a_host_is_ready_at_once_when_the_guest_is() -> None:
    rig = Rig().active()
    assert rig.broker.state == b.ACTIVE
    assert rig.points == ["before_ready"]


@pytest.mark.parametrize("stage", [1, 5, 2])
def test_an_early_host_waits_and_becomes_ready(stage: int) -> None:
    rig = Rig()
    if stage != b.AWAIT_GUEST_ATTACH:
        rig.guest("GUEST_ATTACH")
    if stage == b.AWAIT_GUEST_ACK:
        rig.at_guest()
    assert rig.broker.state == stage
    rig.attach()
    assert rig.at_host() == [("WAIT", 1, 0, b"")]
    if stage == b.AWAIT_GUEST_ATTACH:
        rig.guest("GUEST_ATTACH")
    rig.at_guest()
    rig.guest("ACK", word(WINDOW))
    assert rig.at_host() == [("READY", 1, 1, b"")]
    rig.guest("DATA", b"first", sequence=1)
    assert rig.at_host() == [("DATA", 1, 2, b"first")]
    assert rig.points == ["before_wait", "before_ready"]


@pytest.mark.parametrize("state", [b.AWAIT_GUEST_ATTACH, b.READY_NO_HOST])
def test_a_wrong_capability_is_closed_without_a_word(state: int) -> None:
    rig = Rig()
    if state == b.READY_NO_HOST:
        rig.acknowledge()
    rig.attach(bytes(31) + b"x")
    assert rig.broker.host == b.NO_HOST
    assert rig.at_host() == []
    assert rig.broker.epoch == 1
    assert CAPABILITY.hex() not in repr(rig.told)


@pytest.mark.parametrize("first", ["DATA", "READY", "GUEST_ATTACH", "RESET"])
def test_a_host_that_begins_with_anything_else_is_closed(first: str) -> None:
    rig = Rig()
    rig.acknowledge()
    rig.broker.host_opened()
    rig.host(first, b"x" if first == "DATA" else b"")
    assert rig.broker.host == b.NO_HOST
    assert (rig.broker.state, rig.broker.epoch) == (b.READY_NO_HOST, 1)


def test_a_host_that_never_authenticates_is_closed() -> None:
    rig = Rig()
    rig.acknowledge()
    rig.broker.host_opened()
    rig.broker.host_bytes(record("HOST_ATTACH", CAPABILITY)[:75])
    rig.broker.host_late()
    assert rig.broker.host == b.NO_HOST
    assert rig.broker.epoch == 1


def test_the_timeout_doesnt_touch_a_host_that_has_authenticated() -> None:
    rig = Rig()
    rig.attach()
    rig.broker.host_late()
    assert rig.broker.host == b.PROVEN


def test_data_passes_both_ways_with_each_sides_own_sequence() -> None:
    rig = Rig().active()
    rig.host("DATA", b"one")
    rig.host("DATA", b"two", sequence=1)
    assert rig.at_guest() == [("DATA", 1, 1, b"one"), ("DATA", 1, 2, b"two")]
    rig.guest("DATA", b"uno", sequence=1)
    rig.guest("CREDIT", word(3), sequence=2)
    rig.guest("DATA", b"due", sequence=3)
    assert rig.at_host() == [("DATA", 1, 1, b"uno"), ("DATA", 1, 2, b"due")]


def test_data_beyond_the_credit_is_held_and_reading_stops() -> None:
    rig = Rig().active(window=65_536)
    rig.host("DATA", b"a" * 65_536)
    assert rig.broker.reads_host
    rig.host("DATA", b"b", sequence=1)
    assert not rig.broker.reads_host
    assert [item[3][:1] for item in rig.at_guest()] == [b"a"]
    rig.broker.host_bytes(record("DATA", b"c", sequence=2))
    assert rig.at_guest() == []
    rig.guest("CREDIT", word(1), sequence=1)
    assert rig.at_guest() == [("DATA", 1, 2, b"b")]
    assert not rig.broker.reads_host
    rig.guest("CREDIT", word(1), sequence=2)
    assert rig.at_guest() == [("DATA", 1, 3, b"c")]
    assert rig.broker.reads_host


def test_the_guest_queue_holds_16_records_and_the_one_being_written() -> None:
    rig = Rig().active()
    for index in range(17):
        rig.host("DATA", b"x", sequence=index)
        if index == 0:
            assert rig.broker.to_guest.take() is not None
    assert rig.broker.reads_host
    rig.host("DATA", b"x", sequence=17)
    assert not rig.broker.reads_host
    rig.broker.guest_written()
    assert not rig.broker.reads_host
    rig.broker.to_guest.take()
    rig.broker.guest_written()
    assert rig.broker.reads_host


def test_the_guest_queue_holds_a_mebibyte() -> None:
    rig = Rig().active(window=4_194_314)
    for index in range(15):
        rig.host("DATA", b"x" * 65_536, sequence=index)
    assert rig.broker.reads_host
    rig.host("DATA", b"x" * 65_536, sequence=15)
    assert not rig.broker.reads_host


def test_a_full_host_queue_stops_the_guest_and_loses_nothing() -> None:
    rig = Rig().active()
    for index in range(18):
        rig.guest("DATA", bytes([index]), sequence=index + 1)
    assert not rig.broker.reads_guest
    assert [item[3] for item in rig.at_host()] == [bytes([index]) for index in range(18)]
    assert rig.broker.reads_guest


@pytest.mark.parametrize(
    "raw",
    [
        record("DATA", b"x", sequence=1),
        record("DATA", b"x", epoch=2),
        record("DATA", b"x", instance=bytes(16)),
        record("HOST_ATTACH", CAPABILITY),
        record("CREDIT", word(1)),
        record("ACK", word(WINDOW)),
        record("READY"),
        record("RESET"),
        record("GUEST_ATTACH"),
        record("ERROR", word(1)),
        b"XVXS" + record("DATA", b"x")[4:],
    ],
)
def test_any_other_record_of_the_host_closes_it(raw: bytes) -> None:
    rig = Rig().active()
    rig.broker.host_bytes(raw)
    assert rig.broker.host == b.NO_HOST
    assert (rig.broker.state, rig.broker.epoch) == (b.RESET_PENDING, 2)
    assert rig.at_host() == []


def test_data_before_ready_closes_without_a_new_epoch() -> None:
    rig = Rig()
    rig.attach()
    rig.host("DATA", b"x")
    assert rig.broker.host == b.NO_HOST
    assert rig.broker.epoch == 1


def test_a_lost_host_begins_the_next_epoch() -> None:
    rig = Rig().active()
    rig.guest("DATA", b"unstarted", sequence=1)
    rig.host("DATA", b"begun")
    rig.host("DATA", b"waiting", sequence=1)
    begun = rig.broker.to_guest.take()
    assert begun is not None
    rig.broker.host_ended()
    assert (rig.broker.state, rig.broker.epoch) == (b.RESET_PENDING, 2)
    rig.broker.guest_written()
    assert rig.at_guest() == [("RESET", 2, 0, b"")]
    rig.guest("ACK", word(WINDOW), epoch=2)
    assert rig.broker.state == b.READY_NO_HOST
    rig.attach()
    assert rig.at_host() == [("READY", 2, 0, b"")]
    rig.host("DATA", b"again", epoch=2)
    assert rig.at_guest() == [("DATA", 2, 1, b"again")]


def test_the_lost_epochs_credit_is_worth_nothing() -> None:
    rig = Rig().active()
    rig.broker.host_ended()
    rig.acknowledge(epoch=2, window=65_536)
    rig.attach()
    rig.host("DATA", b"x" * 65_536, epoch=2)
    rig.host("DATA", b"x", epoch=2, sequence=1)
    assert not rig.broker.reads_host


def test_what_the_guest_said_in_the_lost_epoch_is_ignored() -> None:
    rig = Rig().active()
    rig.broker.host_ended()
    rig.guest("DATA", b"late", sequence=1)
    assert rig.at_guest() == [("RESET", 2, 0, b"")]
    rig.guest("CREDIT", word(5), sequence=2)
    rig.guest("ACK", word(WINDOW), epoch=2)
    assert rig.broker.state == b.READY_NO_HOST


@pytest.mark.parametrize("stage", ["unproven", "waiting"])
def test_a_host_lost_in_any_other_state_changes_nothing(stage: str) -> None:
    rig = Rig()
    rig.guest("GUEST_ATTACH")
    rig.broker.host_opened()
    if stage == "waiting":
        rig.host("HOST_ATTACH", CAPABILITY)
    rig.broker.host_ended()
    assert (rig.broker.state, rig.broker.epoch, rig.broker.host) == (b.RESET_PENDING, 1, b.NO_HOST)
    rig.acknowledge()
    assert rig.at_host() == []


@pytest.mark.parametrize(
    "raw",
    [
        record("DATA", b"x", sequence=2),
        record("DATA", b"x", epoch=2, sequence=1),
        record("DATA", b"x", sequence=1, instance=bytes(16)),
        record("GUEST_ATTACH"),
        record("ACK", word(WINDOW), sequence=1),
        record("READY", sequence=1),
        record("HOST_ATTACH", CAPABILITY),
        b"garbage" * 7,
    ],
)
def test_a_guest_that_breaks_the_protocol_ends_the_session_for_good(raw: bytes) -> None:
    rig = Rig().active()
    rig.broker.guest_bytes(raw)
    assert rig.broker.state == b.FAILED
    assert rig.broker.host == b.NO_HOST
    assert not rig.broker.accepts
    rig.guest("GUEST_ATTACH")
    assert rig.broker.state == b.FAILED
    rig.broker.start_device()
    assert rig.broker.accepts
    rig.active()


def test_a_device_reset_starts_over_with_the_same_instance_and_the_first_epoch() -> None:
    rig = Rig().active()
    rig.broker.host_ended()
    rig.acknowledge(epoch=2)
    rig.attach()
    rig.at_host()
    rig.broker.start_device()
    assert (rig.broker.state, rig.broker.epoch, rig.broker.host) == (b.AWAIT_GUEST_ATTACH, 1, b.NO_HOST)
    assert rig.at_guest() == []
    rig.active()


def test_a_device_reset_keeps_a_connection_that_hasnt_begun() -> None:
    rig = Rig()
    rig.broker.host_opened()
    rig.broker.start_device()
    assert rig.broker.host == b.UNPROVEN
    rig.acknowledge()
    rig.host("HOST_ATTACH", CAPABILITY)
    assert rig.at_host() == [("READY", 1, 0, b"")]


def test_a_device_reset_closes_a_connection_that_has_begun() -> None:
    rig = Rig()
    rig.broker.host_opened()
    rig.broker.host_bytes(b"N")
    rig.broker.start_device()
    assert rig.broker.host == b.NO_HOST


def test_nobody_is_accepted_before_the_device_runs_or_beside_another_host() -> None:
    rig = Rig(start=False)
    assert not rig.broker.accepts
    rig.broker.start_device()
    assert rig.broker.accepts
    rig.broker.host_opened()
    assert not rig.broker.accepts
    rig.broker.host_ended()
    assert rig.broker.accepts


def test_the_last_epoch_has_no_successor() -> None:
    rig = Rig().active()
    rig.broker.epoch = nvxs.MAX_NUMBER
    rig.broker.host_ended()
    assert rig.broker.state == b.FAILED


def test_the_last_sequence_has_no_successor() -> None:
    rig = Rig().active()
    rig.broker._to_host_next = nvxs.MAX_NUMBER  # pyright: ignore[reportPrivateUsage]
    rig.guest("DATA", b"x", sequence=1)
    assert rig.at_host() == [("DATA", 1, nvxs.MAX_NUMBER, b"x")]
    rig.guest("DATA", b"x", sequence=2)
    assert rig.broker.state == b.FAILED


def test_records_may_come_byte_by_byte_from_both_sides() -> None:
    rig = Rig()
    for byte in record("GUEST_ATTACH"):
        rig.broker.guest_bytes(bytes([byte]))
    rig.at_guest()
    rig.broker.host_opened()
    for byte in record("HOST_ATTACH", CAPABILITY):
        rig.broker.host_bytes(bytes([byte]))
    for byte in record("ACK", word(WINDOW)):
        rig.broker.guest_bytes(bytes([byte]))
    assert rig.at_host() == [("WAIT", 1, 0, b""), ("READY", 1, 1, b"")]
