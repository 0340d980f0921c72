"""Directories of runs that were killed: swept by the next run, and only once nobody can be in there any more."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import places, python, stale
from harness.deadline import until
from harness.platform import short_root, take_directory
from harness.settings import require_runs
from harness.witness.evidence import Evidence
from tests.harness.stubs import SOON

pytest_plugins = ["pytester"]

HOLDS = """
from harness import stale
stale.claim(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""

SWEEPS = """
import os
from harness import stale
print("up", flush=True)
while not os.path.exists(sys.argv[2]):
    stale.sweep(sys.argv[1])
"""
ROUNDS = 400


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvx-l-", dir=short_root()) as place:
        yield Path(place)


def left(root: Path, *names: str) -> Path:
    """Make the directory of a run whose processes have all ended."""
    path = root / "nvx-0123abcd"
    stale.claim(str(path))
    stale.release(str(path))
    for name in names:
        (path / name).mkdir()
    return path


@pytest.mark.case("T62")
def test_what_a_dead_run_left_is_removed_but_its_evidence(root: Path) -> None:
    path = left(root, "77.0", "a77", "evidence")
    (path / "evidence" / "figures.txt").touch()
    assert stale.sweep(str(root)) == [str(path)]
    assert sorted(entry.name for entry in path.iterdir()) == ["evidence"]
    assert stale.sweep(str(root)) == []


@pytest.mark.parametrize("empty", [[], ["evidence"]], ids=["none", "empty"])
def test_without_evidence_nothing_stays(root: Path, empty: list[str]) -> None:
    path = left(root, "77.0", *empty)
    stale.sweep(str(root))
    assert not path.exists()


def test_a_run_that_begins_while_others_sweep_has_its_directory(root: Path) -> None:
    """Between being made and being held a directory looks like a killed run's."""
    script = python.write_script(str(root / "sweeps.py"), packages=("harness",), body=SWEEPS)
    command = [*script, str(root), str(root / "enough")]
    sweepers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        assert [sweeper.stdout and sweeper.stdout.readline().strip() for sweeper in sweepers] == [b"up", b"up"]
        for number in range(ROUNDS):
            path = root / f"nvx-{number:08x}"
            stale.claim(str(path))
            (path / "77.0").mkdir()
            assert all(sweeper.poll() is None for sweeper in sweepers)
            (path / "77.0").rmdir()
            stale.release(str(path))
    finally:
        (root / "enough").touch()
        for sweeper in sweepers:
            sweeper.communicate()
    assert [sweeper.returncode for sweeper in sweepers] == [0, 0]


def test_a_run_waits_for_whoever_looks_whether_it_is_over(root: Path) -> None:
    """A sweep holds the directory while it looks at every process, however long the machine takes for that."""
    session = root / "nvx-0123abcd"
    (session / ".owned").mkdir(parents=True)
    taken = take_directory(str(session / ".owned"))
    assert taken is not None
    claimed = threading.Event()

    def claim() -> None:
        stale.claim(str(session))
        claimed.set()

    with ThreadPoolExecutor(1) as threads:
        claiming = threads.submit(claim)
        assert not claimed.wait(0.3)
        assert not claiming.done()
        os.close(taken)
        claiming.result()
    assert take_directory(str(session / ".owned")) is None
    stale.release(str(session))


def test_a_world_that_ends_leaves_its_neighbours_their_directory(root: Path) -> None:
    """Tests of one run share a directory for what they keep, whichever of them ends first."""
    session = root / "nvx-0123abcd"

    def keeps(name: str) -> None:
        for _ in range(ROUNDS):
            evidence = Evidence(str(session / "evidence" / name), root=str(root / "s"))
            evidence.keep("figures.txt", name)
            evidence.remove()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(keeps, name) for name in ("one", "two")]:
            done.result()
    stale.claim(str(session))
    places.clear(str(session))
    assert not session.exists()


def test_a_trial_of_the_place_leaves_a_run_on_its_way_in_alone(root: Path) -> None:
    """Each process of a run tries the place where runs are, while others make their directory there."""
    session = root / "nvx-0123abcd"

    def tries() -> None:
        for _ in range(ROUNDS):
            require_runs(str(session))

    with ThreadPoolExecutor(1) as threads:
        trying = threads.submit(tries)
        while not trying.done():
            os.makedirs(session / ".owned", exist_ok=True)
            (session / ".owned").rmdir()
            session.rmdir()
        trying.result()


def test_a_run_with_one_process_alive_is_left_alone_and_swept_after_its_death(root: Path) -> None:
    path = left(root, "77.0")
    script = python.write_script(str(root / "holds.py"), packages=("harness",), body=HOLDS)
    with subprocess.Popen([*script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"held"
        # Its command names the directory, too: the lock alone must do.
        assert stale.sweep(str(root)) == []
        assert (path / "77.0").is_dir()
        child.kill()
    assert until(lambda: stale.sweep(str(root)), SOON(60)) == [str(path)]


@pytest.mark.parametrize("what", ["no lock", "a process", "a link", "another name"])
def test_what_is_not_proven_to_be_over_is_left_alone(root: Path, what: str) -> None:
    path = root / "nvx-0123abcd"
    if what == "no lock":
        (path / "77.0").mkdir(parents=True)
    elif what == "another name":
        path = left(root, "77.0").rename(root / "nvx-demo")
    elif what == "a link":
        if sys.platform == "win32":
            pytest.skip("links take a privilege there")
        (root / "elsewhere" / ".owned").mkdir(parents=True)
        path.symlink_to(root / "elsewhere")
    else:
        left(root, "77.0")
    words = [str(path / "77.0" / "vmm.py")] if what == "a process" else []
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    command = [python.interpreter(), "-I", "-c", code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"up"
        before = sorted(str(entry) for entry in root.rglob("*"))
        assert stale.sweep(str(root)) == []
        assert sorted(str(entry) for entry in root.rglob("*")) == before
        child.communicate()


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_run_that_is_killed_is_swept_by_the_next_one(
    pytester: pytest.Pytester, root: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    monkeypatch.setenv("NVX_RUNS", str(root))
    pytester.makepyfile(
        test_dies="""
import os, pytest

@pytest.mark.lifecycle
def test_it(world):
    os.kill(os.getpid(), 9)
""",
        test_lives="import pytest\n\n@pytest.mark.lifecycle\ndef test_it(world):\n    pass\n",
    )
    assert pytester.runpytest_subprocess("test_dies.py").ret != 0
    (dead,) = root.iterdir()
    assert {".owned"} < set(os.listdir(dead))
    pytester.runpytest_subprocess("test_lives.py", *workers).assert_outcomes(passed=1)
    assert list(root.iterdir()) == []
