"""Contract openvmm 4: the outcome report of every way in which a run ends."""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import pytest

from tests.support.openvmm_channel import Channel
from tests.support.openvmm_stand import Outcome, Stand

NET = "net=10.0.0.2/24 network-profile=portable"
TEARDOWN = (
    "guest_workload_stopped vm_stopped openvmm_process_terminated virtiofs_released network_released "
    "temporary_storage_removed control_channels_closed"
)
NONE = ("not-requested", 0, "none", 0, 0, "none")


def policy(outcome: Outcome) -> tuple[Any, ...]:
    assert outcome.report
    return tuple(outcome.report["network_policy"].values())


def text(instance: str, *, backend: str, outcome: str, policy: str) -> str:
    teardown = ",\n".join(f'    "{name}": true' for name in TEARDOWN.split())
    return (
        '{\n  "schema_version": 1,\n'
        f'  "instance_id": "{instance}",\n  "backend": "{backend}",\n  "outcome": {{\n{outcome}\n  }},\n'
        f'  "network_policy": {{\n{policy}\n  }},\n  "teardown": {{\n{teardown}\n  }}\n}}\n'
    )


def test_the_report_byte_for_byte(stand: Stand) -> None:
    outcome = stand.run()
    assert outcome.report
    instance = outcome.report["instance_id"]
    assert re.fullmatch("[0-9a-f]{32}", instance)
    assert outcome.report_path.read_text() == text(
        instance,
        backend="kvm",
        outcome='    "operation": "managed",\n    "category": "success",\n    "status_code": 0',
        policy='    "status": "not-requested",\n    "status_code": 0,\n    "mode": "none",\n'
        '    "allow_rule_count": 0,\n    "deny_rule_count": 0,\n    "host_loopback": "none"',
    )
    assert stat.S_IMODE(outcome.report_path.stat().st_mode) == 0o600
    assert outcome.report_path.stat().st_nlink == 1


def test_every_run_has_an_instance_of_its_own(stand: Stand) -> None:
    first = stand.run().report
    (stand.path / "outcome.json").unlink()
    second = stand.run().report
    assert first
    assert second
    assert first["instance_id"] != second["instance_id"]


@pytest.mark.parametrize(
    ("status", "category"), [(0, "success"), (1, "guest-exit"), (125, "guest-exit"), (255, "guest-exit")]
)
def test_the_guests_status_is_the_programs(stand: Stand, status: int, category: str) -> None:
    outcome = stand.run(side={"knobs": {"exit_code": status}})
    assert outcome.status == status
    assert outcome.report
    assert outcome.report["outcome"] == {"operation": "managed", "category": category, "status_code": status}
    assert "fatal error" not in outcome.log


@pytest.mark.parametrize(
    ("changes", "operation"),
    [
        ("", "managed"),
        ("microvm-lifecycle=one-shot", "run"),
        ("~microvm-lifecycle", "run"),
        ("!--snapshot-destination !x", "capture"),
        ("!--restore-snapshot !x", "restore"),
        ("!--restore-snapshot !x !--snapshot-destination !x", "restore"),
    ],
)
def test_the_operation(stand: Stand, changes: str, operation: str) -> None:
    outcome = stand.run(changes)
    assert outcome.report
    assert outcome.report["outcome"]["operation"] == operation


