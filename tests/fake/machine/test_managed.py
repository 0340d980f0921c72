"""The managed agent over a real socket: every rule of contract openvmm 3.6."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_openvmm.hostlink import HostLink
from tests.fake.machine.client import (
    CANCEL,
    ERROR,
    EXEC,
    EXIT,
    FEATURES,
    FRAME,
    MAPS,
    PING,
    READY,
    STDERR,
    STDOUT,
    STOP,
    STOPPED,
    Ended,
    Host,
    exec_payload,
    items,
    maps_payload,
)

INVALID = (ERROR, 22, b"invalid-request")
BUSY = (ERROR, 16, b"busy")
UNSUPPORTED = (ERROR, 95, b"unsupported-operation")


@pytest.fixture
def vm(machines: Any) -> Any:
    return machines.layered()


@pytest.fixture
def host(vm: Any) -> Host:
    attached: Host = vm.host().attach()
    return attached


def sh(host: Host, script: str, **options: Any) -> Ended:
    return host.run("/bin/sh", "-c", script, **options)


def test_a_ping_and_a_stop(vm: Any, host: Host) -> None:
    assert host.call(PING) == (READY, 0, b"")
    assert host.call(STOP) == (STOPPED, 0, b"")
    assert host.at_end()
    assert vm.wait() == 0


def test_the_features_of_both_guests(machines: Any, host: Host) -> None:
    assert host.call(FEATURES) == (READY, 0, bytes.fromhex("15000000"))
    assert machines.direct().host().attach().call(FEATURES) == (READY, 0, bytes.fromhex("7d000000"))


def test_the_golden_frames(machines: Any) -> None:
    host = machines.direct().host().attach()
    host.data(bytes.fromhex("4e5658430101000008070605040302010000000000000000"))
    assert host.receive().hex() == "4e5658430181000008070605040302010000000000000000"
    host.data(bytes.fromhex("4e5658430105000008070605040302010000000000000000"))
    assert host.receive().hex() == "4e56584301810000080706050403020100000000040000007d000000"
    hi = "8813000003000000070000002f62696e2f7368020000002d63070000006563686f206869"
    assert host.finish(host.ask(EXEC, bytes.fromhex(hi))) == Ended(b"hi\n", b"", EXIT, 0, "exit")
    where = "00000000010001000100000004000000080000002f62696e2f7077642f746d70"
    assert host.finish(host.ask(EXEC, bytes.fromhex(where))).stdout == b"/tmp\n"


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_an_exit_status(host: Host, status: int) -> None:
    assert sh(host, f"echo out; echo err >&2; exit {status}") == Ended(b"out\n", b"err\n", EXIT, status, "exit")


@pytest.mark.parametrize("number", [1, 9, 15])
def test_a_signal(host: Host, number: int) -> None:
    assert sh(host, f"kill -{number} $$")[2:] == (EXIT, 128 + number, "signal")


def test_a_timeout(vm: Any, host: Host) -> None:
    assert sh(host, "exec sleep 60", timeout=50) == Ended(b"", b"", EXIT, 124, "timeout")
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo began; exec sleep 60", timeout=60_000))
    assert host.frame().payload == b"began\n"
    vm.time_is_up()
    assert host.finish(number) == Ended(b"", b"", EXIT, 124, "timeout")
    assert sh(host, "echo next", timeout=20_000).stdout == b"next\n"


def test_a_cancel(host: Host) -> None:
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo began; exec sleep 60"))
    assert host.frame().payload == b"began\n"
    host.ask(CANCEL, request=number)
    assert host.finish(number)[2:] == (EXIT, 137, "cancelled")
    host.ask(CANCEL, request=number)
    assert host.call(PING) == (READY, 0, b"")


@pytest.mark.parametrize("how", ["another request", "payload"])
def test_a_cancel_that_is_ignored(host: Host, how: str) -> None:
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo began; sleep 0.3; echo done"))
    assert host.frame().payload == b"began\n"
    if how == "payload":
        host.ask(CANCEL, b"x", request=number)
    else:
        host.ask(CANCEL, request=number + 1)
    assert host.finish(number) == Ended(b"done\n", b"", EXIT, 0, "exit")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (PING, b""),
        (PING, b"x"),
        (FEATURES, b""),
        (STOP, b""),
        (STOP, b"x"),
        (EXEC, b""),
        (EXEC, exec_payload("/bin/true")),
        (MAPS, b""),
        (77, b""),
        (READY, b""),
    ],
)
def test_anything_beside_an_exec_is_busy(host: Host, kind: int, payload: bytes) -> None:
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo began; exec sleep 60"))
    assert host.frame().payload == b"began\n"
    assert host.call(kind, payload) == BUSY
    host.ask(CANCEL, request=number)
    assert host.finish(number).category == "cancelled"


@pytest.mark.parametrize(
    ("kind", "payload", "answer"),
    [
        (PING, b"x", INVALID),
        (FEATURES, b"x", INVALID),
        (MAPS, maps_payload(0, ("0", "/work", False)), INVALID),
        (MAPS, b"", INVALID),
        (0, b"", UNSUPPORTED),
        (7, b"x", UNSUPPORTED),
        (0x81, b"", UNSUPPORTED),
        (0xFE, b"", UNSUPPORTED),
    ],
)
def test_a_request_that_is_refused(host: Host, kind: int, payload: bytes, answer: tuple[int, int, bytes]) -> None:
    assert host.call(kind, payload) == answer
    assert host.call(PING) == (READY, 0, b"")


TRUE = items("/bin/true")
BAD_EXECS = {
    "nothing": b"",
    "cut in the head": struct.pack("<IHH", 0, 1, 0)[:7],
    "no argument": struct.pack("<IHH", 0, 0, 0),
    "65 arguments": struct.pack("<IHH", 0, 65, 0) + items("/bin/true", *["x"] * 64),
    "another extension": struct.pack("<IHH", 0, 1, 2) + TRUE,
    "another flag": struct.pack("<IHHHHI", 0, 1, 1, 8, 0, 0) + TRUE,
    "inherits without an environment": struct.pack("<IHHHHI", 0, 1, 1, 4, 0, 0) + TRUE,
    "a directory's length without its flag": struct.pack("<IHHHHI", 0, 1, 1, 0, 0, 1) + TRUE + b"/",
    "a directory's flag without a length": struct.pack("<IHHHHI", 0, 1, 1, 1, 0, 0) + TRUE,
    "variables without their flag": struct.pack("<IHHHHI", 0, 1, 1, 0, 1, 0) + TRUE + items("A=1"),
    "257 variables": struct.pack("<IHHHHI", 0, 1, 1, 2, 257, 0) + TRUE + items(*[f"A{n}=1" for n in range(257)]),
    "an empty argument": struct.pack("<IHH", 0, 2, 0) + TRUE + items(""),
    "a long argument": struct.pack("<IHH", 0, 2, 0) + TRUE + items("x" * 4097),
    "a NUL": struct.pack("<IHH", 0, 2, 0) + TRUE + items("a\0b"),
    "a relative program": struct.pack("<IHH", 0, 1, 0) + items("true"),
    "a relative directory": struct.pack("<IHHHHI", 0, 1, 1, 1, 0, 3) + TRUE + b"tmp",
    "a long directory": struct.pack("<IHHHHI", 0, 1, 1, 1, 0, 4097) + TRUE + b"/" * 4097,
    "a directory with a NUL": struct.pack("<IHHHHI", 0, 1, 1, 1, 0, 3) + TRUE + b"/\0a",
    "a variable without a value": struct.pack("<IHHHHI", 0, 1, 1, 2, 1, 0) + TRUE + items("A"),
    "a variable without a name": struct.pack("<IHHHHI", 0, 1, 1, 2, 1, 0) + TRUE + items("=1"),
    "a variable twice": struct.pack("<IHHHHI", 0, 1, 1, 2, 2, 0) + TRUE + items("A=1", "A=2"),
    "trailing bytes": struct.pack("<IHH", 0, 1, 0) + TRUE + b"x",
    "cut in an argument": struct.pack("<IHH", 0, 1, 0) + TRUE[:-1],
}


@pytest.mark.parametrize("payload", BAD_EXECS.values(), ids=BAD_EXECS.keys())
def test_a_wrong_exec_is_refused(host: Host, payload: bytes) -> None:
    assert host.call(EXEC, payload) == INVALID


def test_the_limits_of_an_exec_are_allowed(host: Host) -> None:
    assert host.run("/bin/true", *["x"] * 63).category == "exit"
    assert host.run("/bin/true", "x" * 4096).category == "exit"
    assert host.run("/usr/bin/env", environment=[f"A{n}=1" for n in range(256)]).stdout.count(b"\n") == 256
    assert host.run("/usr/bin/env", environment=[]).stdout == b""


def test_the_default_environment_is_the_guests(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    lines = host.run("/usr/bin/env", cwd="/tmp").stdout.decode().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    home = found.pop("HOME")
    assert found == {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM": "linux",
        "USER": "nobody",
        "LOGNAME": "nobody",
        "PWD": "/tmp",
    }
    assert os.path.isdir(home)
    assert os.stat(home).st_mode & 0o777 == 0o700


def test_an_environment_alone_and_on_top(host: Host) -> None:
    alone = host.run("/usr/bin/env", environment=["B=2", "A=1", "EMPTY="])
    assert alone.stdout == b"B=2\nA=1\nEMPTY=\n"
    both = host.run("/usr/bin/env", environment=["TERM=dumb", "A=1"], inherit=True).stdout.decode().splitlines()
    assert "TERM=dumb" in both
    assert "TERM=linux" not in both
    assert "A=1" in both
    assert any(line.startswith("HOME=") for line in both)


def test_the_directory(host: Host) -> None:
    assert host.run("/bin/pwd").stdout == b"/\n"
    assert host.run("/bin/pwd", cwd="/usr").stdout == b"/usr\n"


def test_a_directory_that_cant_be_entered(machines: Any, host: Host) -> None:
    layered = host.run("/bin/sh", "-c", "echo ran", cwd="/nonexistent")
    assert layered.stdout == b""
    assert layered.stderr.endswith(b"\n")
    assert layered.stderr.count(b"\n") == 1
    assert layered[2:] == (EXIT, 125, "exit")
    direct = machines.direct().host().attach().run("/bin/sh", "-c", "echo ran", cwd="/nonexistent")
    assert direct.stdout == b""
    assert direct.stderr
    assert direct[2:] == (ERROR, 2, "cwd-failed")


@pytest.mark.parametrize("program", ["/nonexistent", "/etc/passwd", "/etc"])
def test_a_program_that_cant_be_executed(host: Host, program: str) -> None:
    ended = host.run(program)
    assert ended.stdout == b""
    assert ended.stderr.count(b"\n") == 1
    assert ended[2:] == (EXIT, 125, "exit")


def test_exactly_the_limit_is_no_excess(host: Host) -> None:
    ended = sh(host, "head -c 1000000 /dev/zero; head -c 48576 /dev/zero >&2")
    assert (len(ended.stdout), len(ended.stderr), ended.category) == (1_000_000, 48_576, "exit")


def test_one_byte_more_is_too_much(host: Host) -> None:
    ended = sh(host, "head -c 1048577 /dev/zero; echo late; exec sleep 60")
    assert len(ended.stdout) <= 1_048_576
    assert ended[2:] == (EXIT, 125, "output-limit")


def test_endless_output_is_cut(host: Host) -> None:
    assert sh(host, "exec yes")[2:] == (EXIT, 125, "output-limit")


def test_output_goes_on_when_nothing_but_the_host_makes_room(
    vm: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is full and the program has ended; then the socket takes all at once, and no event follows that."""
    real = HostLink.flush

    def flush(link: HostLink) -> bool:
        full = vm.witness.of("exec") and not vm.witness.of("exit_status")
        return False if full else real(link)

    monkeypatch.setattr(HostLink, "flush", flush)
    ended = sh(host, "head -c 1000000 /dev/zero")
    assert (len(ended.stdout), ended.category) == (1_000_000, "exit")


