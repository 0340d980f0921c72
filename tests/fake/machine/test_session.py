"""The control session over a real socket: accepting, authenticating, waiting, losing (contract openvmm 3.2, 3.4)."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from fake_openvmm import system
from fake_openvmm import vm as vms
from tests.fake.machine.client import (
    ATTACHED,
    CAPABILITY,
    DATA,
    EXEC,
    EXIT,
    PING,
    READY,
    RECORD,
    STOP,
    STOPPED,
    WAITING,
    Host,
    exec_payload,
)


def accepted(vm: Any) -> int:
    return len(vm.witness.of("host"))


def test_the_instance_stays_and_the_epoch_counts_lost_hosts(machines: Any) -> None:
    vm = machines.layered()
    seen: list[tuple[bytes, int]] = []
    for _ in range(4):
        host = vm.host().attach(waits=False) if not seen else reattach(vm)
        seen.append((host.instance, host.epoch))
        assert host.call(PING) == (READY, 0, b"")
        host.close()
    assert [epoch for _, epoch in seen] == [1, 2, 3, 4]
    assert len({instance for instance, _ in seen}) == 1
    assert seen[0][0] != bytes(16)


def reattach(vm: Any) -> Host:
    """Attach again: a guest that hasn't acknowledged the reset yet lets the host wait first."""
    host: Host = vm.host()
    host.show()
    record = host.record()
    if record.type == WAITING:
        record = host.record()
    assert record.type == ATTACHED
    host.instance, host.epoch, host.received = record.instance, record.epoch, record.sequence + 1
    return host


def test_the_bytes_of_a_happy_path(machines: Any) -> None:
    host = machines.layered().host()
    host.socket.sendall(bytes.fromhex("4e56585301000200" + "00" * 32 + "20000000") + CAPABILITY)
    ready = host.raw(44)
    assert ready[:8].hex() == "4e56585301000700"
    assert (ready[24:32], ready[32:40], ready[40:]) == (b"\1" + bytes(7), bytes(8), bytes(4))
    ping = bytes.fromhex("4e5658430101000008070605040302010000000000000000")
    host.socket.sendall(bytes.fromhex("4e56585301000500") + ready[8:32] + bytes(8) + b"\x18\0\0\0" + ping)
    answer = host.raw(68)
    assert answer[:32] == bytes.fromhex("4e56585301000500") + ready[8:32]
    assert (answer[32:40], answer[40:44]) == (b"\1" + bytes(7), b"\x18\0\0\0")


@pytest.mark.parametrize("capability", [bytes(32), CAPABILITY[:-1] + b"x"])
def test_a_wrong_capability_is_closed_without_a_word(machines: Any, capability: bytes) -> None:
    vm = machines.layered()
    host = vm.host()
    host.show(capability)
    assert host.at_end()
    assert vm.host().attach().epoch == 1
    assert CAPABILITY.hex() not in repr(vm.witness.events)


def test_a_second_host_waits_until_the_first_leaves(machines: Any) -> None:
    vm = machines.layered()
    first = vm.host().attach()
    second = vm.host()
    second.show()
    second.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        second.record()
    assert accepted(vm) == 1
    assert first.call(PING) == (READY, 0, b"")
    second.socket.settimeout(60)
    first.close()
    record = second.record()
    if record.type == WAITING:
        record = second.record()
    assert (record.type, record.epoch) == (ATTACHED, 2)


def test_a_host_that_never_authenticates_is_closed_and_the_guest_lives(machines: Any) -> None:
    config = machines.config(
        "hostname=box nvx_workload_uid=1 nvx_workload_gid=1 nvx_lifecycle=managed nvx_control_tty=hvc2"
    )
    config.auth_timeout_ms = 150
    # Nobody is let in, and so late, before both are there and have said what they say.
    vm = machines.start(config, boot_delay_ms=60_000)
    silent, partial = vm.host(), vm.host()
    partial.socket.sendall(RECORD.pack(b"NVXS", 1, 2, 0, bytes(16), 0, 0, 32) + CAPABILITY[:31])
    vm.let_go("boot")
    assert silent.at_end()
    assert partial.at_end()
    # A busy machine may need more than that between two steps of this test.
    vm._machine._host.link._auth_seconds = 60
    host = vm.host().attach()
    assert host.epoch == 1
    assert host.call(PING) == (READY, 0, b"")
    assert vm._machine._host.link.deadline is None, "a host that has authenticated is never late"


