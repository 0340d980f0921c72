"""Processes that provision, enter and remove one sandbox at once, some of them killed on the way."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvx_ref.store.names import LOCK
from sandboxes import NAME, SUPPORT, Site, soon
from system import KILLED, PYTHON, SLOWER, environment

WORKER = SUPPORT / "lock_worker.py"


def worker(site: Site, turns: int, seed: int) -> subprocess.Popen[bytes]:
    witness = Path(site.root, "witness")
    witness.touch()
    child = subprocess.Popen(
        [PYTHON, str(WORKER), site.store.root, NAME, str(witness), str(turns), str(seed)],
        env=environment(str(SUPPORT.parents[1])),
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == b"ready"
    child.stdout.close()
    return child


def removed(site: Site) -> None:
    if site.path().exists():
        with site.store.lock_removal(NAME, deadline=soon()) as locked:
            locked.recover()
            locked.remove()
    assert not site.path().exists()


@pytest.mark.spec("620.scope6.a")
@pytest.mark.spec("620.acc.12", "620.acc.13")
@pytest.mark.case("T41")
def test_processes_exclude_each_other_through_provisions_and_removals(site: Site) -> None:
    workers = [worker(site, 150 // SLOWER, seed) for seed in range(4)]
    assert [one.wait() for one in workers] == [0] * 4
    if site.path().exists():
        assert site.listing() == {"config.json", LOCK}
    removed(site)


@pytest.mark.spec("620.acc.12", "620.acc.13")
@pytest.mark.case("T19")
def test_killed_processes_leave_nothing_that_stops_the_others(site: Site) -> None:
    steady = [worker(site, 200 // SLOWER, seed) for seed in range(2)]
    for seed in range(8 // SLOWER + 1):
        victim = worker(site, 100_000, 100 + seed)
        # Wherever it is by now: each run is another instant.
        victim.kill()
        assert victim.wait() == KILLED
    assert [one.wait() for one in steady] == [0, 0]
    removed(site)
