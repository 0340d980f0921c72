"""How the suite is spread over workers: a group stays on one, and a worker that dies isn't replaced."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ("--max-worker-restart=0", "--dist=loadgroup")


def options() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(settings["tool"]["pytest"]["ini_options"]["addopts"])


GROUPED = """
import os, pytest

@pytest.mark.xdist_group("one resource")
@pytest.mark.parametrize("n", range(6))
def test_grouped(n):
    with open("workers", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""

DIES = """
import os, pytest

@pytest.mark.parametrize("n", range(4))
def test_it(n):
    os._exit(1)
"""


@pytest.mark.case("T64")
def test_the_suite_runs_in_groups_and_replaces_no_worker() -> None:
    assert set(WORKERS) <= set(options())


@pytest.mark.case("T64")
@pytest.mark.skipif(
    pytest.version_tuple >= (9, 2), reason="pytest 9.2 has no groups: pyproject.toml asks for an older one"
)
def test_tests_of_one_resource_share_one_worker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(GROUPED)
    pytester.runpytest_subprocess("-p", "no:randomly", "-n", "2", *WORKERS).assert_outcomes(passed=6)
    workers = (pytester.path / "workers").read_text().split()
    assert (len(workers), len(set(workers))) == (6, 1)


@pytest.mark.case("T64")
def test_a_worker_that_dies_ends_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(DIES)
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-n", "1", *WORKERS)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*worker 'gw0' crashed*"])
    result.stdout.no_fnmatch_line("*replacing crashed worker*")
    result.stdout.no_fnmatch_line("*'gw1'*")
