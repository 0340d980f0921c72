"""What the machine does wrong on command."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fake_openvmm import guest
from fake_openvmm.knobs import SideFileError
from tests.fake.machine.client import (
    ATTACHED,
    CANCEL,
    DATA,
    ERROR,
    EXEC,
    FEATURES,
    FRAME,
    MAPS,
    PING,
    READY,
    STDOUT,
    STOP,
    STOPPED,
    WAITING,
    Host,
    exec_payload,
    maps_payload,
)

UNSUPPORTED = (ERROR, 95, b"unsupported-operation")


def attached(machines: Any, **knobs: Any) -> Host:
    host: Host = machines.layered(**knobs).host().attach()
    return host


def test_another_feature_mask(machines: Any) -> None:
    assert attached(machines, features=0x1234).call(FEATURES) == (READY, 0, bytes.fromhex("34120000"))


def test_an_old_guest(machines: Any) -> None:
    host = attached(machines, old_guest=True)
    assert host.call(FEATURES) == UNSUPPORTED
    assert host.call(MAPS, maps_payload(0, ("0", "/w", False))) == UNSUPPORTED
    assert host.call(PING) == (READY, 0, b"")


def test_a_stop_is_ignored(machines: Any) -> None:
    host = attached(machines, ignore_stop=True)
    host.ask(STOP)
    assert host.call(PING) == (READY, 0, b"")


def test_a_cancel_is_ignored(machines: Any) -> None:
    host = attached(machines, ignore_cancel=True)
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo began; sleep 0.2"))
    assert host.frame().payload == b"began\n"
    host.ask(CANCEL, request=number)
    assert host.finish(number)[3:] == (0, "exit")


def test_another_status_at_the_end(machines: Any) -> None:
    vm = machines.layered(exit_code=9)
    assert vm.host().attach().call(STOP) == (STOPPED, 0, b"")
    assert vm.wait() == 9


@pytest.mark.parametrize("point", ["guest_boot", "guest_attach"])
def test_a_guest_that_ends_before_it_is_ready(machines: Any, point: str) -> None:
    assert machines.layered(guest_exit_at={point: 7}).wait() == 7


def test_a_guest_that_ends_in_the_middle(machines: Any) -> None:
    vm = machines.layered(guest_exit_at={"before_exec#2": 3})
    host = vm.host().attach()
    assert host.run("/bin/true").category == "exit"
    host.ask(EXEC, exec_payload("/bin/true"))
    assert host.at_end()
    assert vm.wait() == 3


def test_a_guest_that_stops_dead_keeps_its_machine(machines: Any) -> None:
    vm = machines.layered(guest_dead_at=["before_exec"])
    host = vm.host().attach()
    host.ask(EXEC, exec_payload("/bin/true"))
    vm.witness.wait_for("guest_dead")
    host.ask(PING)
    host.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        host.record()
    host.close()
    again = vm.host()
    again.show()
    assert again.record()[:1] + again_epoch(again) == (WAITING, 2)


def test_a_guest_that_hangs_keeps_its_machine_and_says_nothing(machines: Any) -> None:
    vm = machines.layered(guest_hangs_at=["before_exec"])
    host = vm.host().attach()
    host.ask(EXEC, exec_payload("/bin/true"))
    vm.witness.wait_for("guest_hangs")
    host.ask(PING)
    host.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        host.record()


def again_epoch(host: Host) -> tuple[int]:
    host.show()  # a second HOST_ATTACH is an illegal record: closed, and the epoch stays
    assert host.at_end()
    return (2,)


def test_a_reboot_in_place_keeps_the_instance_and_begins_at_epoch_1(machines: Any) -> None:
    vm = machines.layered(reboot_at=["before_exec#2"])
    first = vm.host().attach()
    first.close()
    host = vm.host()
    host.show()
    record = host.record()
    while record.type == WAITING:
        record = host.record()
    assert (record.type, record.epoch) == (ATTACHED, 2)
    host.instance, host.epoch, host.received = record.instance, 2, record.sequence + 1
    assert host.run("/bin/true").category == "exit"
    host.ask(EXEC, exec_payload("/bin/true"))
    assert host.at_end()
    again = vm.host()
    again.show()
    record = again.record()
    while record.type == WAITING:
        record = again.record()
    assert (record.type, record.instance, record.epoch) == (ATTACHED, host.instance, 1)
    assert len(vm.witness.of("guest")) == 2


def test_a_silent_guest(machines: Any) -> None:
    host = attached(machines, guest="silent")
    host.ask(PING)
    host.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        host.record()


def test_a_chatty_guest(machines: Any) -> None:
    host = attached(machines, guest="chatty")
    number = host.ask(PING)
    frames = [host.frame() for _ in range(4)]
    assert [frame.kind for frame in frames] == [STDOUT, STDOUT, STDOUT, READY]
    assert [frame.request == number for frame in frames] == [False, False, False, True]


def test_a_guest_that_speaks_garbage(machines: Any) -> None:
    host = attached(machines, guest="garbage")
    host.ask(PING)
    record = host.record()
    assert record.type == DATA
    assert not record.payload.startswith(b"NVXC")


def test_a_guest_that_breaks_the_record_layer(machines: Any) -> None:
    vm = machines.layered(guest="broken")
    host = vm.host().attach()
    host.ask(PING)
    assert host.at_end()
    again = vm.host()
    again.show()
    again.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        again.record()


@pytest.mark.parametrize("size", [1, 7, 43, 44, 45])
def test_records_in_pieces(machines: Any, size: int) -> None:
    vm = machines.layered(split_records=size, attach_delay_ms=60_000)
    host = vm.host()
    host.show()
    first = host.socket.recv(65_536)
    assert len(first) == min(size, 44)
    host.raw(44 - len(first))
    vm.let_go("attach")
    ready = host.record()
    host.instance, host.epoch, host.received = ready.instance, ready.epoch, ready.sequence + 1
    assert host.call(PING) == (READY, 0, b"")


def test_one_record_in_pieces_of_choice(machines: Any) -> None:
    host = machines.layered(host_records=[{"type": "READY", "split": [3, 40]}]).host()
    host.show()
    assert [len(host.socket.recv(100)) for _ in range(3)] == [3, 37, 4]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"instance": "00" * 16}, "instance", bytes(16)),
        ({"epoch": 0}, "epoch", 0),
        ({"sequence": 5}, "sequence", 5),
        ({"type": 8}, "type", 8),
    ],
)
def test_a_record_with_another_field(machines: Any, change: dict[str, Any], field: str, value: object) -> None:
    host = machines.layered(host_records=[{"type": "READY", "set": change}]).host()
    host.show()
    assert getattr(host.record(), field) == value


def test_a_record_that_is_dropped_repeated_cut_or_wrapped_in_noise(machines: Any) -> None:
    host = attached(machines, host_records=[{"type": "DATA", "hit": 1, "drop": True}, {"hit": 2, "repeat": 2}])
    host.ask(PING)
    number = host.ask(PING)
    frames = [FRAME.unpack_from(host.record().payload) for _ in range(2)]
    assert [frame[4] for frame in frames] == [number, number]
    cut = machines.layered(host_records=[{"type": "READY", "cut": 10}]).host()
    cut.show()
    with pytest.raises(EOFError) as end:
        cut.raw(44)
    assert len(end.value.args[0]) == 10
    noisy = machines.layered(host_records=[{"type": "READY", "before": "abcd"}]).host()
    noisy.show()
    assert noisy.raw(6) == b"\xab\xcdNVXS"


def test_frames_by_rule(machines: Any) -> None:
    rules = [
        {"kind": "READY", "hit": 1, "set": {"request": 5}},
        {"kind": "READY", "hit": 2, "payload": "ffff"},
        {"kind": "READY", "hit": 3, "drop": True},
        {"kind": "EXIT", "set": {"status": -1}},
    ]
    host = attached(machines, frames=rules)
    host.ask(PING)
    assert host.frame()[:3] == (READY, 5, 0)
    assert host.call(PING) == (READY, 0, b"\xff\xff")
    host.ask(PING)
    assert host.run("/bin/true").status == -1


@pytest.mark.parametrize(
    "knobs",
    [
        {"guest": "loud"},
        {"frames": [{"kind": "REDY"}]},
        {"frames": [{"type": "READY"}]},
        {"frames": [{"set": {"epoch": 1}}]},
        {"frames": [{"cut": 3}]},
        {"frames": ["READY"]},
        {"host_records": [{"type": "ready"}]},
        {"host_records": [{"kind": "READY"}]},
        {"host_records": [{"set": {"request": 1}}]},
        {"host_records": [{"set": 5}]},
        {"guest_exit_at": {"before_lunch": 1}},
        {"guest_exit_at": {"before_exec": "one"}},
        {"guest_dead_at": ["before_exec#x"]},
        {"reboot_at": [1]},
        {"reboot_at": ["before_bind"]},
    ],
)
def test_what_would_never_happen_is_refused(machines: Any, knobs: dict[str, Any]) -> None:
    config = machines.config("hostname=box")
    with pytest.raises(SideFileError):
        guest.run(config, machines.opened(config), machines.tools(**knobs))


def test_a_guest_whose_process_dies_ends(machines: Any) -> None:
    vm = machines.layered()
    host = vm.host().attach()
    home = host.run("/bin/sh", "-c", "cd && pwd").stdout.decode().strip()
    assert os.path.isdir(home)
    host.ask(EXEC, exec_payload("/bin/sh", "-c", "kill -9 $PPID"))
    assert host.at_end()
    assert vm.wait() == 125
    assert not os.path.exists(home)
