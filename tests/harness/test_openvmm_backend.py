"""The driver of a real OpenVMM, on a made-up release: what it starts, what it sees, and what it says it can't."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import guests, images, python
from harness.backends import asking, openvmm
from harness.backends.contract import GUEST, KNOB, PAUSE, SECTORS
from harness.backends.probes import Verdict
from harness.backends.watch import YOUNG, Run
from harness.crash.cells import parse
from harness.crash.sweep import Sweep, golden_path, open_bench
from harness.errors import Unsupported
from harness.images import guest
from harness.report.model import read
from harness.settings import Settings, session_directory
from harness.witness.contract import Descriptor
from harness.world import OWN_NAMES
from stand_in import release

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its stand-in is a script with an interpreter line")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return release(tmp_path / "made")


@pytest.fixture
def driver(made: Path) -> openvmm.OpenVmm:
    return openvmm.make(Settings(backend="mshv", artifacts=str(made)))


@pytest.fixture
def side(driver: openvmm.OpenVmm, tmp_path: Path) -> Iterator[openvmm.OpenVmmSide]:
    place = tmp_path / "test"
    place.mkdir()
    begun = driver.begin(str(place), token="", channel="c", evidence="e")
    yield begun
    begun.close()


def scenarios(made: Path, *arguments: str, backend: str = "kvm") -> subprocess.CompletedProcess[str]:
    """Run scenarios on a real backend's driver, the hypervisor's probe answered for."""
    environment = {**os.environ, "STAND_IN": "1", "PYTHONPATH": str(ROOT / "tests/support")}
    options = ["-p", "stand_in", "-p", "no:cacheprovider", "--backend", backend, "--artifacts", str(made), "-q"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_scenarios_run_on_the_driver_and_say_what_they_didn_t_see(made: Path) -> None:
    done = scenarios(made, "scenarios/test_cold_boot.py", "-k", "erofs-ext4 or large")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "= scenarios on kvm =" in done.stdout
    assert re.search(r": 1 pass, 0 fail, \d+ skip\n", done.stdout), done.stdout
    assert "skip kvm: OpenVMM shows a file in sectors of 512 bytes" in done.stdout
    assert "skip kvm: a real VMM and guest can't be told to misbehave" in done.stdout
    assert "not seen format, upper, identity, block size, scratch device, command line" in done.stdout


def test_what_is_swapped_after_the_check_is_seen_where_a_vmm_can_t_be_held(made: Path) -> None:
    done = scenarios(made, "scenarios/test_image_swap.py", "-k", "vanishes or 0")
    assert done.returncode == 0, done.stdout + done.stderr
    # Which files were opened is told by its descriptors, the others' by its boot.
    assert "not seen the kernel that the VMM opened, the initrd that the VMM opened" in done.stdout
    assert "2 cells: 2 pass, 0 fail, 0 skip" in done.stdout


def test_crash_cells_of_which_some_can_not_be_run_pass_with_what_was_left_out(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = scenarios(made, "scenarios/test_crash_points.py", "-k", "really_started", "--nvx-report", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    left = re.search(r"\n +not seen (\d) of 8 crash cells: kvm: a real VMM can't be held at a point\n", done.stdout)
    assert left is not None, done.stdout
    assert f"\n{8 - int(left[1])} crash points, {8 - int(left[1])} of them fired, " in done.stdout
    assert "1 scenario, 1 cell: 1 pass, 0 fail, 0 skip" in done.stdout
    (row,) = read(str(path)).cells
    assert (row.outcome, row.unseen) == ("pass", [left[0].strip().removeprefix("not seen ")])


def test_argv_differs_by_the_hypervisor_s_name_alone(made: Path) -> None:
    """The goldens of KVM hold for MSHV but for one word; that this is noticed shows that they are compared."""
    done = scenarios(made, "scenarios/test_cold_boot.py", "-k", "finds and erofs-ramfs", backend="mshv")
    golden = (ROOT / "goldens/mshv/cold_boot/erofs-ramfs/argv.txt").read_text()
    common = (ROOT / "goldens/cold_boot/erofs-ramfs/argv.txt").read_text()
    assert golden == common.replace("--hypervisor kvm", "--hypervisor mshv") != common
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_scenario_on_a_real_guest_has_the_time_that_its_phases_take(made: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.c3\n"
        "def test_it(request, world):\n"
        "    assert request.node.get_closest_marker('timeout').args == (900,)\n"
        "    assert 60 < world.soon().remaining() <= 70\n"
    )
    done = scenarios(made, str(tmp_path / "test_it.py"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_hypervisor_that_can_t_run_guests_is_what_is_missing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvmm, "probe", lambda _: Verdict(works=False, reason="it is too slow"))
    openvmm.verdict_of.cache_clear()
    settings = Settings(backend="kvm", artifacts=str(made))
    try:
        assert openvmm.missing(settings)[-1:] == ("a hypervisor that runs guests (kvm: it is too slow)",)
        (made / "guest/vmlinux").unlink()
        (made / "guest/initramfs.cpio.gz").unlink()
        # What was found is kept for the run; another release is another question.
        again = Settings(backend="kvm", artifacts=f"{made}/.")
        assert [one.partition(" in ")[0] for one in openvmm.missing(again)][:2] == [
            "guest/vmlinux",
            "guest/initramfs.cpio.gz",
        ]
        assert "kvm: it is too slow" in openvmm.missing(again)[-1]
    finally:
        openvmm.verdict_of.cache_clear()


def test_what_a_real_vmm_can_t_do_is_said_by_need(driver: openvmm.OpenVmm, side: openvmm.OpenVmmSide) -> None:
    assert driver.lacks(f"{SECTORS}512") is None
    assert driver.lacks(f"{GUEST}adapter") is None  # the made-up release has one
    for need in (f"{KNOB}ignore_stop", f"{PAUSE}after_bind", f"{SECTORS}4096"):
        assert driver.lacks(need)
    side.configure()
    with pytest.raises(Unsupported, match=r"^mshv: a real VMM and guest can't be told to misbehave$"):
        side.configure(knobs={"ignore_stop": True})
    with pytest.raises(Unsupported, match=r"^mshv: a real VMM can't be held at a point$"):
        side.configure(pauses=["after_bind"])


def test_staged_artifacts_have_a_release_s_names_and_digests(
    driver: openvmm.OpenVmm, made: Path, tmp_path: Path
) -> None:
    staged = driver.artifacts(str(tmp_path / "worker"))
    assert driver.artifacts(str(tmp_path / "worker")) == staged
    for name in ("guest/vmlinux", "guest/initramfs.cpio.gz", "bin/openvmm"):
        assert os.path.samefile(os.path.join(staged.directory, name), made / name)
    sums = Path(staged.directory, "SHA256SUMS").read_text()
    stated = (made / "SHA256SUMS").read_text().splitlines()
    assert [line for line in stated if "adapter" not in line] == sums.splitlines()
    assert staged.adapter is not None


def test_a_vmm_that_ended_before_anybody_looked_was_seen(side: openvmm.OpenVmmSide, made: Path) -> None:
    before = side.vms()
    # It lives until its standard input ends, and isn't looked at while it does.
    program = "import sys; sys.stdin.read()"
    stand_in = Path(made / "bin/openvmm")
    stand_in.write_text(f"#!{python.interpreter()} -I\n{program}\n")
    with subprocess.Popen([*side.command, "--machine", "microvm"], stdin=subprocess.PIPE) as child:
        seen = side._watch.seen.wait(30)  # the watch's own word: nothing else announces its look
        child.communicate()
    assert (before, seen) == ([], True)
    (vm,) = side.vms()
    assert (vm.pid, vm.argv()) == (child.pid, ["--machine", "microvm"])
    assert (vm.descriptors(), vm.attachments(), vm.requests(), vm.mappings()) == (None, None, None, None)
    assert (vm.contacts(), vm.signals(), vm.status()) == (None, None, None)


def test_what_a_vmm_forks_is_no_vmm(side: openvmm.OpenVmmSide, made: Path) -> None:
    forking = "import os, sys\nchild = os.fork()\nif child == 0: os.read(0, 1); os._exit(0)\nsys.stdout.write('up')"
    waiting = "sys.stdout.flush(); os.waitpid(child, 0)"
    Path(made / "bin/openvmm").write_text(f"#!{python.interpreter()} -I\n{forking}\n{waiting}\n")
    with subprocess.Popen(side.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as vmm:
        assert vmm.stdout is not None
        assert vmm.stdout.read(2) == b"up"
        found = side.vms()
        vmm.communicate()
    assert [vm.pid for vm in found] == [vmm.pid]


def test_what_a_test_begins_with_is_no_leftover_of_it(side: openvmm.OpenVmmSide, tmp_path: Path) -> None:
    assert os.path.isfile(side.needle)
    assert set(os.listdir(tmp_path / "test")) <= OWN_NAMES


def test_a_vmm_is_seen_however_late_it_executes_its_program(side: openvmm.OpenVmmSide, made: Path) -> None:
    Path(made / "bin/openvmm").write_text(f"#!{python.interpreter()} -I\nimport sys; sys.stdin.read()\n")
    waits = f"import os, sys\nos.read(0, 1)\nos.execv({side.command[0]!r}, {side.command!r})"
    with subprocess.Popen([python.interpreter(), "-I", "-c", waits], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        # More often than a process of one name is read.
        assert [vm for _ in range(2 * YOUNG) for vm in side.vms()] == []
        child.stdin.write(b"g")
        child.stdin.flush()
        seen = side._watch.seen.wait(30)
        child.communicate()
    assert seen
    assert [vm.pid for vm in side.vms()] == [child.pid]


def test_a_vmm_that_fails_at_once_is_quoted_in_the_failure(tmp_path: Path) -> None:
    failing = release(tmp_path / "failing", first="sys.exit('fatal error: no such thing')")
    done = scenarios(failing, "scenarios/test_cold_boot.py", "-k", "finds and erofs-ramfs")
    assert done.returncode == 1
    assert "the VMM exited before it served its endpoint" in done.stdout
    assert "          | fatal error: no such thing\n" in done.stdout


SPAWNED = "start/exit/start.spawned#1"
LATE = "import time; time.sleep(1.5)"
"""Longer than a held claim is looked at."""


@pytest.mark.parametrize("cell", [SPAWNED, f"start/pair/{SPAWNED.rpartition('/')[2]},recover.terminated#1"])
def test_a_vmm_that_serves_late_is_no_violation_of_a_crash_cell(tmp_path: Path, cell: str) -> None:
    late = release(tmp_path / "late", first=LATE)
    settings = Settings(backend="kvm", artifacts=str(late), directory=session_directory())
    with open_bench(settings, openvmm.make(settings)) as bench:
        result = Sweep(bench, golden_path(str(ROOT / "goldens"))).replay(parse(cell))
    shutil.rmtree(settings.directory, ignore_errors=True)
    assert (result.violation, result.fired) == ("", True)


def test_another_test_s_vmm_isn_t_seen(side: openvmm.OpenVmmSide, made: Path) -> None:
    subprocess.run([str(made / "bin/openvmm"), "--version"], check=True, capture_output=True)
    assert side.vms() == []


def test_a_command_of_several_words_is_linked_at_its_own_file(made: Path, tmp_path: Path) -> None:
    command = shlex.join([python.interpreter(), "-I", str(made / "bin/openvmm")])
    driver = openvmm.make(Settings(backend="kvm", artifacts=str(made), openvmm=command))
    begun = driver.begin(str(tmp_path), token="", channel="c", evidence="e")
    begun.close()
    assert begun.command == [python.interpreter(), "-I", begun.needle]
    assert os.path.realpath(begun.needle) == os.path.realpath(made / "bin/openvmm")


LAYERED = """\
rootfs / rootfs rw 0 0
/dev/vda /run/nvx/layers/distro erofs ro,relatime 0 0
/dev/vdb /run/nvx/scratch ext4 rw,relatime 0 0
overlay / overlay rw,lowerdir=/a,upperdir=/b,workdir=/c 0 0
"""


def guest_of(**files: str) -> asking.Look:
    def look(*argv: str) -> str | None:
        assert argv[0] in {"/bin/cat", "/bin/ls"}
        return files.get(argv[1].rpartition("/")[2])

    return look


OVERLAY = "overlay / overlay rw,upperdir=/a 0 0\nproc /proc proc rw 0 0\n"


def partitions(*names: str) -> str:
    return "major minor  #blocks  name\n\n" + "".join(f" 254        0       8192 {name}\n" for name in names)


@pytest.mark.parametrize(
    ("mounts", "names", "image_format", "upper", "scratch"),
    [
        (LAYERED, ("vda", "vdb"), "erofs", "ext4", True),
        # What a guest made of a partition by itself, without its kernel's help, is neither of them for sure.
        (LAYERED.replace("/dev/vda", "/dev/loop0"), ("vda", "vdb"), None, "ext4", True),
        (LAYERED, ("vda", "vdb", "vdb1"), "gpt", "ext4", True),
        (OVERLAY, ("vda",), None, "ramfs", False),
        (OVERLAY, ("vda", "vda1"), "gpt", "ramfs", False),
        # A workload in a root of its own sees neither what is below its overlay nor which disk is which.
        (OVERLAY, ("vda", "vdb"), None, None, True),
        (OVERLAY, (), None, None, None),
        ("", ("vda",), None, None, False),
        ("", ("sda", "loop0"), None, None, None),
    ],
)
def test_a_guest_is_asked_for_what_it_found(
    mounts: str, names: tuple[str, ...], image_format: str | None, upper: str | None, *, scratch: bool | None
) -> None:
    look = guest_of(mounts=mounts, partitions=partitions(*names), cmdline="a=b c\n", osrelease="6.1\n")
    found = asking.facts(look, {"distro": (1, 2)})
    assert (found.image_format, found.upper, found.scratch) == (image_format, upper, scratch)
    assert (found.command_line, found.distro_file, found.scratch_file) == ("a=b c", (1, 2), None)
    assert (found.kernel, found.mounts) == ("6.1", None)


def test_what_a_guest_has_told_is_in_the_report_when_it_has_ended(side: openvmm.OpenVmmSide, made: Path) -> None:
    Path(made / "bin/openvmm").write_text(f"#!{python.interpreter()} -I\nimport sys; sys.stdin.read()\n")
    with subprocess.Popen(side.command, stdin=subprocess.PIPE) as child:
        assert side._watch.seen.wait(30)
        (vm,) = side.vms()
        assert guests.found(side) == []
        look = guest_of(mounts=OVERLAY, partitions=partitions("vda"), cmdline="quiet\n", osrelease="6.1\n")
        told = side.guest_facts(vm, look)
        child.communicate()
    assert side.guest_facts(vm) == told
    (found,) = guests.found(side)
    assert (found["kernel"], found["commandLine"], found["upper"]) == ("6.1", "quiet", "ramfs")


@pytest.mark.parametrize(
    ("read_only", "size"), [({"vdb"}, 4096), ({"vda"}, 512), ({"vda", "vdb"}, None), (set[str](), None)]
)
def test_the_block_size_is_that_of_the_read_only_disk(read_only: set[str], size: int | None) -> None:
    sizes = {"vda": "512\n", "vdb": "4096\n"}

    def look(*argv: str) -> str | None:
        *_, place, name = argv[1].replace("/queue", "").split("/")
        if name == "partitions":
            return partitions("vda", "vdb")
        return {"ro": f"{int(place in read_only)}\n", "logical_block_size": sizes.get(place)}.get(name)

    assert asking.facts(look, {}).block_size == size


def test_a_guest_that_shows_nothing_leaves_everything_open() -> None:
    assert asking.facts(lambda *_: None, {}) == asking.facts(None, {}) == openvmm_facts()


def openvmm_facts() -> object:
    from harness.backends.contract import GuestFacts  # noqa: PLC0415 - a helper's own

    return GuestFacts()


def test_the_files_that_a_vmm_opened_are_told_from_those_that_it_got() -> None:
    blocks = ["--microvm-sandbox-block", "distro:file:/proc/self/fd/7,ro"]
    blocks += ["--microvm-sandbox-block", "scratch:file:/proc/self/fd/8"]
    run = Run(1, 1, 0, ["openvmm", *blocks])
    got = [
        Descriptor(0, 9, 1, "pipe:[1]"),
        Descriptor(1, 9, 2, "/s/openvmm.log"),
        Descriptor(2, 9, 2, "/s/openvmm.log"),
    ]
    got += [Descriptor(7, 9, 70, "/i/distro"), Descriptor(8, 9, 80, "/i/scratch")]
    own = [Descriptor(3, 9, 3, "/dev/kvm"), Descriptor(5, 9, 5, "anon_inode:[eventpoll]")]
    images_ = [Descriptor(10, 9, 71, "/i/distro"), Descriptor(11, 9, 80, "/i/scratch")]
    assert asking.opened(run, [*got, *own, *images_]) == {"distro": (9, 71), "scratch": (9, 80)}
    # The numbers say nothing of the order: what was handed over is known.
    checked = [Descriptor(9, 9, 80, "/i/scratch"), Descriptor(10, 9, 70, "/i/distro")]
    assert asking.opened(run, [*got, *own, *checked]) == {"distro": (9, 70), "scratch": (9, 80)}
    boot = [Descriptor(12, 9, 12, "/k"), Descriptor(13, 9, 13, "/r")]
    assert asking.opened(run, [*got, *own, *images_, *boot]) == {"distro": (9, 71), "scratch": (9, 80)}
    assert asking.opened(run, [*got, *own]) == {}
    assert asking.opened(run, [*got, *images_, boot[0]]) == {}


@pytest.mark.skipif(guest.lacking(None) != (), reason=f"needs {', '.join(guest.lacking(None))}")
def test_the_smallest_distro_boots_what_scenarios_run(tmp_path: Path) -> None:
    made = guest.make(str(tmp_path), None)
    assert (made.uuid, made.guid) == (images.EROFS_UUID, images.DISK_GUID)
    raw = Path(made.erofs).read_bytes()
    assert b"busybox" in raw
    command = [sys.executable, "-m", "harness", "setup", "distro", str(tmp_path / "own.erofs")]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == 0
    assert (tmp_path / "own.erofs").read_bytes() == raw
    assert guest.make(str(tmp_path), None) == made
    assert Path(made.erofs).stat().st_mode & 0o777 == 0o444


def test_a_distro_that_was_given_is_copied_and_stamped(tmp_path: Path) -> None:
    from nvx_ref.images.erofs import read_erofs  # noqa: PLC0415 - the other reading of the header

    source = tmp_path / "given.erofs"
    raw = bytearray(Path(images.unpack(str(tmp_path / "committed")).erofs).read_bytes())
    raw[1024 + 48 : 1024 + 64] = bytes(range(16))
    source.write_bytes(raw)
    made = guest.make(str(tmp_path / "made"), str(source))
    assert source.read_bytes() == raw
    with open(made.erofs, "rb") as file:
        found = read_erofs(file.fileno(), length=len(raw))
    assert images.EROFS_UUID in str(found)
    for disk, sector in ((made.gpt, 512), (made.gpt4k, 4096)):
        data = Path(disk).read_bytes()
        assert data[sector : sector + 8] == data[-sector : len(data) - sector + 8] == b"EFI PART"
        assert data[1 << 20 :].startswith(Path(made.erofs).read_bytes())


def test_a_distro_that_is_none_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(bytes(8192))
    with pytest.raises(guest.HarnessError, match="it isn't an EROFS image"):
        guest.make(str(tmp_path / "made"), str(wrong))
