"""What runs left: found after each kind of leak, and the evidence kept."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness import leftovers, python, witness
from tests.harness.stubs import found_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its leaks are planted with Linux's means")


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvx-l-", dir="/tmp") as place:
        yield Path(place)


def session(root: Path) -> Path:
    path = root / "nvx-0123abcd"
    path.mkdir()
    return path


def test_nothing_is_left_by_a_run_that_left_only_evidence(root: Path) -> None:
    (session(root) / "evidence" / "test_it").mkdir(parents=True)
    (root / "nvx-demo").mkdir()
    (root / "other").mkdir()
    assert found_of(root) == []


def test_state_and_sockets_are_found(root: Path) -> None:
    place = session(root) / "77.0"
    place.mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(place / "control.sock"))
        found = found_of(root)
    assert found == [f"socket {place}/control.sock", f"state {place}"]


@pytest.mark.parametrize("kind", ["openvmm", "launcher"])
def test_processes_are_found(root: Path, kind: str) -> None:
    place = session(root) / "evidence"
    place.mkdir()
    code = "import sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    if kind == "openvmm":
        (root / "bin").mkdir()
        program = root / "bin" / "openvmm"
        program.symlink_to(python.interpreter())
        command = [str(program), "-I", "-c", code]
    else:
        script = place / "vmm.py"
        script.write_text(code)
        command = [python.interpreter(), "-I", str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read(2) == b"up"
        found = found_of(root)
        child.communicate()
    assert [line for line in found if line.startswith(f"process {child.pid}: {command[0]}")]
    assert found_of(root) == []


def test_evidence_is_copied_by_run(root: Path) -> None:
    kept = session(root) / "evidence" / "test_it"
    kept.mkdir(parents=True)
    (kept / "log").write_text("said")
    (root / "nvx-ffffffff").mkdir()
    target = root / "out"
    assert leftovers.keep(str(target), str(root)) == 1
    assert (target / "nvx-0123abcd" / "test_it" / "log").read_text() == "said"
    assert os.listdir(target) == ["nvx-0123abcd"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="giving a file away needs root")
def test_what_other_users_have_is_named_and_not_counted(root: Path) -> None:
    own, other = session(root), root / "nvx-ffffffff"
    for place in (own, other):
        (place / "77.0").mkdir(parents=True)
    os.chown(other, 65534, 65534)
    command = ["/bin/sh", "-c", "printf up; read line", str(other / "vmm.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=65534, group=65534) as child:
        assert child.stdout is not None
        assert child.stdout.read(2) == b"up"
        found, others = found_of(root), leftovers.others(witness.host(), str(root))
        child.communicate()
    assert found == [f"state {own}/77.0"]
    (line,) = others
    assert line.startswith("1 run and 1 process of ")


def test_a_place_of_runs_that_is_not_there_holds_none(root: Path) -> None:
    (root / "file").touch()
    assert leftovers.sessions(str(root / "file")) == []
    assert leftovers.others(witness.host(), str(root / "none")) == []
    assert leftovers.sessions(str(root / "none")) == []
