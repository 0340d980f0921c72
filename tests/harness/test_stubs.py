"""What the tests of the harness look with, while what they look at comes and goes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.harness.stubs import appears


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