@pytest.mark.parametrize(
    ("changes", "backend"),
    [("~hypervisor", "auto"), ("hypervisor=kvm:a=b", "kvm"), ("hypervisor=mshv", "mshv"), ("hypervisor=whp", "whp")],
)
def test_the_backend(stand: Stand, changes: str, backend: str) -> None:
    outcome = stand.run(changes)
    assert outcome.report
    assert outcome.report["backend"] == backend


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("", NONE),
        ("kernel=@/absent", NONE),
        ("net-tap=tap0", NONE),
        (NET, ("applied", 0, "allow-all", 0, 0, "allow")),
        (f"{NET} kernel=@/absent", ("failed", 1, "allow-all", 0, 0, "allow")),
        ("net=10.0.0.2/24", ("failed", 1, "allow-all", 0, 0, "allow")),
        ("network-profile=portable", ("failed", 1, "allow-all", 0, 0, "allow")),
        (f"{NET} network-egress=deny host-loopback=deny", ("applied", 0, "deny-all", 0, 0, "deny")),
        (f"{NET} network-ingress=deny", ("applied", 0, "allow-all", 0, 0, "allow")),
        (
            (
                f"{NET} network-egress=deny network-egress-allow=10.1.0.0/16 +network-egress-allow=10.2.0.0/16 "
                "network-egress-deny=10.3.0.0/16"
            ),
            ("applied", 0, "rules", 2, 1, "allow"),
        ),
        (f"{NET} allow-host=10.1.0.1 +allow-host=10.1.0.2", ("applied", 0, "allow-list", 2, 0, "allow")),
        (f"{NET} block-host=10.1.0.1", ("applied", 0, "block-list", 0, 1, "allow")),
        (f"{NET} allow-endpoint=10.1.0.1:443", ("applied", 0, "endpoint", 1, 0, "allow")),
        (f"{NET} network-egress=deny allow-host=10.1.0.1", ("applied", 0, "allow-list", 1, 0, "allow")),
        (f"{NET} host-loopback=allow", ("failed", 1, "allow-all", 0, 0, "allow")),
        ("network-proxy=10.0.0.1:80", ("failed", 1, "allow-all", 0, 0, "allow")),
    ],
)
def test_the_network_policy(stand: Stand, changes: str, expected: tuple[Any, ...]) -> None:
    assert policy(stand.run(changes)) == expected


@pytest.mark.parametrize(("broken", "stopped", "closed"), [("vm", False, False), ("control", True, False)])
def test_a_teardown_failure(stand: Stand, broken: str, *, stopped: bool, closed: bool) -> None:
    outcome = stand.run(NET, side={"knobs": {"teardown_fails": broken}})
    assert outcome.status == 1
    assert outcome.report
    assert outcome.report["outcome"] == {"operation": "managed", "category": "teardown-failure", "status_code": 1}
    assert policy(outcome)[:2] == ("applied", 0)
    assert list(outcome.report["teardown"]) == TEARDOWN.split()
    assert tuple(outcome.report["teardown"].values()) == (stopped, stopped, True, stopped, stopped, True, closed)
    assert outcome.log.splitlines()[-1].startswith("fatal error: ")


def test_a_worker_that_died_counts_as_a_guest_exit(stand: Stand) -> None:
    stand.guest = """
from fake_openvmm.machine import WorkerDied
def run(config, opened, tools):
    raise WorkerDied("the VM worker is gone")
"""
    outcome = stand.run()
    assert outcome.status == 1
    assert outcome.report
    assert outcome.report["outcome"] == {"operation": "managed", "category": "guest-exit", "status_code": 1}
    assert "the VM worker is gone" in outcome.log


def test_the_machine_may_fail_like_the_program(stand: Stand) -> None:
    stand.guest = """
from fake_openvmm.machine import Failure
def run(config, opened, tools):
    raise Failure("no partition")
"""
    outcome = stand.run()
    assert (outcome.status, outcome.category) == (1, "vmm-failure")
    assert outcome.log.splitlines()[-1] == "fatal error: no partition"


def test_without_the_option_nothing_is_written(stand: Stand) -> None:
    before = {"kernel", "initrd", "distro", "scratch", "launch.py", "openvmm.log"}
    assert stand.run("~microvm-report").status == 0
    assert {path.name for path in stand.path.iterdir()} == before


@pytest.mark.parametrize("changes", ["!--help", "!--version", "!-h", "!-V"])
def test_help_and_version_end_the_program_at_once(stand: Stand, changes: str) -> None:
    outcome = stand.run(f"!--help {changes}" if changes == "!--help" else f"~machine {changes}")
    assert outcome.status == 0
    assert outcome.report is None


def test_help_lists_every_option_and_what_is_unsupported(stand: Stand) -> None:
    shown = stand.run("!--help").log
    for name, _ in stand.base():
        assert f"--{name}" in shown
    assert "--restore-snapshot" in shown.partition("Unsupported here")[2]
    assert "restore that validates without rewriting" in shown


def test_an_error_before_help_comes_first(stand: Stand) -> None:
    assert stand.run("!--bogus !--help").status == 2


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link", "no parent", "file parent", "link parent"])
def test_a_bad_destination_is_left_alone_and_ends_the_run(stand: Stand, kind: str) -> None:
    target, parent = stand.path / "d" / "o.json", stand.path / "d"
    if kind == "link parent":
        (stand.path / "real").mkdir()
        os.symlink("real", parent)
    elif kind == "file parent":
        parent.write_text("x")
    elif kind != "no parent":
        parent.mkdir()
    if kind == "file":
        target.write_text("mine")
    elif kind == "directory":
        target.mkdir()
    elif kind == "dangling link":
        os.symlink("nowhere", target)
    outcome = stand.run("microvm-report=@/d/o.json", side={})
    assert outcome.status == 1
    assert "report" in outcome.log.splitlines()[-1]
    assert not stand.evidence("listening")
    if kind == "file":
        assert target.read_text() == "mine"
    if parent.is_dir():
        assert len(list(parent.iterdir())) == (kind in ("file", "directory", "dangling link"))