def test_what_the_leader_started_dies_with_it(host: Host) -> None:
    script = "setsid sleep 61 & echo $!; sleep 61 & echo $!; (setsid sh -c 'sleep 61 & echo $!; wait' &) ; sleep 0.1"
    ended = sh(host, script)
    assert ended[2:] == (EXIT, 0, "exit")
    for pid in map(int, ended.stdout.split()):
        assert not os.path.exists(f"/proc/{pid}")


def test_what_a_workload_orphans_is_reaped_while_it_runs(host: Host) -> None:
    script = """for n in 1 2 3 4 5; do (/bin/true &); done
    for n in $(seq 200); do
        echo begun; sleep 0.05
        left=$(cat /proc/[0-9]*/stat 2>/dev/null | awk -v guest=$PPID '$4 == guest' | grep -cv "^$$ ")
        [ $left = 0 ] && break
    done; echo $left"""
    assert sh(host, script).stdout.split()[-1] == b"0"


def test_a_workload_has_its_own_group_and_nothing_else_of_the_machine(host: Host) -> None:
    ended = sh(host, "ls -l /proc/self/fd; cut -d' ' -f1,5 /proc/$$/stat")
    rows = ended.stdout.decode().splitlines()
    pid, group = rows[-1].split()
    assert pid == group
    numbers = {row.split(" -> ")[0].split()[-1] for row in rows if " -> " in row}
    assert numbers == {"0", "1", "2", "3"}
    assert any("0 -> /dev/null" in row for row in rows)


