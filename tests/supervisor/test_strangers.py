"""The recorded number means another process, or nobody can tell: whole verdicts, with real processes (groups 1, 3)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from system import only_linux

only_linux("these make namespaces, mounts and users of Linux")

from namespaces import PROCESSES, isolated
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.platform import process
from nvx_ref.steps import Step
from nvx_ref.store.names import JOURNAL, LOG, RUNTIME, SOCKET
from nvx_ref.supervisor import Live, reattach
from sandboxes import IDENTITY, Site, ask_to_stop, soon, wait_for

REUSE = """
STRANGER = '''
import os, signal, sys
def note(number, _):
    os.write(1, b"signal %d" % number)
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    try: signal.signal(number, note)
    except (OSError, ValueError): pass
os.write(1, b"ready")
sys.stdin.read()
'''

# Memory: nothing between the two starts waits for a disk.
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/tmp"], check=True)

def end(ref):
    ref.terminate()
    assert ref.wait(soon())

def launched(site, committed):
    '''Launch a VMM, end it, and return what was left of it.'''
    with site.lock() as locked:
        begun = locked.begin_launch(IDENTITY)
        log = begun.take_log()
        child = spawn.spawn(["sleep", "1000"], stdin=null, output=log, allowed=[], cwd="/")
        os.close(log)
        with ProcessRef.from_child(child) as ref:
            begun.record_process(ref.identity)
            if committed:
                begun.commit()
            end(ref)
            return ref.identity

def reuse(recorded):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(recorded.pid - 1))
    stranger = subprocess.Popen([sys.executable, "-I", "-c", STRANGER], stdin=-1, stdout=-1)
    assert stranger.pid == recorded.pid, "the number wasn't reused"
    return stranger

from nvx_ref.platform import spawn
null = os.open("/dev/null", os.O_RDWR)
same, turn = set(), 0
bound = Deadline.after(75)
if sys.argv[1] == "old":
    pidfd._probed["unique"] = False
with site() as here:
    here.provision()
    # A slow machine needs more turns until two starts meet in one tick.
    while not ({(True, True), (False, True)} <= same or bound.expired()):
        turn += 1
        committed = turn % 2 == 0
        recorded = launched(here, committed)
        assert (recorded.pidfs_inode is None) == (sys.argv[1] == "old"), recorded
        stranger = reuse(recorded)
        with process.Pin.open(stranger.pid) as pin:
            tick = pin.identity().start_time == recorded.start_time
            assert stranger.stdout.read(5) == b"ready"
            found = inspect(here.store, NAME, IDENTITY)
            assert isinstance(found, Exited), found
            with here.lock() as locked:
                found = reattach(locked, IDENTITY, peer_probe, deadline=soon())
            assert isinstance(found, Exited), found
            gone = found.record if committed else found.recovery
            assert gone is not None and gone.process == recorded
            assert not pin.has_exited()
            left = here.listing()
            assert JOURNAL not in left and RUNTIME not in left, left
            # It noted every signal that it could.
            assert stranger.communicate()[0] == b""
            assert stranger.returncode == 0
        same.add((committed, tick))
print(*(int((committed, True) in same) for committed in (True, False)))
"""


@pytest.mark.case("T01")
@pytest.mark.case("T02")
@pytest.mark.spec("620.acc.4")
@pytest.mark.spec("656.reattach.g")
@pytest.mark.parametrize("kernel", ["new", "old"], ids=["pidfs inodes", "no pidfs inodes"])
def test_a_reused_number_is_exited_and_its_new_owner_hears_nothing(kernel: str) -> None:
    """Forced by the kernel, until the start tick is the same too; without a unique number the free claim tells."""
    assert isolated(REUSE, kernel, flags=PROCESSES).split() == ["1", "1"], "no reuse had the same start tick"


BOOT = """
fake = sys.argv[2]
with open(fake, "w") as file:
    file.write("0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9\\n")
subprocess.run(["mount", "--bind", fake, "/proc/sys/kernel/random/boot_id"], check=True)
store = Store(sys.argv[1] + "/s")
def probed(*_):
    raise AssertionError("a process of an earlier boot was looked for")
process.Pin.open = probed
found = inspect(store, NAME, IDENTITY)
assert isinstance(found, Exited), found
with store.lock_existing(NAME, deadline=soon()) as locked:
    found = reattach(locked, IDENTITY, probed, deadline=soon())
assert isinstance(found, Exited), found
print(found.record is not None, found.recovery is not None)
"""


@pytest.mark.case("T04")
@pytest.mark.case("T05")
@pytest.mark.spec("620.scope3.n")
@pytest.mark.parametrize("left", ["record", "journal", "marker"])
def test_after_a_reboot_everything_has_exited_and_nothing_is_asked(provisioned: Site, left: str) -> None:
    """The host's boot has another name in the orchestrator's mount namespace; the VMM of before it is a stranger."""
    steps = {"record": None, "journal": Step.START_IDENTITY_RECORDED, "marker": Step.START_SPAWNED}
    provisioned.run_until(steps[left], mode="silent")
    (vmm,) = provisioned.stand_ins()
    fake = f"{provisioned.root}/boot"
    expected = "True False" if left == "record" else "False True"
    assert isolated(BOOT, provisioned.root, fake).split() == expected.split()
    assert provisioned.listing().isdisjoint({RUNTIME, JOURNAL})
    assert provisioned.stand_ins() == [vmm]
    assert "signal" not in provisioned.path(LOG).read_text()


NAMESPACE = """
store = Store(sys.argv[1] + "/s")
def show(found):
    print(type(found).__name__, getattr(found, "detail", ""), flush=True)
