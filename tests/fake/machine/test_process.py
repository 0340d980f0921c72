"""The whole stand-in as a process: held, ended and killed at every point of its guest's life."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fake.machine.client import EXEC, PING, READY, STDOUT, STOP, STOPPED, WAITING, Host, exec_payload
from tests.support.openvmm_channel import Channel
from tests.support.openvmm_stand import CAPABILITY, Stand, made

LAYER = "nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs"
BEGUN = exec_payload("/bin/sh", "-c", "setsid sleep 77 & echo $$ $! $PPID; exec sleep 78")


@pytest.fixture
def stand(make_erofs: Callable[..., bytes]) -> Iterator[Stand]:
    for stand in made(still_guest=False):
        (stand.path / "distro").write_bytes(make_erofs())
        yield stand


@pytest.fixture
def channel(stand: Stand) -> Iterator[Channel]:
    opened = Channel(stand.path)
    yield opened
    opened.close()


OPEN: list[Host] = []


@pytest.fixture(autouse=True)
def close_hosts() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def argv(stand: Stand) -> list[str]:
    """A layered guest with an upper in memory."""
    words = stand.argv(f'"cmdline={LAYER} nvx_overlay_upper=ramfs"')
    at = words.index(f"scratch:file:{stand.path}/scratch")
    return words[: at - 1] + words[at + 1 :]


def connect(stand: Stand) -> Host:
    """Connect as soon as somebody listens."""
    while True:
        try:
            OPEN.append(Host(str(stand.path / "control.sock")))
        except (FileNotFoundError, ConnectionRefusedError):
            assert stand.process is not None
            assert stand.process.poll() is None, stand.log()
            select.select([], [], [], 0.01)
        else:
            return OPEN[-1]


def attach(stand: Stand) -> Host:
    host = connect(stand)
    host.show(CAPABILITY)
    record = host.record()
    if record.type == WAITING:
        record = host.record()
    host.instance, host.epoch, host.received = record.instance, record.epoch, record.sequence + 1
    return host


def pins(pids: list[int]) -> dict[int, int]:
    return {os.pidfd_open(pid): pid for pid in pids}


def all_gone(pinned: dict[int, int]) -> None:
    for pin, pid in pinned.items():
        assert select.select([pin], [], [], 60)[0], f"{pid} lives"
        os.close(pin)


def begin(host: Host) -> dict[int, int]:
    """Start a workload with a descendant in another session; pins of both and of the guest process."""
    host.ask(EXEC, BEGUN)
    frame = host.frame()
    assert frame.kind == STDOUT
    *both, agent = [int(word) for word in frame.payload.split()]
    for pid in both:
        wait_until_it_sleeps(pid)
    return pins([*both, agent])


def wait_until_it_sleeps(pid: int) -> None:
    """Wait for a shell's exec: until it is over, descriptors go and the environment isn't there yet."""
    for _ in range(6000):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if file.read().split(b"\0")[0].endswith(b"sleep"):
                return
        select.select([], [], [], 0.01)
    pytest.fail(f"process {pid} never became its program")


def test_a_stop_ends_the_machine_with_its_report(stand: Stand) -> None:
    stand.start(argv(stand))
    host = attach(stand)
    assert host.call(PING) == (READY, 0, b"")
    assert host.run("/bin/echo", "hi").stdout == b"hi\n"
    assert host.call(STOP) == (STOPPED, 0, b"")
    assert host.at_end()
    outcome = stand.finish()
    assert (outcome.status, outcome.category, outcome.socket_left) == (0, "success", False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_machine_leaves_no_descendant(stand: Stand, number: int) -> None:
    process = stand.start(argv(stand))
    host = attach(stand)
    pinned = begin(host)
    home = host_home(pinned)
    process.send_signal(number)
    assert process.wait(60) == -number
    all_gone(pinned)
    assert not os.path.exists(home)


def host_home(pinned: dict[int, int]) -> str:
    """`$HOME` of the workload, read from outside."""
    pid = next(iter(pinned.values()))
    with open(f"/proc/{pid}/environ", "rb") as file:
        entries = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if entry)
    home = os.fsdecode(entries[b"HOME"])
    assert os.path.isdir(home)
    return home


def held_by(pid: int) -> Iterator[tuple[int, int]]:
    """What a process has open; what its loader opens and closes meanwhile may be gone before it is looked at."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f"/proc/{pid}/fd/{number}")
            yield found.st_dev, found.st_ino


