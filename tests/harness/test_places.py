"""Where runs keep their files: what can't be is told once and by name, by every command that needs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.platform import LONGEST_RUNS, short_root
from harness.settings import RUNS, require_runs
from tests.harness.test_sweep import can_mount

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ["-m", "pytest", "scenarios/test_killed_in_the_spawn.py", "-q", "-p", "no:cacheprovider"]
COMMANDS = {
    "sweep": (["-m", "harness", "sweep", "--scene", "deprovision", "--group", "steps"], 1),
    "replay": (["-m", "harness", "replay", "start/kill/start.spawned#1"], 1),
    "pytest": (SCENARIO, 4),
    "xdist": ([*SCENARIO, "-n", "1"], 1),
}


@pytest.mark.skipif(sys.platform == "win32", reason="its places are Linux's")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("wrong", ["file", "long", "bytes"])
def test_a_place_where_no_run_can_be_is_named(command: str, wrong: str) -> None:
    place = {"file": "/dev/null", "long": f"/tmp/{'a' * LONGEST_RUNS}", "bytes": "/tmp/nv\udcff"}[wrong]
    arguments, status = COMMANDS[command]
    environment = {**os.environ, RUNS: place}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    reasons = {
        "file": "name a directory that can be written",
        "long": f"of at most {LONGEST_RUNS} bytes",
        "bytes": "in UTF-8",
    }
    said = done.stdout + done.stderr
    # Workers can't even be told of it.
    assert done.returncode == (4 if (wrong, command) == ("bytes", "xdist") else status)
    assert f"{RUNS}: {f'{place!a}' if wrong == 'bytes' else place}: " in said
    assert reasons[wrong] in said
    assert "Traceback" not in said
    assert not os.path.isdir(place)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_told_before_anything_begins(tmp_path: Path, command: str) -> None:
    if not can_mount():
        pytest.skip("mounting needs root")
    place = tempfile.mkdtemp(prefix="nv", dir=short_root())
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=True)
    try:
        arguments, status = COMMANDS[command]
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, RUNS: place, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == status
        assert f"{RUNS}: {place}: 1024 KiB are free, and a run needs 16 MiB; name another" in done.stdout + done.stderr
        assert os.listdir(place) == []
    finally:
        subprocess.run(["umount", place], check=True)
        os.rmdir(place)


def test_a_place_that_can_be_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    require_runs("nvx-0123abcd")
    assert os.listdir(tmp_path) == []
    os.mkdir("nvx-0123abcd")
    Path("nvx-0123abcd", "used").touch()
    require_runs("nvx-0123abcd")
    assert os.listdir("nvx-0123abcd") == ["used"]
    with pytest.raises(HarnessError, match="sockets are made below it"):
        require_runs(os.path.join("a" * (LONGEST_RUNS + 1), "nvx-0123abcd"))


@pytest.mark.skipif(sys.platform == "win32", reason="its places are Linux's")
@pytest.mark.parametrize("variable", ["NVX_HARNESS_CACHE", "XDG_CACHE_HOME"])
def test_a_cache_that_can_not_be_is_named_by_its_variable(variable: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NVX_HARNESS_CACHE"}
    command = [sys.executable, "-m", "harness", "setup", "qemu", "--no-install"]
    done = subprocess.run(
        command, env={**environment, variable: "/dev/null"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {variable}: /dev/null")
    assert done.stderr.endswith("Not a directory; name a directory that can be written\n")