def test_a_peer_of_another_user_is_closed_unread(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = system.own_user()
    monkeypatch.setattr(system, "own_user", lambda: own + 1)
    vm = machines.layered()
    host = vm.host()
    # It may be closed before it has said anything.
    with contextlib.suppress(BrokenPipeError):
        host.show()
    assert host.at_end()
    assert [event["kind"] for event in vm.witness.events if str(event["kind"]).startswith("host")] == ["host_refused"]
    monkeypatch.undo()
    vm.host().attach()


def test_an_early_host_waits_for_the_guest(machines: Any) -> None:
    vm = machines.layered(attach_delay_ms=60_000)
    host = vm.host()
    host.show()
    assert host.record()[:4] == (WAITING, instance_of(vm), 1, 0)
    vm.let_go("attach")
    ready = host.record()
    assert ready[:4] == (ATTACHED, instance_of(vm), 1, 1)
    host.instance, host.epoch, host.received = ready.instance, 1, 2
    assert host.call(PING) == (READY, 0, b"")


def test_nothing_answers_before_the_guest_has_started_its_console(machines: Any) -> None:
    vm = machines.layered(boot_delay_ms=60_000)
    host = vm.host()
    host.show()
    host.socket.settimeout(0.15)
    with pytest.raises(TimeoutError):
        host.record()
    assert accepted(vm) == 0
    host.socket.settimeout(60)
    vm.let_go("boot")
    assert host.record().type == ATTACHED


def test_a_guest_that_never_attaches_lets_the_host_wait(machines: Any) -> None:
    vm = machines.layered(never_attaches=True)
    host = vm.host()
    host.show()
    assert host.record().type == WAITING
    host.data(b"too early")
    assert host.at_end()
    again = vm.host()
    again.show()
    assert again.record()[:4] == (WAITING, instance_of(vm), 1, 0)


def instance_of(vm: Any) -> bytes:
    return bytes.fromhex(vm.witness.of("instance")[0]["instance"])


@pytest.mark.parametrize("how", ["close", "half-close", "wrong sequence", "garbage"])
def test_every_end_of_a_connection_begins_the_next_epoch(machines: Any, how: str) -> None:
    vm = machines.layered()
    host = vm.host().attach()
    if how == "close":
        host.close()
    elif how == "half-close":
        host.socket.shutdown(socket.SHUT_WR)
    elif how == "wrong sequence":
        host.sequence = 5
        host.data(b"x")
    else:
        host.socket.sendall(b"garbage" * 10)
    if how != "close":
        assert host.at_end()
    assert reattach(vm).epoch == 2


def test_records_may_come_byte_by_byte(machines: Any) -> None:
    host = machines.layered().host()
    for byte in RECORD.pack(b"NVXS", 1, 2, 0, bytes(16), 0, 0, 32) + CAPABILITY:
        host.socket.sendall(bytes([byte]))
    record = host.record()
    host.instance, host.epoch, host.received = record.instance, record.epoch, 1
    ping = bytes.fromhex("4e5658430101000008070605040302010000000000000000")
    for byte in RECORD.pack(b"NVXS", 1, DATA, 0, host.instance, 1, 0, len(ping)) + ping:
        host.socket.sendall(bytes([byte]))
    assert host.frame()[:3] == (READY, 0x0102030405060708, 0)


def test_what_exceeds_the_credit_is_held_not_refused(machines: Any) -> None:
    """40 EXEC frames of 64 KiB are more than the window; the guest takes them one after the other."""
    vm = machines.layered()
    host = vm.host().attach()
    payload = exec_payload("/bin/true", *["x" * 4000] * 15)
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "sleep 0.2"))
    for _ in range(40):
        host.ask(EXEC, payload)
    answers = [host.frame() for _ in range(41)]
    assert sum(frame.kind == EXIT for frame in answers) >= 1
    assert any(frame.request == number for frame in answers)


@pytest.mark.parametrize("unread", ["output", "answers"])
def test_a_host_that_doesnt_read_holds_up_a_stop_for_a_bounded_time(
    machines: Any, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    assert vms.DRAIN_SECONDS == 5
    monkeypatch.setattr(vms, "DRAIN_SECONDS", 0.5)
    vm = machines.layered()
    host = vm.host().attach()
    host.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    if unread == "output":
        host.ask(EXEC, exec_payload("/bin/sh", "-c", "head -c 1000000 /dev/zero"))
        vm.witness.wait_for("exit_status")
    else:
        for _ in range(8000):
            host.ask(PING)
    host.ask(STOP)
    assert vm.wait() == 0


def test_a_host_that_reads_late_still_gets_all_of_it(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vms, "DRAIN_SECONDS", 60.0)
    vm = machines.layered()
    host = vm.host().attach()
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "head -c 1000000 /dev/zero"))
    vm.witness.wait_for("exit_status")
    host.ask(STOP)
    ended = host.finish(number)
    assert (len(ended.stdout), ended.category) == (1_000_000, "exit")
    assert host.frame().kind == STOPPED
    assert host.at_end()
    assert vm.wait() == 0


def test_a_host_that_lets_thousands_of_answers_wait_gets_them_all(machines: Any) -> None:
    vm = machines.layered()
    host = vm.host().attach()
    asked = [host.ask(PING) for _ in range(8000)]
    vm.witness.wait_for("request", 8000)
    assert [host.frame().request for _ in range(8000)] == asked
    assert host.call(PING) == (READY, 0, b"")


def test_a_stop_whose_host_leaves_is_still_a_stop(machines: Any) -> None:
    vm = machines.layered()
    host = vm.host().attach()
    host.ask(STOP)
    host.close()
    assert vm.wait() == 0