@pytest.fixture
def ignoring() -> Iterator[None]:
    """As what a shell starts in the background without job control, or nohup, ignores them."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    }
    yield
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.usefixtures("ignoring")
def test_signals_have_their_default_action(host: Host) -> None:
    rows = sh(host, "grep -E 'Sig(Blk|Ign)' /proc/self/status").stdout.decode().splitlines()
    assert [int(row.split()[1], 16) & 0x7FFFFFFF for row in rows] == [0, 0]


BAD_FRAMES = {
    "short": b"NVXC",
    "magic": FRAME.pack(b"XVXC", 1, PING, 0, 1, 0, 0),
    "version": FRAME.pack(b"NVXC", 2, PING, 0, 1, 0, 0),
    "flags": FRAME.pack(b"NVXC", 1, PING, 1, 1, 0, 0),
    "request 0": FRAME.pack(b"NVXC", 1, PING, 0, 0, 0, 0),
    "status": FRAME.pack(b"NVXC", 1, PING, 0, 1, 1, 0),
    "longer than said": FRAME.pack(b"NVXC", 1, PING, 0, 1, 0, 0) + b"x",
    "shorter than said": FRAME.pack(b"NVXC", 1, PING, 0, 1, 0, 2) + b"x",
    "stop with a payload": FRAME.pack(b"NVXC", 1, STOP, 0, 1, 0, 1) + b"x",
}


@pytest.mark.parametrize(
    ("name", "beside"),
    [(name, beside) for name in BAD_FRAMES for beside in (False, True) if not beside or not name.startswith("stop")],
)
def test_a_malformed_frame_ends_the_guest(vm: Any, host: Host, name: str, beside: bool) -> None:  # noqa: FBT001
    if beside:
        host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo began; exec sleep 60"))
        assert host.frame().payload == b"began\n"
    host.data(BAD_FRAMES[name])
    assert host.at_end()
    assert vm.wait() == 125


def test_a_lost_host_loses_its_workload_and_nothing_is_said_of_it(vm: Any, host: Host) -> None:
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo $$; exec sleep 60"))
    frame = host.frame()
    assert (frame.kind, frame.request) == (STDOUT, number)
    host.close()
    again = vm.host().attach()
    assert (again.instance, again.epoch) == (host.instance, 2)
    assert again.call(PING) == (READY, 0, b"")
    assert sh(again, "echo next") == Ended(b"next\n", b"", EXIT, 0, "exit")
    assert not os.path.exists(f"/proc/{int(frame.payload)}")


def test_a_guest_is_served_in_turn(host: Host) -> None:
    for _ in range(40):
        host.ask(PING)
    number = host.ask(EXEC, exec_payload("/bin/echo", "hi"))
    assert [host.frame().kind for _ in range(40)] == [READY] * 40
    assert host.finish(number).stdout == b"hi\n"


def test_both_streams_are_told_apart(host: Host, tmp_path: Path) -> None:
    turns = [tmp_path / "first", tmp_path / "second"]
    for turn in turns:
        os.mkfifo(turn)
    script = f"echo a; read next < {turns[0]}; echo b >&2; read next < {turns[1]}; echo c"
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", script))
    frames = [host.frame()]
    for turn in turns:
        turn.write_text("\n")
        frames.append(host.frame())
    frames.append(host.frame())
    assert all(frame.request == number for frame in frames)
    assert [(frame.kind, frame.payload) for frame in frames] == [
        (STDOUT, b"a\n"),
        (STDERR, b"b\n"),
        (STDOUT, b"c\n"),
        (EXIT, b"exit"),
    ]
