"""ProcessRef: each row of the verdicts that a record alone decides."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import msgspec
import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Indeterminate, Refused, VmmExited
from nvx_ref.platform import process, spawn
from nvx_ref.platform.contract import ProcessGone, ProcessIdentity
from nvx_ref.platform.linux import pidfd
from nvx_ref.process import ProcessRef

pytestmark = pytest.mark.usefixtures("no_leak")

Run = Callable[..., "subprocess.Popen[bytes]"]

SLEEPER = "print('ready'); input()"


@pytest.fixture
def vmm(python: Run) -> subprocess.Popen[bytes]:
    """A process that stands in for a VMM."""
    return python(SLEEPER)


@pytest.fixture
def recorded(vmm: subprocess.Popen[bytes]) -> ProcessIdentity:
    """Its identity."""
    with process.Pin.open(vmm.pid) as pin:
        return pin.identity()


def changed(identity: ProcessIdentity, **fields: object) -> ProcessIdentity:
    return msgspec.structs.replace(identity, **fields)


def without_inode(identity: ProcessIdentity) -> ProcessIdentity:
    return changed(identity, pidfs_inode=None)


def test_a_recorded_process_is_found_again(recorded: ProcessIdentity) -> None:
    again = msgspec.json.decode(msgspec.json.encode(recorded), type=ProcessIdentity)
    ref = ProcessRef.open(again)
    assert ref is not None
    with ref:
        assert ref.identity == recorded
        assert not ref.has_exited()
        assert ref.exit_status() is None


@pytest.mark.case("T04")
@pytest.mark.spec("620.scope3.n")
def test_an_earlier_boot_is_exited_without_a_look(recorded: ProcessIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda *_: pytest.fail("the number was asked"))
    earlier = changed(recorded, boot="11111111-2222-3333-4444-555555555555")
    assert ProcessRef.open(earlier) is None
    assert ProcessRef.open(changed(earlier, pid_namespace=1)) is None


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_boot_that_cant_be_told_decides_nothing(
    recorded: ProcessIdentity, monkeypatch: pytest.MonkeyPatch, short_root: str, content: bytes | None
) -> None:
    path = f"{short_root}/boot_id"
    if content is not None:
        with open(path, "wb") as file:
            file.write(content)
    monkeypatch.setattr("nvx_ref.platform.linux.procfs.BOOT_ID", path)
    with pytest.raises(Indeterminate) as caught:
        ProcessRef.open(recorded)
    assert caught.value.detail == "boot"


def test_another_pid_namespace_is_not_asked(recorded: ProcessIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda *_: pytest.fail("the number was asked"))
    with pytest.raises(Indeterminate) as caught:
        ProcessRef.open(changed(recorded, pid_namespace=1))
    assert caught.value.detail == "pid-namespace"


def test_an_unreadable_namespace_of_our_own_is_unknown(
    recorded: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "pid_namespace", lambda: None)
    with pytest.raises(Indeterminate):
        ProcessRef.open(recorded)


@pytest.mark.spec("656.reattach.g")
def test_another_start_time_is_another_process(vmm: subprocess.Popen[bytes], recorded: ProcessIdentity) -> None:
    stranger = changed(without_inode(recorded), start_time=recorded.start_time - 1)
    assert ProcessRef.open(stranger) is None
    assert vmm.poll() is None


def test_the_unique_number_decides(vmm: subprocess.Popen[bytes], recorded: ProcessIdentity) -> None:
    if recorded.pidfs_inode is None:
        pytest.skip("this kernel has no pidfs")
    assert ProcessRef.open(changed(recorded, pidfs_inode=recorded.pidfs_inode + 1)) is None
    with pytest.raises(Indeterminate) as caught:
        ProcessRef.open(changed(recorded, start_time=recorded.start_time + 1))
    assert caught.value.detail == "contradiction"
    assert vmm.poll() is None


@pytest.mark.case("T02")
def test_without_the_unique_number_an_equal_tick_is_taken_for_the_same(
    recorded: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented residue: here the log's claim has to be the second witness."""
    for forget in ("record", "kernel"):
        with monkeypatch.context() as patch:
            if forget == "kernel":
                patch.setattr(pidfd, "_probed", {"unique": False})
            identity = without_inode(recorded) if forget == "record" else changed(recorded, pidfs_inode=1)
            ref = ProcessRef.open(identity)
            assert ref is not None
            ref.close()


