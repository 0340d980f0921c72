"""Each witness, and a deliberate fault that it must catch: a witness that can't fail proves nothing."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import python
from harness.channel import Channel
from harness.errors import Finding, HarnessError, Late
from harness.witness.contract import Pin, Stat
from harness.witness.evidence import REDACTED, Evidence, listing
from harness.witness.linux import LinuxHost
from harness.witness.processes import Processes, claim_is_held
from tests.harness.stubs import SLEEPER, SOON, host, running


@pytest.fixture
def token() -> str:
    """A token of this test alone: others run at the same time, in other processes."""
    return secrets.token_hex(8)


@pytest.fixture
def launcher(tmp_path: Path) -> str:
    return str(tmp_path / "vmm.py")


@pytest.fixture
def processes(tmp_path: Path, launcher: str, token: str) -> Iterator[Processes]:
    found = Processes(host(), needle=launcher, token=token, root=str(tmp_path / "s"))
    yield found
    found.close()


def test_a_vmm_is_found_by_its_launcher_whatever_else_its_arguments_are(processes: Processes, launcher: str) -> None:
    with running(SLEEPER, launcher, "--machine", "microvm") as vmm:
        assert processes.one("here").pin.pid == vmm.pid
    assert processes.vmms() == []


def test_an_orchestrator_that_only_mentions_the_launcher_is_no_vmm(processes: Processes, launcher: str) -> None:
    with running(SLEEPER, "--openvmm", f"python -I {launcher}"):
        assert processes.vmms() == []


def test_a_vmm_with_the_number_of_an_orchestrator_that_ended_is_found(
    tmp_path: Path, launcher: str, token: str
) -> None:
    class Reused(LinuxHost):
        later = 0

        def stats(self, since: int = 0) -> list[Stat]:
            return [replace(found, start=found.start + self.later) for found in super().stats(since)]

        def stat(self, pid: int) -> Stat | None:
            found = super().stat(pid)
            return replace(found, start=found.start + self.later) if found is not None else None

    reused = Reused()
    processes = Processes(reused, needle=launcher, token=token, root=str(tmp_path / "s"))
    with running(SLEEPER, launcher) as child:
        processes.own(child.pid)
        assert processes.vmms() == []
        reused.later = 1
        assert [one.pin.pid for one in processes.vmms()] == [child.pid]
    processes.close()


def test_two_vmms_are_a_finding(processes: Processes, launcher: str) -> None:
    found = r"start\.spawned: expected exactly one VMM alive, found 2: pid .*; pid "
    with running(SLEEPER, launcher), running(SLEEPER, launcher), pytest.raises(Finding, match=found):
        processes.one("start.spawned")


def test_a_vmm_that_stays_is_late(processes: Processes, launcher: str) -> None:
    with (
        running(SLEEPER, launcher),
        pytest.raises(Late, match=r"after stop: expected no VMM alive within 0.1 s, found 1"),
    ):
        processes.none("after stop", SOON(0.1))


def test_a_worker_that_outlives_its_vmm_is_waited_for(processes: Processes, launcher: str) -> None:
    """Whatever looks at the log next would find its claim held."""
    code = "import os, signal, sys\nif os.fork() == 0:\n    print('up', flush=True)\nsignal.alarm(60)\nsignal.pause()"
    with running(code, launcher, ready=True) as vmm:
        assert processes.one("here").pin.pid == vmm.pid
        worker = processes.worker("here").pin
    # The VMM has ended by now, and its worker hasn't.
    with pytest.raises(Late, match=r"after stop: expected no VMM alive within 0.1 s, found 1: .*child of a VMM"):
        processes.none("after stop", SOON(0.1))
    worker.end()
    processes.none("after stop", SOON(60))
    assert worker.has_exited()


def test_a_vmm_without_the_launcher_is_found_by_the_claim_on_its_log(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "s" / "box").mkdir(parents=True)
    log = tmp_path / "s" / "box" / "openvmm.log"
    log.touch()
    code = (
        "import fcntl, signal, sys\nlog = open(sys.argv[1])\nfcntl.flock(log, 2)\nprint(1, flush=True)\nsignal.pause()"
    )
    with running(code, str(log), ready=True) as vmm:
        found = processes.one("here")
        assert (found.pin.pid, "claim" in found.reasons) == (vmm.pid, True)
        assert claim_is_held(host(), str(log), SOON(0.05))
    assert not claim_is_held(host(), str(log), SOON(60))


WORKER = """
import fcntl, os, signal, subprocess, sys
log = os.open(sys.argv[2], os.O_RDWR)
fcntl.flock(log, fcntl.LOCK_EX)
worker = subprocess.Popen(["/bin/sleep", "60"], pass_fds=[log])
os.close(log)
print(worker.pid, flush=True)
sys.stdin.read()
worker.kill()
worker.wait()
"""


def test_the_worker_of_a_vmm_that_is_ending_is_no_second_vmm(tmp_path: Path, launcher: str, token: str) -> None:
    """At its end a process has lost its arguments before its exit can be seen."""

    class Ending(LinuxHost):
        ending = -1

        def arguments(self, pid: int) -> list[str]:
            return [] if pid == self.ending else super().arguments(pid)

    (tmp_path / "s" / "box").mkdir(parents=True)
    log = tmp_path / "s" / "box" / "openvmm.log"
    log.touch()
    ending = Ending()
    processes = Processes(ending, needle=launcher, token=token, root=str(tmp_path / "s"))
    vmm = subprocess.Popen(
        [sys.executable, "-c", WORKER, launcher, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert vmm.stdin is not None
    assert vmm.stdout is not None
    worker = int(vmm.stdout.readline())
    processes.said(vmm.pid, pinned(ending, vmm.pid), "token")
    ending.ending = vmm.pid
    alive = {one.pin.pid: one.is_vmm for one in processes.look()}
    vmm.stdin.close()
    vmm.stdout.close()
    assert vmm.wait(60) == 0
    processes.close()
    assert alive == {vmm.pid: True, worker: False}


def pinned(host: LinuxHost, pid: int) -> Pin:
    pin = host.pin(pid)
    assert pin is not None
    return pin


def test_a_look_at_a_claim_is_repeated(tmp_path: Path) -> None:
    """A held claim that is let go within the second was another process's copy."""
    log = tmp_path / "openvmm.log"
    log.touch()
    looks = 0

    class Forking:
        def is_locked(self, _path: str) -> bool | None:
            nonlocal looks
            looks += 1
            return looks < 3

    assert not claim_is_held(Forking(), str(log), SOON(60))  # type: ignore[arg-type]


