"""The bundled stand-in against a client that was written from the contract alone."""

from __future__ import annotations

import ast
import base64
import json
import re
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import contract_client
from contract_client import (
    CANCEL,
    CAPABILITY,
    EXEC,
    FEATURES,
    MAPS,
    PING,
    R_ERROR,
    R_EXIT,
    R_READY,
    R_STDERR,
    R_STDOUT,
    R_STOPPED,
    STOP,
    Ended,
    Machine,
    command,
    extended,
    frame,
    message,
    record,
)

ID = 0x0102030405060708
GOLDEN_PING = bytes.fromhex("4e5658430101000008070605040302010000000000000000")
GOLDEN_EXEC = bytes.fromhex("8813000003000000070000002f62696e2f7368020000002d63070000006563686f206869")
GOLDEN_PWD = bytes.fromhex("00000000010001000100000004000000080000002f62696e2f7077642f746d70")

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the endpoint is no socket here")


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvx", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def launch(root: Path) -> Iterator[Callable[..., Machine]]:
    machines: list[Machine] = []

    def start(**options: object) -> Machine:
        machines.append(Machine(root, **options))  # type: ignore[arg-type]
        return machines[-1]

    yield start
    for machine in machines:
        machine.end()


REPORT = """{
  "schema_version": 1,
  "instance_id": "INSTANCE",
  "backend": "kvm",
  "outcome": {
    "operation": "managed",
    "category": "CATEGORY",
    "status_code": STATUS
  },
  "network_policy": {
    "status": "not-requested",
    "status_code": 0,
    "mode": "none",
    "allow_rule_count": 0,
    "deny_rule_count": 0,
    "host_loopback": "none"
  },
  "teardown": {
    "guest_workload_stopped": true,
    "vm_stopped": true,
    "openvmm_process_terminated": true,
    "virtiofs_released": true,
    "network_released": true,
    "temporary_storage_removed": true,
    "control_channels_closed": true
  }
}
"""


def check_report(machine: Machine, category: str, status: int) -> None:
    text = machine.report.read_text()
    instance = json.loads(text)["instance_id"]
    assert re.fullmatch("[0-9a-f]{32}", instance)
    expected = REPORT.replace("INSTANCE", instance).replace("CATEGORY", category).replace("STATUS", str(status))
    assert text == expected
    assert machine.report.stat().st_mode & 0o777 == 0o600