@pytest.mark.case("T07")
@pytest.mark.parametrize("pid", [1, None])
def test_low_and_own_numbers_are_ordinary_numbers(pid: int | None) -> None:
    own = process.own_identity()
    recorded = ProcessIdentity(pid=pid or own.pid, start_time=own.start_time + 12345, boot=own.boot)
    assert ProcessRef.open(recorded) is None


def test_this_process_is_held_like_any_other_and_never_ended() -> None:
    ref = ProcessRef.open(process.own_identity())
    assert ref is not None
    with ref:
        assert not ref.has_exited()
        with pytest.raises(Refused, match="itself"):
            ref.terminate()


@pytest.mark.case("T07")
@pytest.mark.parametrize(
    "pid", ["0", "-1", "4194305", '"7"', "7.0", "7.5", "true", "null", "1e3", "18446744073709551616"]
)
def test_a_recorded_number_has_one_form(pid: str) -> None:
    text = f'{{"pid":{pid},"startTime":8,"boot":"b"}}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=ProcessIdentity)


@pytest.mark.parametrize(
    "fields",
    [
        '"startTime":-1,"boot":"b"',
        '"startTime":9223372036854775808,"boot":"b"',
        '"startTime":8,"boot":""',
        '"startTime":8,"boot":"a\\n"',
        '"startTime":8,"boot":"b","pidfsInode":0',
        '"startTime":8,"boot":"b","pidNamespace":-1',
        '"startTime":8,"boot":"b","more":1',
        '"boot":"b"',
    ],
)
def test_a_recorded_identity_has_one_form(fields: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"pid":7,{fields}}}', type=ProcessIdentity)


def test_an_identity_is_written_as_the_format_says(recorded: ProcessIdentity) -> None:
    full = ProcessIdentity(pid=7, start_time=8, boot="b", pid_namespace=9, pidfs_inode=10)
    assert msgspec.json.encode(full) == b'{"pid":7,"startTime":8,"boot":"b","pidNamespace":9,"pidfsInode":10}'
    assert msgspec.json.encode(ProcessIdentity(pid=7, start_time=8, boot="b")) == b'{"pid":7,"startTime":8,"boot":"b"}'
    assert recorded.pid_namespace is not None


@pytest.mark.case("T23")
@pytest.mark.parametrize("reaped", [False, True])
def test_an_ended_process_is_exited(vmm: subprocess.Popen[bytes], recorded: ProcessIdentity, *, reaped: bool) -> None:
    assert vmm.stdin is not None
    with process.Pin.open(vmm.pid) as pin:
        vmm.stdin.write(b"\n")
        vmm.stdin.flush()
        assert pin.wait(Deadline.after(30))
    if reaped:
        vmm.wait()
    assert ProcessRef.open(recorded) is None
    assert process.exited_by_number(recorded)


@pytest.mark.case("T09")
def test_a_number_that_a_thread_has_now_is_exited(recorded: ProcessIdentity, thread: int) -> None:
    assert ProcessRef.open(changed(recorded, pid=thread)) is None
    assert process.exited_by_number(changed(recorded, pid=thread))


@pytest.mark.spec("620.acc.5")
@pytest.mark.spec("620.scope3.i")
def test_a_process_that_is_no_child_is_waited_for_and_ended(python: Run, soon: Deadline) -> None:
    parent = python("import os\npid = os.fork()\nif not pid: input()\nprint(pid, flush=True); os.wait()", ready=False)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    with process.Pin.open(pid) as pin:
        recorded = pin.identity()
    ref = ProcessRef.open(recorded)
    assert ref is not None
    with ref:
        assert not ref.wait(Deadline.after(0.01))
        ref.terminate()
        assert ref.wait(soon)
    assert parent.wait() == 0


