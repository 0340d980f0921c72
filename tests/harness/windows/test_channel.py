"""The channel over a named pipe: who is there, whoever comes before anybody looks, and the lifeline."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wine

wine.only_windows()

from harness import python
from harness.channel import Channel
from harness.errors import HarnessError
from harness.platform import choose_channel
from harness.platform.pipes import AHEAD, PipeDoor
from harness.witness import access, host
from harness.witness.processes import Processes
from tests.harness.stubs import SOON

FAKE = """
import json, os
from fake_openvmm.windows.channel import Channel
channel = Channel(sys.argv[1])
def say(**message):
    channel.sendall(json.dumps(message).encode() + b"\\n")
say(hello={"pid": os.getpid() + int(sys.argv[3]), "token": sys.argv[2]})
say(paused="before_bind", hit=1)
for line in channel.makefile("r", encoding="utf-8"):
    assert json.loads(line) == {"resume": "before_bind"}
    say(paused="before_exit", hit=1)
os._exit(75)
"""

HARNESS = """
from harness.platform.pipes import PipeDoor
from harness.deadline import Clock
door = PipeDoor(sys.argv[1])
print("open", flush=True)
door.wait([], Clock().after(60))
line = door.accept()
print(line.client, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def token() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def name() -> str:
    return choose_channel("")


@pytest.fixture
def channel(tmp_path: Path, name: str, token: str) -> Iterator[Channel]:
    processes = Processes(host(), needle=str(tmp_path / "vmm.py"), token=token, root=str(tmp_path / "s"))
    found = Channel(name, token=token, processes=processes, host=host())
    yield found
    found.close()
    processes.close()


@contextmanager
def fake(tmp_path: Path, name: str, token: str, *, other: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    command = python.write_script(str(tmp_path / "fake.py"), packages=("fake_openvmm",), body=FAKE)
    with subprocess.Popen([*command, name, token, str(other)]) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.case("T62")
def test_a_fake_is_held_goes_on_and_ends_with_its_lifeline(
    tmp_path: Path, channel: Channel, name: str, token: str
) -> None:
    with fake(tmp_path, name, token) as child:
        peer = channel.wait_paused("before_bind", SOON(60))
        assert (peer.pid, peer.line.client) == (child.pid, child.pid)
        channel.resume(peer)
        channel.wait_paused("before_exit", SOON(60))
        assert peer.passed == ["before_bind#1", "before_exit#1"]
        channel.close()
        assert child.wait(60) == 75


def test_a_number_that_isn_t_the_client_s_is_refused(tmp_path: Path, channel: Channel, name: str, token: str) -> None:
    with fake(tmp_path, name, token, other=4) as child, pytest.raises(HarnessError, match=f"pid {child.pid} said"):
        channel.wait_paused("before_bind", SOON(60))


def test_a_fake_that_died_is_gone(tmp_path: Path, channel: Channel, name: str, token: str) -> None:
    with fake(tmp_path, name, token) as child:
        peer = channel.wait_paused("before_bind", SOON(60))
        child.kill()
        deadline = SOON(60)
        while not peer.gone and not deadline.expired():
            channel.pump(deadline)
        assert peer.gone
        channel.resume(peer)
        channel.forget()
        assert channel.peers == []


@pytest.mark.case("T62")
def test_a_harness_that_is_killed_ends_its_fakes(tmp_path: Path, name: str, token: str) -> None:
    command = python.write_script(str(tmp_path / "harness.py"), packages=("harness",), body=HARNESS)
    with subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline().strip() == b"open"
        # One that was let in, and one that nobody has looked at.
        with fake(tmp_path, name, token) as first:
            assert int(harness.stdout.readline()) == first.pid
            with fake(tmp_path, name, token) as second:
                harness.kill()
                assert (first.wait(60), second.wait(60)) in {(75, 75), (75, 1)}


def test_more_fakes_than_doors_come_in_once_somebody_looks(name: str) -> None:
    from fake_openvmm.windows.channel import Channel as Client  # noqa: PLC0415 - only Windows has it

    door = PipeDoor(name)
    clients = [Client(name) for _ in range(AHEAD)]
    with pytest.raises(OSError, match="nvx-channel"), open(name, "r+b", buffering=0):
        pass
    for number, client in enumerate(clients):
        client.sendall(json.dumps(number).encode())
    lines = []
    said = set()
    deadline = SOON(60)
    while len(said) < len(clients) and not deadline.expired():
        door.wait([line for line, _ in lines], deadline)
        while (line := door.accept()) is not None:
            lines.append((line, line.client))
        said |= {data for line, _ in lines if (data := line.read())}
    assert said == {json.dumps(number).encode() for number in range(AHEAD)}
    assert {client for _, client in lines} == {os.getpid()}
    more = Client(name)
    more.sendall(b"more")
    door.wait([], deadline)
    last = door.accept()
    assert last is not None
    for line in (last, *(line for line, _ in lines)):
        line.close()
    door.close()
    assert [client.receive(1) for client in (*clients, more)] == [b""] * (AHEAD + 1)


@wine.differs("a pipe that somebody serves can be served by somebody else too")
def test_a_name_that_somebody_serves_is_no_channel(name: str) -> None:
    door = PipeDoor(name)
    try:
        with pytest.raises(OSError, match="denied"):
            PipeDoor(name)
    finally:
        door.close()


def test_only_this_user_and_the_system_may_come_in(name: str) -> None:
    door = PipeDoor(name)
    try:
        listed = access.describe(name.replace("/", "\\"))
        assert access.others(f"O:{access.own_sid()}{listed[listed.index('D:') :]}") == []
        assert "SY" in listed
    finally:
        door.close()