def test_the_client_shares_no_code() -> None:
    tree = ast.parse(Path(contract_client.__file__).read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not {name.split(".")[0] for name in names} & {"nvx_ref", "harness", "fake_openvmm", "scenarios"}


@pytest.mark.spec("card.2")
def test_the_happy_path_byte_for_byte(launch: Callable[..., Machine]) -> None:
    machine = launch()
    session = machine.attached()
    assert session.epoch == 1
    assert frame(PING, request=ID) == GOLDEN_PING
    session.ask(GOLDEN_PING, frame(R_READY, request=ID))
    session.ask(frame(FEATURES, request=ID), frame(R_READY, b"\x15\0\0\0", request=ID))
    session.ask(frame(EXEC, GOLDEN_EXEC, 2), frame(R_STDOUT, b"hi\n", 2), frame(R_EXIT, b"exit", 2))
    session.ask(frame(EXEC, GOLDEN_PWD, 3), frame(R_STDOUT, b"/tmp\n", 3), frame(R_EXIT, b"exit", 3))
    failing = command(b"/bin/sh", b"-c", b"echo no >&2; exit 3")
    session.ask(frame(EXEC, failing, 4), frame(R_STDERR, b"no\n", 4), frame(R_EXIT, b"exit", 4, 3))
    session.ask(frame(STOP, request=5), frame(R_STOPPED, request=5))
    assert session.ended()
    assert machine.exit_status() == 0
    check_report(machine, "success", 0)
    assert sorted(path.name for path in machine.state.iterdir()) == ["openvmm.log", "outcome.json"]
    log = machine.log.read_bytes()
    assert CAPABILITY not in log
    assert CAPABILITY.hex().encode() not in log


def test_the_endpoint_is_private(launch: Callable[..., Machine]) -> None:
    machine = launch()
    machine.attached()
    found = machine.endpoint.lstat()
    assert (found.st_mode & 0o777, machine.endpoint.is_socket()) == (0o600, True)


def test_a_wrong_capability_is_closed_without_a_byte_and_costs_no_epoch(launch: Callable[..., Machine]) -> None:
    machine = launch()
    for wrong in (bytes(range(2, 34)), bytes(32)):
        session = machine.connect()
        with pytest.raises(Ended):
            session.attach(wrong)
    assert machine.attached().epoch == 1
    assert machine.process.poll() is None


def test_a_host_that_leaves_costs_an_epoch_of_the_same_instance(launch: Callable[..., Machine]) -> None:
    machine = launch()
    seen = []
    for _ in range(3):
        session = machine.attached()
        session.ask(frame(PING), frame(R_READY))
        seen.append((session.instance, session.epoch))
        session.close()
    assert [epoch for _, epoch in seen] == [1, 2, 3]
    assert len({instance for instance, _ in seen}) == 1


@pytest.mark.parametrize("wrong", ["sequence", "epoch", "instance", "type", "magic"])
def test_a_host_that_breaks_the_record_layer_is_closed(launch: Callable[..., Machine], wrong: str) -> None:
    machine = launch()
    session = machine.attached()
    ping = frame(PING)
    session.sock.sendall(
        {
            "sequence": record(5, ping, session.instance, session.epoch, 1),
            "epoch": record(5, ping, session.instance, session.epoch + 1, 0),
            "instance": record(5, ping, session.instance[::-1], session.epoch, 0),
            "type": record(9, b"\1\0\0\0", session.instance, session.epoch, 0),
            "magic": b"XVXS" + record(5, ping, session.instance, session.epoch, 0)[4:],
        }[wrong]
    )
    assert session.ended()
    again = machine.attached()
    assert (again.instance, again.epoch) == (session.instance, session.epoch + 1)


def test_a_second_host_waits_for_the_first(launch: Callable[..., Machine]) -> None:
    machine = launch()
    first = machine.attached()
    second = machine.connect()
    second.sock.sendall(record(2, CAPABILITY))
    first.ask(frame(PING), frame(R_READY))
    first.close()
    kinds = [second.take()[0]]
    while kinds[-1] != 7:
        kinds.append(second.take()[0])
    assert kinds[:-1] in ([], [6])


def test_requests_that_a_guest_refuses(launch: Callable[..., Machine]) -> None:
    session = launch().attached()
    invalid = frame(R_ERROR, b"invalid-request", 9, 22)
    session.ask(frame(PING, b"x", 9), invalid)
    session.ask(frame(FEATURES, b"x", 9), invalid)
    session.ask(frame(EXEC, b"", 9), invalid)
    session.ask(frame(EXEC, command(b"sh"), 9), invalid)
    session.ask(frame(EXEC, command(b"/bin/sh") + b"x", 9), invalid)
    session.ask(frame(EXEC, struct.pack("<IHH", 0, 0, 0), 9), invalid)
    session.ask(frame(EXEC, struct.pack("<IHH", 0, 1, 2) + command(b"/bin/sh")[8:], 9), invalid)
    mapping = bytes.fromhex("0000000001000000" + "000001000500" + "302f776f726b")
    session.ask(frame(MAPS, mapping, 9), invalid)
    session.ask(frame(7, b"", 9), frame(R_ERROR, b"unsupported-operation", 9, 95))
    session.say(frame(CANCEL, b"", 9))
    session.ask(frame(PING), frame(R_READY))


def test_ends_of_a_program(launch: Callable[..., Machine]) -> None:
    session = launch().attached()
    session.say(frame(EXEC, command(b"/bin/sh", b"-c", b"echo begun; exec sleep 1000"), 7))
    assert session.hear() == frame(R_STDOUT, b"begun\n", 7)
    session.ask(frame(PING, b"", 8), frame(R_ERROR, b"busy", 8, 16))
    session.ask(frame(CANCEL, b"", 7), frame(R_EXIT, b"cancelled", 7, 137))
    late = command(b"/bin/sleep", b"1000", timeout_ms=50)
    session.ask(frame(EXEC, late, 9), frame(R_EXIT, b"timeout", 9, 124))
    session.ask(frame(PING), frame(R_READY))


def test_output_at_its_limit_and_over_it(launch: Callable[..., Machine]) -> None:
    session = launch().attached()
    for size, end in ((1_048_576, frame(R_EXIT, b"exit", 7)), (1_048_577, frame(R_EXIT, b"output-limit", 7, 125))):
        session.say(frame(EXEC, command(b"/bin/sh", b"-c", b"head -c %d /dev/zero" % size), 7))
        total = 0
        while (heard := session.hear())[5] == R_STDOUT:
            assert len(heard) - 24 <= 32_768
            total += len(heard) - 24
        assert heard == end
        assert total <= 1_048_576
        assert total == size or size > 1_048_576


def test_what_a_program_sees(launch: Callable[..., Machine]) -> None:
    session = launch().attached()
    whole = extended(2, b"/usr/bin/env", environment=(b"B=2", b"A=1"))
    session.ask(frame(EXEC, whole, 7), frame(R_STDOUT, b"B=2\nA=1\n", 7), frame(R_EXIT, b"exit", 7))
    default = command(b"/bin/sh", b"-c", b'echo "$PATH $TERM $PWD"; test -d "$HOME" && test -n "$USER$LOGNAME"')
    line = b"/usr/sbin:/usr/bin:/sbin:/bin linux /\n"
    session.ask(frame(EXEC, default, 7), frame(R_STDOUT, line, 7), frame(R_EXIT, b"exit", 7))
    over = extended(7, b"/bin/sh", b"-c", b'echo "$PATH $TERM $X $PWD"', cwd=b"/tmp", environment=(b"TERM=x", b"X=1"))
    line = b"/usr/sbin:/usr/bin:/sbin:/bin x 1 /tmp\n"
    session.ask(frame(EXEC, over, 7), frame(R_STDOUT, line, 7), frame(R_EXIT, b"exit", 7))


def test_programs_that_do_not_start_or_end_by_a_signal(launch: Callable[..., Machine]) -> None:
    session = launch().attached()
    for request in (command(b"/no/such/program"), extended(1, b"/bin/pwd", cwd=b"/no/such/directory")):
        session.say(frame(EXEC, request, 7))
        reason = session.hear()
        assert reason[:5] + reason[5:6] == b"NVXC\1" + bytes([R_STDERR])
        assert reason[24:].count(b"\n") == 1
        assert session.hear() == frame(R_EXIT, b"exit", 7, 125)
    killed = command(b"/bin/sh", b"-c", b"kill -9 $$")
    session.ask(frame(EXEC, killed, 7), frame(R_EXIT, b"signal", 7, 137))
    # What the leader leaves behind delays nothing, though it holds the pipe.
    leaving = command(b"/bin/sh", b"-c", b"sleep 1000 & exit 4")
    session.ask(frame(EXEC, leaving, 7), frame(R_EXIT, b"exit", 7, 4))


def test_a_host_that_leaves_ends_its_program(launch: Callable[..., Machine]) -> None:
    machine = launch()
    session = machine.attached()
    session.say(frame(EXEC, command(b"/bin/sh", b"-c", b"echo begun; exec sleep 1000"), 7))
    session.hear()
    session.close()
    again = machine.attached()
    assert again.epoch == 2
    again.ask(frame(EXEC, command(b"/bin/true"), 8), frame(R_EXIT, b"exit", 8))


@pytest.mark.spec("620.acc.8")
def test_the_adapters_guest_takes_messages_anywhere(launch: Callable[..., Machine]) -> None:
    machine = launch(adapter=True)
    session = machine.attached()
    for byte in message(id=1, op="hello"):
        session.say(bytes([byte]))
    hello = session.hear_message()
    assert (hello["id"], hello["ok"]) == (1, True)
    session.say(message(id=2, op="exec", argv=["/bin/sh", "-c", "echo out; echo err >&2; exit 5"], timeoutMs=0))
    assert session.hear_message() == {
        "id": 2,
        "ok": True,
        "category": "exit",
        "status": 5,
        "stdout": base64.b64encode(b"out\n").decode(),
        "stderr": base64.b64encode(b"err\n").decode(),
    }
    stop = message(id=3, op="stop")
    session.say(stop[:3])
    session.say(stop[3:])
    assert session.hear_message() == {"id": 3, "ok": True}
    assert session.ended()
    assert machine.exit_status() == 0
    check_report(machine, "success", 0)


@pytest.mark.parametrize("broken", [b"\0\0\0\0", b"\2\0\0\0{]", b"\1\0\20\0", b"\2\0\0\0\xff\xff"])
def test_the_adapters_guest_fails_closed(launch: Callable[..., Machine], broken: bytes) -> None:
    machine = launch(adapter=True)
    machine.attached().say(broken)
    assert machine.exit_status() == 125


BROKEN = {
    "magic": b"XVXC" + frame(PING)[4:],
    "version": frame(PING)[:4] + b"\2" + frame(PING)[5:],
    "flags": frame(PING)[:6] + b"\1\0" + frame(PING)[8:],
    "length": frame(PING) + b"x",
    "request": frame(PING, request=0),
    "status": frame(PING, status=1),
    "short": b"x",
    "stop with a payload": frame(STOP, b"x"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_guest_fails_closed_on_a_broken_frame(launch: Callable[..., Machine], name: str) -> None:
    machine = launch()
    machine.attached().say(BROKEN[name])
    assert machine.exit_status() == 125
    check_report(machine, "guest-exit", 125)
    assert not machine.endpoint.exists()


CAPABILITIES = {
    "short": {"capability": CAPABILITY[:31]},
    "long": {"capability": CAPABILITY + b"x"},
    "zero": {"capability": bytes(32)},
    "empty": {"capability": b""},
    "writer still open": {"writer_open": True},
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_capability_that_is_not_there_at_once_ends_the_launch(launch: Callable[..., Machine], name: str) -> None:
    machine = launch(**CAPABILITIES[name])
    assert machine.exit_status() == 1
    check_report(machine, "vmm-failure", 1)
    assert not machine.endpoint.exists()
