"""What runs left on Windows: state, processes by their launcher, and pipes by the name of a VM's."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import wine

wine.only_windows()

from harness import leftovers, python, witness
from harness.platform.pipes import PipeDoor
from harness.removing import remove_tree


@pytest.fixture
def root() -> Iterator[Path]:
    place = tempfile.mkdtemp(prefix="nvx-l-")
    yield Path(place)
    remove_tree(place)


def test_state_and_a_process_are_found(root: Path) -> None:
    place = root / "nvx-0123abcd" / "77.0"
    (root / "nvx-0123abcd" / "evidence").mkdir(parents=True)
    (root / "nvx-demo").mkdir()
    place.mkdir()
    script = place / "vmm.py"
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    command = [python.interpreter(), "-I", str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"up"
        found = leftovers.find(witness.host(), str(root))
        child.communicate()
    assert f"process {child.pid}: {' '.join(command)}" in found
    assert f"state {place}" in found
    after = leftovers.find(witness.host(), str(root))
    assert not [line for line in after if line.startswith("process ") and str(root) in line]


@wine.differs("pipes aren't listed")
def test_a_pipe_of_a_vm_is_found_as_long_as_it_is_served(root: Path) -> None:
    name = f"openvmm-microvm-{secrets.token_hex(16)}"
    door = PipeDoor(f"//./pipe/{name}")
    try:
        assert f"pipe {name}" in leftovers.find(witness.host(), str(root))
    finally:
        door.close()
    assert f"pipe {name}" not in leftovers.find(witness.host(), str(root))
    assert os.listdir(root) == []
