"""What the harness reads or removes while other processes of the run, or other runs, come and go there."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import leftovers, lost, places, python, removing, stale
from harness.witness.evidence import Evidence

LOOKS = 300


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in another thread for as long as the block lasts."""
    over = threading.Event()

    def keep_on() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=keep_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_note_of_a_dead_worker_is_found_among_those_that_come_and_go(tmp_path: Path) -> None:
    world = SimpleNamespace(root=str(tmp_path), state=str(tmp_path / "s"), evidence=Evidence("e", root="s"))

    def works() -> None:
        with lost.noted(world, str(tmp_path), {"node": "of the living"}):  # type: ignore[arg-type]
            pass

    with meanwhile(works):
        assert [lost.found(str(tmp_path), "of the dead") for _ in range(LOOKS)] == [{}] * LOOKS
    note = {"facts": {"node": "of the dead"}, "root": str(tmp_path), "state": str(tmp_path / "s")}
    (tmp_path / "0.now").symlink_to("gone")
    (tmp_path / "1.now").write_text(str({**note, "evidence": str(tmp_path / "e")}).replace("'", '"'))
    assert lost.found(str(tmp_path), "of the dead") == {"node": "of the dead", "evidence": str(tmp_path / "e")}


def test_evidence_is_copied_while_a_run_removes_what_it_kept(tmp_path: Path) -> None:
    session = tmp_path / "nvx-0123abcd"
    (session / "evidence" / "test_that_failed").mkdir(parents=True)
    (session / "evidence" / "test_that_failed" / "log").touch()
    passing = session / "evidence" / "test_that_passes" / "state"

    def works() -> None:
        passing.mkdir(parents=True)
        (passing / "log").touch()
        shutil.rmtree(passing.parent)

    with meanwhile(works):
        for _ in range(LOOKS):
            assert leftovers.keep(str(tmp_path / "out"), str(tmp_path)) == 1
    assert (tmp_path / "out" / session.name / "test_that_failed" / "log").is_file()


def test_a_copy_of_evidence_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    kept = tmp_path / "nvx-0123abcd" / "evidence" / "test_it"
    kept.mkdir(parents=True)
    (kept / "log").touch()
    (tmp_path / "out" / "nvx-0123abcd").mkdir(parents=True)
    (tmp_path / "out" / "nvx-0123abcd" / "test_it").touch()
    with pytest.raises(FileExistsError):
        leftovers.keep(str(tmp_path / "out"), str(tmp_path))


def test_a_run_s_directory_may_be_gone_when_it_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its release and its end it looks like a killed run's to a run that begins."""
    session = tmp_path / "nvx-0123abcd"
    stale.claim(str(session))
    release = stale.release

    def swept_at_once(path: str) -> None:
        release(path)
        assert stale.sweep(str(tmp_path)) == [path]

    monkeypatch.setattr(stale, "release", swept_at_once)
    places.clear(str(session))
    removing.remove_all(str(session), but=frozenset())
    assert os.listdir(tmp_path) == []


def test_a_script_that_is_written_anew_is_whole_for_whoever_is_about_to_read_it(tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    python.write_script(str(path), packages=(), body="print(1)")
    with open(path, encoding="utf-8") as reader:
        python.write_script(str(path), packages=(), body="print(1)")
        assert os.path.samestat(os.fstat(reader.fileno()), os.stat(path))
        python.write_script(str(path), packages=(), body="print(2)")
        assert reader.read().endswith("print(1)\n")
    assert path.read_text().endswith("print(2)\n")
    assert (path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (0o600, ["s.py"])