def test_a_child_is_referred_to_also_after_its_end(soon: Deadline) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    child = spawn.spawn(["true"], stdin=null, output=null, allowed=[], cwd="/")
    os.close(null)
    with ProcessRef.from_child(child) as ref:
        assert ref.wait(soon)
        assert ref.exit_status() == 0
        assert ref.identity == child.identity()
    # Reaped by now: the record says so too.
    assert ProcessRef.open(child.identity()) is None
    with ProcessRef.from_child(child) as ref:
        assert ref.has_exited()
        ref.terminate()


@pytest.mark.case("T28a")
def test_a_program_that_was_replaced_on_disk_is_still_the_same_process(short_root: str, soon: Deadline) -> None:
    shutil.copy("/bin/sleep", f"{short_root}/vmm")
    null = os.open("/dev/null", os.O_RDWR)
    child = spawn.spawn([f"{short_root}/vmm", "100"], stdin=null, output=null, allowed=[], cwd="/")
    os.close(null)
    os.unlink(f"{short_root}/vmm")
    shutil.copy("/bin/true", f"{short_root}/vmm")
    ref = ProcessRef.open(child.identity())
    assert ref is not None
    with ref:
        ref.terminate()
        assert ref.wait(soon)


@pytest.mark.parametrize("kind", [Indeterminate("hidden"), ProcessGone("gone"), KeyboardInterrupt()])
def test_a_child_that_can_not_be_looked_at_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch, soon: Deadline, kind: BaseException
) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    child = spawn.spawn(["true"], stdin=null, output=null, allowed=[], cwd="/")
    os.close(null)

    def fail(_: spawn.Child) -> ProcessIdentity:
        raise kind

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(spawn.Child, "identity", fail)
        with pytest.raises(type(kind)):
            ProcessRef.from_child(child)
    assert set(os.listdir("/proc/self/fd")) <= before
    with ProcessRef.from_child(child) as ref:
        assert ref.wait(soon)


def test_a_peer_that_is_gone_has_exited() -> None:
    class Gone:
        def peer(self) -> process.Pin:
            raise ProcessGone("gone")

    with pytest.raises(VmmExited):
        ProcessRef.from_peer(Gone())  # type: ignore[arg-type]


@pytest.mark.case("T05")
def test_a_boot_id_mounted_over_is_another_boot(isolated: Callable[..., str], recorded: ProcessIdentity) -> None:
    code = """
import os, subprocess, sys, tempfile, msgspec
from nvx_ref.process import ProcessIdentity, ProcessRef
recorded = msgspec.json.decode(sys.argv[1], type=ProcessIdentity)
print(ProcessRef.open(recorded) is None)
with tempfile.NamedTemporaryFile() as other:
    other.write(b"11111111-2222-3333-4444-555555555555\\n"); other.flush()
    subprocess.run(["mount", "--bind", other.name, "/proc/sys/kernel/random/boot_id"], check=True)
    os.pidfd_open = None
    print(ProcessRef.open(recorded) is None)
"""
    assert isolated(code, msgspec.json.encode(recorded).decode()).split() == ["False", "True"]


def test_from_another_pid_namespace_a_live_process_is_unknown(
    isolated: Callable[..., str], recorded: ProcessIdentity
) -> None:
    code = """
import sys, msgspec
from nvx_ref.errors import Indeterminate
from nvx_ref.process import ProcessIdentity, ProcessRef
try:
    ProcessRef.open(msgspec.json.decode(sys.argv[1], type=ProcessIdentity))
except Indeterminate as error:
    print(error.detail)
"""
    answer = isolated(code, msgspec.json.encode(recorded).decode(), flags="-m -p -f --mount-proc")
    assert answer.split() == ["pid-namespace"]
    # Without its own /proc the numbers there are another namespace's: nothing is concluded from them.
    local = msgspec.json.encode(changed(recorded, pid=1, pid_namespace=None)).decode()
    answer = isolated(code, local, flags="-m -p -f")
    assert answer.split() == ["foreign-namespace"]