def test_a_relative_destination_is_taken_from_the_working_directory(stand: Stand) -> None:
    assert stand.run("microvm-report=relative.json").status == 0
    assert (stand.path / "relative.json").exists()


def nowhere(stand: Stand, side: dict[str, Any] | None = None) -> list[str]:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    return ["/bin/sh", "-c", script, "sh", *Stand.command(stand, side)]


def test_absolute_paths_need_no_working_directory(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    (stand.path / "share").mkdir()
    monkeypatch.setattr(stand, "command", lambda side=None: nowhere(stand, side))
    outcome = stand.run("mount=/mnt/s,@/share", side={})
    assert (outcome.status, outcome.category) == (0, "success")


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ("microvm-report=relative.json", None),
        ("microvm-control-console=listen=c.sock", "vmm-failure"),
        ("mount=/mnt/s,share", "vmm-failure"),
    ],
)
def test_a_relative_path_without_a_working_directory_is_a_failure(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, changes: str, category: str | None
) -> None:
    monkeypatch.setattr(stand, "command", lambda side=None: nowhere(stand, side))
    outcome = stand.run(changes)
    assert (outcome.status, outcome.category) == (1, category)
    assert re.search("^fatal error: failed to resolve the microVM ", outcome.log, re.MULTILINE)


@pytest.mark.parametrize("by_link", [False, True])
def test_it_is_staged_and_then_published(stand: Stand, channel: Channel, *, by_link: bool) -> None:
    side = {
        "channel": channel.path,
        "pauses": ["before_publish", "before_exit"],
        "knobs": {"report_by_link": by_link},
    }
    stand.start(stand.argv(), side=side)
    program = channel.accept()
    program.paused("before_publish")
    staging = [name for name in os.listdir(stand.path) if name.startswith(".tmp")]
    assert len(staging) == 1
    assert re.fullmatch(r"\.tmp[A-Za-z0-9]{6}", staging[0])
    found = (stand.path / staging[0]).stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert (stand.path / staging[0]).read_text().endswith("}\n")
    assert not (stand.path / "outcome.json").exists()
    assert not (stand.path / "control.sock").exists()
    program.send(resume="before_publish")
    program.paused("before_exit")
    assert (stand.path / "outcome.json").stat().st_ino == found.st_ino
    assert not (stand.path / staging[0]).exists()
    program.send(resume="before_exit")
    assert stand.finish().status == 0


@pytest.mark.parametrize("by_link", [False, True])
def test_it_never_replaces_what_came_in_between(stand: Stand, channel: Channel, *, by_link: bool) -> None:
    knobs = {"report_by_link": by_link}
    stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["before_publish"], "knobs": knobs})
    program = channel.accept()
    program.paused("before_publish")
    (stand.path / "outcome.json").write_text("{}")
    program.send(resume="before_publish")
    outcome = stand.finish()
    assert outcome.status == 1
    assert outcome.report == {}
    assert "failed to publish" in outcome.log.splitlines()[-1]
    assert not [name for name in os.listdir(stand.path) if name.startswith(".tmp")]


def test_a_kill_in_the_window_leaves_the_staging_file(stand: Stand, channel: Channel) -> None:
    process = stand.start(stand.argv(), side={"channel": channel.path, "pauses": ["before_publish"]})
    channel.accept().paused("before_publish")
    process.kill()
    outcome = stand.finish()
    assert outcome.report is None
    assert len([name for name in os.listdir(stand.path) if name.startswith(".tmp")]) == 1


def test_the_report_tells_no_secret(stand: Stand) -> None:
    stand.run(f"{NET} network-egress=deny network-egress-allow=10.9.8.7/32 kernel=@/absent")
    shown = (stand.path / "outcome.json").read_text()
    for hidden in (str(stand.path), "10.9.8.7", "10.0.0.2", "absent", "nvx_sandbox"):
        assert hidden not in shown
