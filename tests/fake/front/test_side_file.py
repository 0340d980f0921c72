"""The side file: what the harness sees, and every way in which it makes the program misbehave."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.openvmm_channel import Channel
from tests.support.openvmm_stand import Stand

POINTS = [
    "before_capability",
    "before_bind",
    "after_bind",
    "before_open:distro",
    "before_open:scratch",
    "before_open:kernel",
    "before_open:initrd",
    "before_guest",
    "before_teardown",
    "before_publish",
    "before_exit",
]


def peer(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", raw)[0])


def test_the_evidence_of_a_whole_run(stand: Stand) -> None:
    before = time.monotonic_ns()
    stand.start(stand.argv(), side={}, env={"ONLY": "this", "PATH": "/bin"})
    process = stand.process
    assert process is not None
    assert stand.finish().status == 0
    events = stand.evidence()
    times = [event["time"] for event in events]
    assert times == sorted(times)
    assert before <= times[0]
    start = stand.evidence("start")[0]
    assert start["argv"] == stand.argv()
    assert start["pid"] == process.pid
    assert start["token"] == stand.token
    assert start["environment"] == ["ONLY", "PATH"]
    assert start["cwd"] == os.path.realpath(stand.path)
    assert "this" not in json.dumps(events)
    assert [event["point"] for event in stand.evidence("at")] == POINTS
    opened = {event["role"]: event for event in stand.evidence("opened")}
    for role in ("distro", "scratch", "kernel", "initrd"):
        found = (stand.path / role).stat()
        shown = opened[role]
        assert (shown["device"], shown["inode"], shown["size"]) == (found.st_dev, found.st_ino, found.st_size)
        assert shown["readonly"] == (role != "scratch")
    assert [event["status"] for event in stand.evidence("exit")] == [0]
    assert Path(stand.evidence("report")[0]["path"]).exists()


def test_the_descriptor_table_shows_what_was_inherited_and_nothing_else(stand: Stand) -> None:
    with open(stand.path / "distro", "rb") as image:
        number = fcntl.fcntl(image.fileno(), fcntl.F_DUPFD, 200)
        inode = os.fstat(number).st_ino
        blocks = f"distro:file:/proc/self/fd/{number},ro +microvm-sandbox-block=scratch:file:@/scratch"
        stand.start(stand.argv(f"microvm-sandbox-block={blocks}"), side={}, pass_fds=[number])
        os.close(number)
    outcome = stand.finish()
    assert outcome.status == 0, outcome.log
    table = stand.evidence("descriptors")[0]["table"]
    assert [entry[0] for entry in table] == [0, 1, 2, 200]
    assert table[3][2] == inode
    assert table[3][3] & os.O_ACCMODE == os.O_RDONLY
    assert not table[3][3] & os.O_CLOEXEC
    assert next(event for event in stand.evidence("opened") if event["role"] == "distro")["inode"] == inode


@pytest.mark.parametrize("place", [".", ".."], ids=["beside the kernel", "at the release's root"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"openvmm": {"microvm_abi_version": 2}, "nvx": {}}', {"openvmm": {"microvm_abi_version": 2}}),
        ("{}", {"fault": "no openvmm section"}),
        ("[", {"fault": "Expecting value: line 1 column 2 (char 1)"}),
    ],
)
def test_the_evidence_names_the_kernels_release(stand: Stand, place: str, text: str, told: dict[str, Any]) -> None:
    release = stand.path / "release"
    (release / "guest").mkdir(parents=True)
    (release / "guest/vmlinux").write_bytes((stand.path / "kernel").read_bytes())
    manifest = (release / "guest" / place / "SOURCE-MANIFEST.json").resolve()
    manifest.write_text(text)
    stand.start(stand.argv("kernel=@/release/guest/vmlinux"), side={})
    assert stand.finish().status == 0
    (found,) = stand.evidence("manifest")
    assert {name: found[name] for name in found if name not in {"time", "kind"}} == {"path": str(manifest), **told}


def test_a_kernel_of_no_release_is_no_fault(stand: Stand) -> None:
    stand.start(stand.argv(), side={})
    assert stand.finish().status == 0
    assert stand.evidence("manifest") == []


def test_evidence_of_a_refused_launch(stand: Stand) -> None:
    assert stand.run("!--bogus", side={}).status == 2
    assert [event["kind"] for event in stand.evidence()] == ["start", "descriptors", "at", "exit"]


@pytest.mark.parametrize(
    ("side", "text"),
    [
        ({"knobs": {"no_such_knob": 1}}, "unknown knob 'no_such_knob'"),
        ({"knobs": {"old_limit": "yes"}}, "knob 'old_limit' must be a flag"),
        ({"knobs": []}, None),
        ({"knobs": [1]}, "'knobs' is an object"),
        ({"pauses": ["before_bind"]}, "need a channel"),
        ({"pauses": ["before_lunch"], "channel": "x"}, "no pause point"),
        ({"pause": []}, "unknown keys"),
        ({"token": 3}, "'token' is a text"),
        ({"channel": "/nonexistent/channel"}, "can't reach the harness"),
        ({"evidence": "/nonexistent"}, "can't write evidence"),
        ({"knobs": {"exit_at": {"nowhere": 1}}}, "no pause point"),
        ({"knobs": {"fail_at": {"before_bind": 1}}}, "can't hold"),
        ({"knobs": {"helper_keeps_log": True}}, "need a channel"),
    ],
)
def test_a_wrong_side_file_is_loud(stand: Stand, side: dict[str, Any], text: str | None) -> None:
    outcome = stand.run(side=side)
    assert outcome.status == (64 if text else 0)
    assert (text or "") in outcome.log
    if text:
        assert outcome.log.startswith("fake-openvmm: ")
        assert outcome.report is None


def test_a_side_file_that_is_not_there_is_loud(stand: Stand) -> None:
    command = stand.command({}) + stand.argv()
    (stand.path / "side.json").unlink()
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert run.returncode == 64
    assert "No such file" in run.stderr
    (stand.path / "side.json").write_text("{")
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert run.returncode == 64
    assert run.stdout == ""


@pytest.mark.parametrize("point", POINTS)
def test_the_program_holds_at_each_point_until_it_is_told(stand: Stand, channel: Channel, point: str) -> None:
    process = stand.start(stand.argv(), side={"channel": channel.path, "pauses": [point]})
    program = channel.accept()
    assert program.hello == {"pid": process.pid, "token": stand.token}
    program.paused(point)
    assert process.poll() is None
    program.send(resume=point)
    assert stand.finish().status == 0
    assert [event["point"] for event in stand.evidence("resumed")] == [point]


def test_a_pause_may_be_asked_for_under_way(stand: Stand, channel: Channel) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["before_bind"]})
    program = channel.accept()
    program.paused("before_bind")
    program.send(pause="before_exit")
    program.send(resume="before_bind")
    program.paused("before_exit")
    program.send(resume="before_exit")
    assert stand.finish().status == 0


@pytest.mark.parametrize("point", ["before_bind", "before_guest", "before_exit"])
def test_the_program_ends_with_its_harness(stand: Stand, channel: Channel, point: str) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": [point]})
    program = channel.accept()
    program.paused(point)
    channel.close()
    assert stand.finish().status == 75


@pytest.mark.parametrize("message", [{"resume": "before_exit"}, {"pause": "nowhere"}, {"stop": "it"}])
def test_nonsense_on_the_channel_ends_the_program_loudly(
    stand: Stand, channel: Channel, message: dict[str, str]
) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["before_bind"]})
    program = channel.accept()
    program.paused("before_bind")
    program.send(**message)
    outcome = stand.finish()
    assert outcome.status == 75
    assert "fake-openvmm: channel: " in outcome.log
    assert stand.evidence("lost")


@pytest.mark.parametrize("point", POINTS)
def test_it_ends_at_once_with_a_status(stand: Stand, point: str) -> None:
    outcome = stand.run(side={"knobs": {"exit_at": {point: 3}}})
    assert outcome.status == 3
    assert (outcome.report is not None) == (point == "before_exit")
    assert outcome.socket_left == (POINTS.index("before_bind") < POINTS.index(point) < POINTS.index("before_publish"))


@pytest.mark.parametrize("point", POINTS[:-1])
def test_it_fails_in_the_ordinary_way(stand: Stand, point: str) -> None:
    outcome = stand.run(side={"knobs": {"fail_at": {point: "as you wish"}}})
    assert outcome.status == 1
    assert "as you wish" in outcome.log.splitlines()[-1]
    assert outcome.category == (None if point == "before_publish" else "vmm-failure")
    assert not outcome.socket_left


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_it_crashes(stand: Stand, number: int) -> None:
    outcome = stand.run(side={"knobs": {"crash_at": {"before_guest": int(number)}}})
    assert outcome.status == -number
    assert outcome.socket_left
    assert outcome.report is None


def test_it_never_exits(stand: Stand) -> None:
    process = stand.start(stand.argv(), side={"knobs": {"never_exit": True}})
    while not stand.evidence("report"):
        os.sched_yield()
    with pytest.raises(Exception, match="timed out"):
        process.wait(0.2)
    process.terminate()
    assert stand.finish().status == -signal.SIGTERM
    assert (stand.path / "outcome.json").exists()


def test_other_endings(stand: Stand) -> None:
    assert stand.run(side={"knobs": {"exit_status": 9, "slow_exit_ms": 1}}).category == "success"
    (stand.path / "outcome.json").unlink()
    assert stand.run(side={"knobs": {"exit_status": 9}}).status == 9
    (stand.path / "outcome.json").unlink()
    assert stand.run(side={"knobs": {"no_report": True}}).report is None
    assert stand.run(side={"knobs": {"report_text": '{"schema_version": 2}'}}).report == {"schema_version": 2}
    (stand.path / "outcome.json").unlink()
    outcome = stand.run(side={"knobs": {"report_fails": True}})
    assert (outcome.status, outcome.report) == (1, None)
    outcome = stand.run(side={"knobs": {"leave_staging": True}})
    assert outcome.status == 0
    staging = [name for name in os.listdir(stand.path) if name.startswith(".tmp")]
    assert (stand.path / staging[0]).stat().st_ino == (stand.path / "outcome.json").stat().st_ino


def test_a_stale_socket_is_left_behind(stand: Stand) -> None:
    outcome = stand.run(side={"knobs": {"leave_socket": True}})
    assert outcome.status == 0
    assert outcome.socket_left
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(stand.path / "control.sock"))


def test_it_removes_a_newer_socket(stand: Stand, channel: Channel) -> None:
    side = {"channel": channel.path, "pauses": ["before_teardown"], "knobs": {"unlink_any_socket": True}}
    stand.start(stand.argv(), side=side)
    program = channel.accept()
    program.paused("before_teardown")
    path = stand.path / "control.sock"
    path.unlink()
    path.write_text("newer")
    program.send(resume="before_teardown")
    assert not stand.finish().socket_left


def test_another_mode_and_a_deaf_socket(stand: Stand, channel: Channel) -> None:
    knobs = {"socket_mode": 0o666, "no_listen": True}
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["after_bind"], "knobs": knobs})
    program = channel.accept()
    program.paused("after_bind")
    path = stand.path / "control.sock"
    assert path.stat().st_mode & 0o777 == 0o666
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(path))
    program.send(resume="after_bind")
    assert stand.finish().status == 0


@pytest.mark.parametrize(("name", "raw"), [("a) Z 1 (b", b"a) Z 1 (b"), ("x\udcff\udcfey", b"x\xff\xfey")])
def test_the_process_has_any_name(stand: Stand, channel: Channel, name: str, raw: bytes) -> None:
    side = {"channel": channel.path, "pauses": ["before_bind"], "knobs": {"process_name": name}}
    process = stand.start(stand.argv(), side=side)
    program = channel.accept()
    program.paused("before_bind")
    assert Path(f"/proc/{process.pid}/stat").read_bytes().startswith(f"{process.pid} (".encode() + raw + b") ")
    program.send(resume="before_bind")
    assert stand.finish().status == 0


@pytest.mark.parametrize("stay", ["alive", "gone"])
def test_another_process_is_the_endpoints_server(stand: Stand, channel: Channel, stay: str) -> None:
    side = {"channel": channel.path, "pauses": ["after_bind"], "knobs": {"wrong_server": stay}}
    process = stand.start(stand.argv(), side=side)
    program = channel.accept()
    program.paused("after_bind")
    server = stand.evidence("server")[0]["pid"]
    assert peer(stand.path / "control.sock") == server != process.pid
    assert os.path.exists(f"/proc/{server}") == (stay == "alive")
    if stay == "alive":
        assert {os.readlink(f"/proc/{server}/fd/{number}") for number in (0, 1, 2)} == {"/dev/null"}
    program.send(resume="after_bind")
    assert stand.finish().status == 0


def test_ordinarily_it_is_the_endpoints_server(stand: Stand, channel: Channel) -> None:
    process = stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["after_bind"]})
    program = channel.accept()
    program.paused("after_bind")
    assert peer(stand.path / "control.sock") == process.pid
    program.send(resume="after_bind")
    assert stand.finish().status == 0


def test_a_helper_keeps_the_log_and_ends_with_the_harness(stand: Stand, channel: Channel) -> None:
    stand.start(stand.argv(), side={"channel": channel.path, "knobs": {"helper_keeps_log": True}})
    helper, program = sorted(
        (channel.accept(), channel.accept()), key=lambda connection: "helper" not in connection.hello
    )
    assert helper.hello["helper"] is True
    assert "helper" not in program.hello
    pid = helper.hello["pid"]
    assert stand.finish().status == 0
    assert stand.evidence("helper")[0]["pid"] == pid
    log = os.path.realpath(stand.path / "openvmm.log")
    held = {number: os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
    assert held["1"] == held["2"] == log
    assert len(held) == 3
    with open(log, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    pidfd = os.pidfd_open(pid)
    helper.close()
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)


def test_the_first_thread_may_end_before_the_others(stand: Stand, channel: Channel) -> None:
    side = {"channel": channel.path, "pauses": ["before_guest"], "knobs": {"leader_exits": True, "exit_code": 7}}
    process = stand.start(stand.argv(), side=side)
    program = channel.accept()
    program.paused("before_guest")
    while not Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].startswith(" Z "):
        os.sched_yield()
    assert process.poll() is None
    assert len(os.listdir(f"/proc/{process.pid}/task")) > 1
    program.send(resume="before_guest")
    assert stand.finish().status == 7


def test_without_the_first_thread_a_signal_still_kills_it(stand: Stand, channel: Channel) -> None:
    side = {"channel": channel.path, "pauses": ["before_guest"], "knobs": {"leader_exits": True}}
    process = stand.start(stand.argv(), side=side)
    channel.accept().paused("before_guest")
    while not Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].startswith(" Z "):
        os.sched_yield()
    process.terminate()
    assert stand.finish().status == -signal.SIGTERM