def test_nothing_of_the_guest_holds_the_log(stand: Stand) -> None:
    stand.start(argv(stand))
    host = attach(stand)
    pinned = begin(host)
    log = os.stat(stand.path / "openvmm.log")
    kernel = os.stat(stand.path / "kernel")
    for pid in pinned.values():
        inodes = set(held_by(pid))
        assert (log.st_dev, log.st_ino) not in inodes
        assert (kernel.st_dev, kernel.st_ino) not in inodes
    host.close()
    all_gone({pin: pid for pin, pid in pinned.items() if pid != list(pinned.values())[2]})
    os.close(list(pinned)[2])
    assert attach(stand).call(STOP) == (STOPPED, 0, b"")


def test_a_machine_whose_harness_is_gone_ends_with_its_guest(stand: Stand, channel: Channel) -> None:
    process = stand.start(argv(stand), side={"channel": channel.path})
    connection = channel.accept()
    pinned = begin(attach(stand))
    connection.close()
    assert process.wait(60) == 75
    all_gone(pinned)


@pytest.mark.parametrize("point", ["guest_boot", "guest_attach", "before_ready"])
def test_the_guest_is_held_until_the_harness_lets_it_go(stand: Stand, channel: Channel, point: str) -> None:
    stand.start(argv(stand), side={"channel": channel.path, "pauses": [point]})
    connection = channel.accept()
    if point != "before_ready":
        connection.paused(point)
    host = connect(stand)
    host.show(CAPABILITY)
    if point == "guest_attach":
        assert host.record().type == WAITING
    if point == "before_ready":
        connection.paused(point)
    host.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        host.record()
    host.socket.settimeout(60)
    connection.send(resume=point)
    record = host.record()
    assert record.type == 7
    host.instance, host.epoch, host.received = record.instance, record.epoch, record.sequence + 1
    assert host.call(STOP) == (STOPPED, 0, b"")
    assert stand.finish().status == 0


def test_the_harness_reboots_the_guest_when_it_likes(stand: Stand, channel: Channel) -> None:
    side = {"channel": channel.path, "pauses": ["guest_trigger#1"], "knobs": {"reboot_at": ["guest_trigger"]}}
    stand.start(argv(stand), side=side)
    connection = channel.accept()
    host = attach(stand)
    connection.paused("guest_trigger")
    assert host.call(PING) == (READY, 0, b"")
    connection.send(resume="guest_trigger")
    assert host.at_end()
    again = attach(stand)
    assert (again.instance, again.epoch) == (host.instance, 1)


@pytest.mark.parametrize(
    ("knobs", "status"),
    [({"exit_at": {"after_ready": 3}}, 3), ({"crash_at": {"after_ready": 9}}, -9)],
)
def test_a_machine_that_crashes_after_ready(stand: Stand, knobs: dict[str, Any], status: int) -> None:
    stand.start(argv(stand), side={"knobs": knobs})
    host = attach(stand)
    assert host.at_end()
    outcome = stand.finish()
    assert (outcome.status, outcome.report, outcome.socket_left) == (status, None, True)


def test_a_guest_that_refuses_to_boot_is_a_guest_exit(stand: Stand) -> None:
    (stand.path / "distro").write_bytes(bytes(8192))
    stand.start(argv(stand))
    outcome = stand.finish()
    assert (outcome.status, outcome.category) == (125, "guest-exit")
    assert "NVX-MANAGED-ERROR: stage=init status=125\n" in outcome.log
    assert "guest halted" in outcome.log


def test_the_evidence_tells_the_story_in_order(stand: Stand) -> None:
    stand.start(argv(stand), side={})
    host = attach(stand)
    host.call(PING)
    host.run("/bin/true")
    host.call(STOP)
    assert stand.finish().status == 0
    events = stand.evidence()
    kinds = [event["kind"] for event in events]
    wanted = ["guest", "host", "session", "request", "exec", "exit_status", "guest_exit", "report", "exit"]
    at = -1
    for kind in wanted:
        at = kinds.index(kind, at + 1)
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert [event["name"] for event in events if event["kind"] == "request"] == ["PING", "EXEC", "STOP"]
    assert stand.evidence("guest")[0]["layers"][0]["filesystem"] == "erofs"
    assert CAPABILITY.hex() not in repr(events)