def test_an_orphan_comes_to_the_witness_and_is_reaped_alone(processes: Processes, tmp_path: Path) -> None:
    """The orphan bears neither launcher nor token: only that it is adopted gives it away."""
    code = (
        "import os, signal, sys\nif not (pid := os.fork()):\n    signal.pause()\nopen(sys.argv[1], 'w').write(str(pid))"
    )
    with running(code, str(tmp_path / "pid")) as parent:
        processes.own(parent.pid)
        parent.wait()
        pid = int((tmp_path / "pid").read_text())
        # Other tests of this process may have left children that come to us only now.
        (orphan,) = [one for one in processes.look() if one.pin.pid == pid]
        assert orphan.reasons == {"adopted"}
    orphan.pin.end()
    assert orphan.pin.wait(SOON(60))
    assert pid not in {one.pin.pid for one in processes.look()}
    assert host().stat(pid) is None


def test_reaping_an_orphan_takes_nobody_elses_status(processes: Processes) -> None:
    with running("import sys\nsys.exit(7)") as child:
        pin = host().pin(child.pid)
        assert pin is not None
        assert pin.wait(SOON(60))
        processes.own(child.pid)
        processes.look()
        assert child.wait() == 7
        pin.close()


def test_a_zombie_is_gone(launcher: str) -> None:
    with running("pass", launcher) as child:
        pin = host().pin(child.pid)
        assert pin is not None
        assert pin.wait(SOON(60))
        stat = host().stat(child.pid)
        assert stat is not None
        assert stat.state == "Z"
        assert pin.has_exited()
        pin.close()


def test_a_leader_that_ended_before_its_threads_is_alive(launcher: str) -> None:
    code = (
        "import ctypes, signal, threading\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "print(1, flush=True)\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"
    )
    with running(code, launcher, ready=True) as child:
        pin = host().pin(child.pid)
        assert pin is not None
        assert not pin.wait(SOON(0.2))
        pin.end()
        assert pin.wait(SOON(60))
        pin.close()


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields() -> None:
    code = (
        "import ctypes, signal\n"
        "ctypes.CDLL(None).prctl(15, b'a) Z 1 (b', 0, 0, 0)\n"
        "print(1, flush=True)\nsignal.pause()"
    )
    with running(code, ready=True) as child:
        stat = host().stat(child.pid)
        assert stat is not None
        assert (stat.name, stat.parent) == ("a) Z 1 (b", os.getpid())


