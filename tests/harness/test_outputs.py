"""Files that a user asks for: refused before the work if they can't be written, and never half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import outputs
from harness.errors import HarnessError
from tests.harness.test_sweep import can_mount

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its commands are begun by an exec, under limits")

ROOT = Path(__file__).resolve().parents[2]
REPORT = ["sweep", "--scene", "deprovision", "--group", "steps", "--report"]
COMMANDS = [
    (["-m", "harness", *REPORT], "--report", 1),
    (["-m", "harness", "report", "none.json", "-o"], "--output", 1),
    (["-m", "harness", "mutants", "--only", "m01", "--output"], "--output", 1),
    (["-m", "harness", "container", "--report"], "--report", 1),
    (["-m", "harness", "setup", "distro"], "FILE.erofs", 1),
    (["-m", "pytest", "scenarios/test_lifecycle.py", "--nvx-report"], "--nvx-report", 4),
    (["-m", "tests.bench", "exits", "--json"], "--json", 2),
]


def ran(arguments: list[str], directory: Path = ROOT, *, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, with a limit of the bytes of a file where one is given."""
    small = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));" if limit else ""
    lead = f"{small}import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", lead, sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize(("arguments", "option", "status"), COMMANDS)
@pytest.mark.parametrize("place", ["/dev/full", "none/x", "directory", "beyond"])
def test_what_can_not_be_written_is_refused_before_anything_begins(
    tmp_path: Path, arguments: list[str], option: str, status: int, place: str
) -> None:
    if place == "/dev/full" and not os.path.exists(place):
        pytest.skip("there is no such device here")
    ending = ".json" if "report" in arguments and "-o" in arguments else ""
    (tmp_path / f"directory{ending}").mkdir()
    full = tmp_path / f"full{ending}"
    if place == "/dev/full":
        full.symlink_to(place)
    path = {"/dev/full": full, "beyond": full / "x"}.get(place, tmp_path / f"{place}{ending}")
    done = ran([*arguments, str(path)])
    assert (done.returncode, done.stdout.count("passed")) == (status, 0)
    told = [line for line in done.stderr.splitlines() if f"{option}: {path}" in line]
    assert len(told) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == sorted({f"directory{ending}", *([full.name] if full.is_symlink() else [])})


@pytest.mark.parametrize(("arguments", "option", "status"), COMMANDS)
def test_no_space_is_known_before_the_work(tmp_path: Path, arguments: list[str], option: str, status: int) -> None:
    path = tmp_path / "out.json"
    done = ran([*arguments, str(path)], limit=1000)
    assert (done.returncode, done.stdout.count("passed")) == (status, 0)
    assert f"{option}: {path} can't be written: File too large; name another place" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_told_by_its_name_and_nothing_half_done_stays(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path], check=True)
    try:
        path = str(tmp_path / "out.json")
        with pytest.raises(HarnessError, match=r"--report: .*out.json can't be written: No space left on device; name"):
            outputs.require_writable("--report", path)
        (tmp_path / "out.json").write_text("mine")
        with pytest.raises(HarnessError, match="No space left on device"):
            outputs.write("--report", path, b"x" * 100_000)
        assert (tmp_path / "out.json").read_text() == "mine"
        demo = ran(["-m", "harness", "demo", str(tmp_path / "demo")])
        assert (demo.returncode, demo.stdout) == (1, "")
        assert demo.stderr == (
            f"error: DIR: {tmp_path}/demo: No space left on device; name a directory that can be written\n"
        )
        assert os.listdir(tmp_path) == ["out.json"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_file_is_replaced_whole_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    outputs.require_writable("-o", str(tmp_path / "link"))
    assert (tmp_path / "real").read_text() == "old"
    outputs.write("-o", str(tmp_path / "link"), b"new")
    assert ((tmp_path / "real").read_bytes(), os.readlink(tmp_path / "link")) == (b"new", "real")
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_an_empty_path_is_told_so() -> None:
    with pytest.raises(HarnessError, match=r"^--report: the path is empty; name a file$"):
        outputs.require_writable("--report", "")
