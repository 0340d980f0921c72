"""What the tests of the harness look with, while what they look at comes and goes."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from harness.settings import RUNS
from tests.harness.stubs import appears, host, unmount_runs
from tests.harness.test_sweep import can_mount


def test_a_look_survives_directories_that_go_meanwhile(tmp_path: Path) -> None:
    over = threading.Event()

    def come_and_go() -> None:
        place = tmp_path / "nvx-0" / "test" / "out"
        while not over.is_set():
            place.mkdir(parents=True)
            for path in (place, place.parent, place.parent.parent):
                os.rmdir(path)

    changes = threading.Thread(target=come_and_go)
    changes.start()
    try:
        assert not any(appears(tmp_path, "nvx-*/*/out/*.txt") for _ in range(300))
    finally:
        over.set()
        changes.join()
    (tmp_path / "nvx-0" / "test" / "out").mkdir(parents=True)
    (tmp_path / "nvx-0" / "test" / "out" / "a.txt").touch()
    assert appears(tmp_path, "nvx-*/*/out/*.txt")


def test_what_is_mounted_outside_of_this_module_s_runs_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be what a scenario beside this one is about."""
    if not can_mount():
        pytest.skip("mounting needs root")
    ours, theirs = tmp_path / "ours" / "nvx-0123abcd" / "s", tmp_path / "theirs" / "nvx-0123abcd" / "s"
    monkeypatch.setenv(RUNS, str(tmp_path / "ours"))
    for place in (ours, theirs):
        place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        unmount_runs()
        assert host().mounts(str(tmp_path)) == [str(theirs)]
    finally:
        subprocess.run(["umount", theirs], check=True)