def test_a_leaked_descriptor_is_in_the_table_by_number_device_and_inode(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    status = secret.stat()
    with open(secret, "rb") as file:
        os.set_inheritable(file.fileno(), True)
        number = file.fileno()
        pid = os.posix_spawn(python.interpreter(), [python.interpreter(), "-I", "-c", SLEEPER], {}, setsid=True)
    pin = host().pin(pid)
    assert pin is not None
    table = host().descriptors(pid)
    assert table is not None
    assert (number, status.st_dev, status.st_ino) in {(one.number, one.device, one.inode) for one in table}
    assert pid in host().holders(status.st_dev, status.st_ino)
    assert f"descriptor {number} {secret}" in host().explain(pid)
    pin.end()
    assert pin.wait(SOON(60))
    assert pin.reap() == -9
    pin.close()


def test_a_socket_that_a_process_still_has_is_found_by_its_directory() -> None:
    path = f"/tmp/nvx-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.unlink(path)
        assert path in host().sockets("/tmp")
    assert path not in host().sockets("/tmp")


@pytest.mark.parametrize(
    "form", [bytes, bytes.hex, lambda secret: secret.hex().upper(), lambda secret: ascii(secret)[2:-1]]
)
def test_a_capability_never_gets_into_evidence(tmp_path: Path, form: object) -> None:
    capability = bytes(range(1, 33))
    box = tmp_path / "s" / "box"
    box.mkdir(parents=True)
    (box / "control.capability").write_bytes(capability)
    written = form(capability)  # type: ignore[operator]
    (box / "openvmm.log").write_bytes(b"attach with " + (written if isinstance(written, bytes) else written.encode()))
    evidence = Evidence(str(tmp_path / "evidence"), root=str(tmp_path / "s"))
    evidence.keep_files("state", [str(tmp_path / "s")])
    kept = [path.read_bytes() for path in (tmp_path / "evidence").rglob("*") if path.is_file()]
    assert any(REDACTED in data for data in kept)
    assert not any((written if isinstance(written, bytes) else written.encode()) in data for data in kept)
    assert not list((tmp_path / "evidence").rglob("control.capability"))


def test_a_capability_that_is_gone_again_is_still_kept_out(tmp_path: Path) -> None:
    box = tmp_path / "s" / "box"
    box.mkdir(parents=True)
    (box / "control.capability").write_bytes(b"k" * 32)
    evidence = Evidence(str(tmp_path / "evidence"), root=str(tmp_path / "s"))
    evidence.learn()
    (box / "control.capability").unlink()
    assert "kkk" not in Path(evidence.keep("x.txt", "k" * 32 + " said")).read_text()


def test_a_listing_tells_kind_mode_and_links(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d" / "file").write_text("abc")
    (tmp_path / "d" / "file").chmod(0o600)
    (tmp_path / "link").symlink_to("d/file")
    assert [line.split(None, 1)[0] + " " + line.split(None, 3)[3] for line in listing(str(tmp_path))] == [
        "drwx------ d",
        "lrwxrwxrwx link -> d/file",
        "-rw------- d/file",
    ]


FAKE = """
import json, os, socket, sys
channel = socket.socket(socket.AF_UNIX)
channel.connect(sys.argv[1])
lines = channel.makefile("rw")
def say(**message):
    lines.write(json.dumps(message) + "\\n")
    lines.flush()
say(hello={"pid": os.getpid(), "token": sys.argv[2]})
say(paused="before_bind", hit=1)
assert json.loads(lines.readline()) == {"resume": "before_bind"}
say(paused="before_exit", hit=1)
lines.read()
sys.exit(75)
"""


@pytest.fixture
def channel(tmp_path: Path, processes: Processes, token: str) -> Iterator[Channel]:
    found = Channel(str(tmp_path / "channel"), token=token, processes=processes, host=host())
    yield found
    found.close()


def test_a_fake_is_held_and_goes_on_and_ends_with_its_lifeline(
    tmp_path: Path, channel: Channel, processes: Processes, token: str
) -> None:
    with running(FAKE, str(tmp_path / "channel"), token) as child:
        peer = channel.wait_paused("before_bind", SOON(60))
        assert (peer.pid, processes.one("here").reasons >= {"token"}) == (child.pid, True)
        channel.resume(peer)
        channel.wait_paused("before_exit", SOON(60))
        assert peer.passed == ["before_bind#1", "before_exit#1"]
        channel.close()
        assert child.wait(60) == 75


def test_a_pause_that_nobody_reaches_is_late_and_says_where_the_fakes_are(
    tmp_path: Path, channel: Channel, token: str
) -> None:
    with pytest.raises(Late, match=r"a fake that waits there within 0.05 s, found no fake on the channel"):
        channel.wait_paused("before_bind", SOON(0.05))
    with running(FAKE, str(tmp_path / "channel"), token) as child:
        channel.wait_paused("before_bind", SOON(60))
        with pytest.raises(Late, match=f"fake pause after_bind: .* found pid {child.pid} before_bind"):
            channel.wait_paused("after_bind", SOON(0.05))
    with pytest.raises(Late, match=f"found pid {child.pid} gone; its own words are in the log .* below state/"):
        channel.wait_paused("after_bind", SOON(0.05))


def test_another_tests_token_is_refused(tmp_path: Path, channel: Channel) -> None:
    with running(FAKE, str(tmp_path / "channel"), "another"), pytest.raises(HarnessError, match="another test's token"):
        channel.wait_paused("before_bind", SOON(60))


def test_a_lock_is_seen_from_another_open_description(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert host().is_locked(str(lock)) is None
    with open(lock, "wb") as file:
        assert host().is_locked(str(lock)) is False
        fcntl.flock(file, fcntl.LOCK_EX)
        assert host().is_locked(str(lock)) is True
