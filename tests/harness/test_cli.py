"""`nvx-harness`: what it prints can be typed, and it never touches what is there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.platform import short_root
from harness.settings import BACKENDS


def nvx_harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NVX_")}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_doctor_names_every_backend_and_what_it_lacks() -> None:
    done = nvx_harness("doctor")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("backend ")]
    assert [line.split()[1].rstrip(":") for line in lines] == [*BACKENDS]
    assert lines[0] == "backend fake: ready"
    assert all(": missing " in line or line.endswith(": ready") for line in lines[1:])
    # A machine may run one of the two hypervisors of Linux or that of Windows, and here no OpenVMM was named.
    for name in ("kvm", "mshv", "whp"):
        (row,) = [line for line in lines if line.startswith(f"backend {name}: missing")]
        pieces = done.stdout.partition(f"{row}\n")[2] if row.endswith(" pieces") else row
        assert "OpenVMM and its guest (--artifacts DIR" in pieces
    assert "\ncontainers: " in done.stdout
    assert len(done.stdout.splitlines()) <= 25


def test_a_cache_that_can_not_be_made_is_what_its_backend_lacks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "NVX_HARNESS_CACHE": str(tmp_path / "file" / "cache")}
    said = f"NVX_HARNESS_CACHE: {tmp_path / 'file' / 'cache' / 'qemu'}: "

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("harness", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line.startswith(f"backend qemu: missing {said}")]
    assert "\ncontainers: " in done.stdout
    done = run("pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "--backend", "qemu")
    assert (done.returncode, done.stdout.strip()) == (4, "")
    assert done.stderr.startswith(f"ERROR: {said}")


def test_doctor_fails_for_a_backend_that_is_required_and_can_t_run() -> None:
    assert nvx_harness("doctor", "--require", "fake").returncode == 0
    done = nvx_harness("doctor", "--require", "whp", "--artifacts", os.devnull)
    assert (done.returncode, done.stderr) == (1, "error: --require whp: it can't run here\n")
    assert f"the directory {os.devnull}" in done.stdout


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("", "error: DIR: the path is empty; name a new directory\n"),
        (f"{os.devnull}/x", f"error: DIR: {os.devnull}/x: "),
    ],
)
def test_a_directory_that_can_t_be_made_is_named(directory: str, said: str) -> None:
    done = nvx_harness("demo", directory)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert "Errno" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvx-demo-", dir=short_root()) as place:
        yield Path(place)


def test_the_demonstration_can_be_typed_line_by_line(short_path: Path) -> None:
    place = short_path / "a demo"
    done = nvx_harness("demo", str(place))
    assert (done.returncode, done.stderr) == (0, "")
    typed = [line.removeprefix("    ") for line in done.stdout.splitlines() if line.startswith("    ")]
    script = "\n".join(["set -e", *typed])
    run = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=110)
    assert (run.returncode, run.stderr, run.stdout) == (0, "", "live\nhello from the sandbox\n")
    assert sorted(os.listdir(place)) == ["artifacts", "images", "openvmm.py", "sandboxes"]
    assert os.listdir(place / "sandboxes") == []


@pytest.mark.parametrize("there", ["file", "full"])
def test_the_demonstration_leaves_alone_what_is_there(tmp_path: Path, there: str) -> None:
    place = tmp_path / "demo"
    if there == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "mine").write_text("mine")
    done = nvx_harness("demo", str(place))
    assert (done.returncode, done.stdout) == (1, "")
    wrong = {"file": "is no directory; name another one", "full": "isn't empty; name a new directory"}[there]
    assert done.stderr == f"error: DIR: {place} {wrong}\n"
    assert place.read_text() == "mine" if there == "file" else os.listdir(place) == ["mine"]


@pytest.mark.parametrize("name", ["d" * 100, "a,b", "a=b"])
def test_the_demonstration_refuses_a_place_where_no_socket_can_be(tmp_path: Path, name: str) -> None:
    done = nvx_harness("demo", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (1, "")
    assert "a VM's socket can't be below it" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("arguments", [["demo"], ["frobnicate"], ["doctor", "--deep"]])
def test_a_usage_error_exits_with_2(arguments: list[str]) -> None:
    assert nvx_harness(*arguments).returncode == 2
