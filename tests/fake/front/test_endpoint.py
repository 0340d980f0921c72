"""Contract openvmm 1.4 and 5: when the control socket appears, what it is, and when it goes."""

from __future__ import annotations

import os
import signal
import socket
import stat

import pytest

from tests.support.openvmm_channel import Channel
from tests.support.openvmm_stand import Stand


def test_the_socket_is_private_and_there_before_anything_is_opened(stand: Stand, channel: Channel) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["before_bind", "before_open:distro"]})
    program = channel.accept()
    path = stand.path / "control.sock"
    program.paused("before_bind")
    assert not path.exists()
    program.send(resume="before_bind")
    program.paused("before_open:distro")
    found = path.lstat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    event = stand.evidence("listening")[0]
    assert (event["path"], event["device"], event["inode"]) == (str(path), found.st_dev, found.st_ino)
    assert not stand.evidence("opened")
    program.send(resume="before_open:distro")
    outcome = stand.finish()
    assert outcome.status == 0
    assert not outcome.socket_left


def test_the_mode_does_not_depend_on_the_umask(stand: Stand, channel: Channel) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["after_bind"]}, umask=0)
    program = channel.accept()
    program.paused("after_bind")
    assert stat.S_IMODE((stand.path / "control.sock").lstat().st_mode) == 0o600
    program.send(resume="after_bind")
    assert stand.finish().status == 0


def test_two_clients_may_connect_before_anybody_is_served(stand: Stand, channel: Channel) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["after_bind"]})
    program = channel.accept()
    program.paused("after_bind")
    clients = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    for client in clients:
        client.connect(str(stand.path / "control.sock"))
        client.close()
    program.send(resume="after_bind")
    assert stand.finish().status == 0


@pytest.mark.parametrize("what", ["another socket", "a file", "nothing"])
def test_only_its_own_socket_is_removed(stand: Stand, channel: Channel, what: str) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["before_teardown"]})
    program = channel.accept()
    program.paused("before_teardown")
    path = stand.path / "control.sock"
    path.unlink()
    other = socket.socket(socket.AF_UNIX)
    if what == "another socket":
        other.bind(str(path))
    elif what == "a file":
        path.write_text("mine")
    program.send(resume="before_teardown")
    outcome = stand.finish()
    assert outcome.status == 0
    assert outcome.socket_left == (what != "nothing")
    assert [event["removed"] for event in stand.evidence("removed")] == [False]
    other.close()


def test_an_existing_socket_is_refused_and_stays(stand: Stand) -> None:
    path = stand.path / "control.sock"
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(path))
    inode = path.lstat().st_ino
    outcome = stand.run()
    assert outcome.status == 1
    assert "failed to bind" in outcome.log
    assert path.lstat().st_ino == inode
    other.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("watched", [True, False])
def test_a_signal_kills_it_and_leaves_the_socket_and_no_report(stand: Stand, number: int, *, watched: bool) -> None:
    ready, started = os.pipe()
    stand.guest = f"""
import os, select
def run(config, opened, tools):
    os.write({started}, b"r")
    while True:
        # A signal that comes right before a wait without an end would be handled after it.
        select.select([], [], [], 0.1)
"""
    process = stand.start(stand.argv(), side={} if watched else None, pass_fds=[started])
    os.close(started)
    assert os.read(ready, 1) == b"r"
    os.close(ready)
    process.send_signal(number)
    outcome = stand.finish()
    assert outcome.status == -number
    assert outcome.socket_left
    assert outcome.report is None
    assert "fatal error" not in outcome.log
    if watched and number != signal.SIGKILL:
        assert [event["number"] for event in stand.evidence("signal")] == [number]


def test_a_signal_that_the_launcher_ignores_stays_ignored(stand: Stand) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stand.start(stand.argv(), side={"knobs": {"slow_exit_ms": 300}})
        process = stand.process
    finally:
        signal.signal(signal.SIGINT, before)
    assert process is not None
    while not stand.evidence("report"):
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    assert stand.finish().status == 0


def test_a_boot_console_socket_shows_what_the_guest_writes_and_goes(stand: Stand, channel: Channel) -> None:
    stand.start(
        stand.argv("virtio-console=listen=@/boot.sock"), side={"channel": channel.path, "pauses": ["before_guest"]}
    )
    program = channel.accept()
    program.paused("before_guest")
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(str(stand.path / "boot.sock"))
        program.send(resume="before_guest")
        assert reader.recv(100) == b"hello from hvc1\n"
    assert stand.finish().status == 0
    assert not (stand.path / "boot.sock").exists()


def test_a_boot_console_of_none_drops_what_the_guest_writes(stand: Stand) -> None:
    assert "hello from hvc1" not in stand.run().log


def test_a_boot_console_on_the_console_shows_it(stand: Stand) -> None:
    outcome = stand.run(
        "virtio-console=console ~microvm-control-console ~microvm-control-auth-stdin ~microvm-lifecycle"
    )
    assert outcome.status == 0
    assert "hello from hvc1" in outcome.log


@pytest.mark.parametrize("fault", ["~kernel", "kernel=@/absent", "memory=0", "cmdline=nr_cpus=2", "initrd=@/absent"])
def test_a_later_failure_takes_the_socket_with_it(stand: Stand, fault: str) -> None:
    outcome = stand.run(fault, side={})
    assert outcome.status == 1
    assert stand.evidence("listening")
    assert not outcome.socket_left


@pytest.mark.parametrize(("length", "status"), [(106, 0), (107, 0), (108, 1)])
def test_the_longest_path_of_a_socket(stand: Stand, length: int, status: int) -> None:
    name = "c" * (length - len(str(stand.path)) - 1)
    outcome = stand.run(f"microvm-control-console=listen=@/{name}")
    assert outcome.status == status, outcome.log
    assert not (stand.path / name).exists()