show(inspect(store, NAME, IDENTITY))
with store.lock_existing(NAME, deadline=soon()) as locked:
    show(reattach(locked, IDENTITY, peer_probe, deadline=soon()))
"""


@pytest.mark.spec("620.scope3.l")
@pytest.mark.parametrize("left", ["record", "journal"])
def test_a_vmm_of_another_pid_namespace_is_told_by_its_claim_alone(provisioned: Site, left: str) -> None:
    provisioned.run_until(None if left == "record" else Step.START_IDENTITY_RECORDED, mode="silent")
    (vmm,) = provisioned.stand_ins()
    kept = {RUNTIME} if left == "record" else {JOURNAL}
    assert isolated(NAMESPACE, provisioned.root, flags=PROCESSES).split() == ["Indeterminate", "pid-namespace"] * 2
    assert kept <= provisioned.listing()
    assert provisioned.stand_ins() == [vmm]
    provisioned.close()
    wait_for(lambda: not provisioned.stand_ins(), "the VMM ended")
    assert isolated(NAMESPACE, provisioned.root, flags=PROCESSES).split() == ["Exited", "Exited"]
    assert provisioned.listing().isdisjoint(kept)


HIDDEN = """
identity = msgspec.json.decode(sys.argv[1], type=ProcessIdentity)
if sys.argv[2] == "hidden":
    subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an exec: a process may look at itself
with site() as here:
    here.provision()
    if sys.argv[3] == "record":
        write_runtime(here, identity)
    else:
        write_journal(here, identity)
    kept = here.listing()
    with claimed(here.path(LOG)), here.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        print(type(found).__name__, getattr(found, "detail", ""))
        if isinstance(found, Live):
            with found.vmm as vmm:
                stopped = vmm.stop(None, Deadline.after(0.05), 0.05)
            print(type(stopped).__name__, type(stopped.error).__name__)
        # Nothing that may run is removed.
        try:
            locked.remove()
        except errors.NvxError as error:
            print(error.code)
    assert here.listing() == kept
"""


@pytest.mark.case("T03")
@pytest.mark.case("T08")
@pytest.mark.spec("656.reattach.d", "656.tests.l", "656.tests.k")
@pytest.mark.parametrize("left", ["record", "journal"])
@pytest.mark.parametrize("how", ["hidden", "denied"])
def test_a_process_of_another_user_is_never_ended_and_its_record_is_kept(how: str, left: str) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        with process.Pin.open(child.pid) as pin:
            identity = msgspec.json.encode(pin.identity()).decode()
        said = isolated(HIDDEN, identity, how, left).splitlines()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    refused = "AlreadyExists" if left == "record" else "Refused"
    if how == "denied" and left == "record":
        # It can be looked at, so it lives; ending it is what this user may not.
        assert said == ["Live ", "TimedOut Refused", refused]
    else:
        assert said == [f"Indeterminate {how}", refused]


STATUS = """
with open("/proc/self/stat") as stat:
    assert stat.read().startswith("1 ")
with site() as here:
    here.provision()
    # Its orchestrator ends, so the VMM comes to the namespace's first process: no child that this library started.
    assert here.run_until(None) == 0
    with here.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            assert vmm.exit_status() is None
            connection = endpoints.connect(vmm.endpoint, soon(), alive=lambda: True)
            connection.send(b"exit 7\\n", soon())
            connection.close()
            assert vmm.wait(soon())
            print(vmm.exit_status())
            assert os.waitstatus_to_exitcode(os.waitpid(vmm.process.identity.pid, 0)[1]) == 7
            print(vmm.exit_status())
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Exited)
"""


@pytest.mark.case("T28")
@pytest.mark.spec("620.acc.4")
def test_the_status_of_a_vmm_that_is_no_child_is_its_own_or_unknown() -> None:
    zombie, reaped = isolated("from nvx_ref.platform import endpoint as endpoints\n" + STATUS, flags=PROCESSES).split()
    assert zombie in {"7", "None"}
    assert reaped in {"7", "None"}
    # A status that was known stays known.
    assert (zombie, reaped) != ("7", "None")


@pytest.mark.case("T21")
@pytest.mark.parametrize(
    "name", [b"a) Z 1 (b", b" " * 15, b"1 (a) S 1 1\n2", b"\n) R 0 0 0", b"\xff\xfe\x80 )", b")"], ids=repr
)
def test_a_vmm_with_any_name_is_found_again_and_stopped(provisioned: Site, name: bytes) -> None:
    with provisioned.lock() as locked:
        provisioned.start(locked).close()
        (pid,) = provisioned.stand_ins()
        connection = endpoints.connect(str(provisioned.path(SOCKET)), soon(), alive=lambda: True)
        connection.send(b"name " + name.hex().encode() + b"\n", soon())
        assert connection.receive(1, soon()) == b""
        connection.close()
        assert Path(f"/proc/{pid}/comm").read_bytes() == name + b"\n"
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            vmm.stop(ask_to_stop, soon())
    assert RUNTIME not in provisioned.listing()
