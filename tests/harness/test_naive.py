"""Another orchestrator, in another language, taken apart: which contract points it fails is known, and stays so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.goldens import Goldens
from harness.python import as_text
from tests.harness.seeded import ROOT

NODE = shutil.which("node")
OLDEST = 18

SCENARIOS = [
    "test_cold_boot",
    "test_checked_handoff",
    "test_image_swap",
    "test_interrupted_launch",
    "test_restart_same_identity",
    "test_hard_to_read",
    "test_crash_points",
]
SWEPT = "not crash_anywhere or provision-calls or start-calls and not refused"
"""Of the sweeps those that ask for no co-operation, of the operations that leave most behind."""


def judged(report: Path) -> dict[str, list[dict[str, list[str]]]]:
    """Run scenarios on the naive orchestrator, and return their cells by outcome."""
    files = [f"scenarios/{name}.py" for name in SCENARIOS]
    options = ["-k", SWEPT, "-n", "2", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout-scale", "0.4"]
    naive = as_text([str(NODE), "docs/examples/naive.mjs"])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *files, *options, "--orchestrator", naive, "--nvx-report", str(report)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, report.exists()) == (1, True), done.stdout + done.stderr
    found = json.loads(report.read_text())
    for cell in found["cells"]:
        if cell["evidence"]:
            shutil.rmtree(Path(cell["evidence"]).parents[1], ignore_errors=True)
    return {word: [cell for cell in found["cells"] if cell["outcome"] == word] for word in ("pass", "fail", "skip")}


def lines(cells: list[dict[str, list[str]]]) -> list[str]:
    """Return each scenario that failed, with the points of the contract that it shows."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        head = f"{','.join(cell['groups'])}: {cell['scenario']}"
        found.setdefault(head, set()).update(cell["cases"], cell["clauses"])
    points = sorted(set().union(*found.values()))
    told = [line for head in sorted(found) for line in (head, f"    {' '.join(sorted(found[head]))}")]
    return [f"{len(found)} scenarios, {len(points)} points of the contract", "", *told]


@pytest.mark.skipif(NODE is None, reason="needs node (package nodejs)")
@pytest.mark.timeout(600)
def test_the_points_that_the_naive_orchestrator_fails_are_those_of_the_golden(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    version = subprocess.run([str(NODE), "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.strip().lstrip("v").partition(".")[0]) < OLDEST:
        pytest.skip(f"needs node {OLDEST} or newer (package nodejs), not {version.strip()}")
    cells = judged(tmp_path / "report.json")
    update = bool(pytestconfig.getoption("update_goldens"))
    Goldens(str(ROOT / "goldens"), update=update).check("harness/naive.txt", lines(cells["fail"]))
    # It isn't so bad that nothing can be said of it: what it can do is seen, too, and what it can't is named.
    assert len(cells["pass"]) >= 5
    reasons = {str(cell["reason"]) for cell in cells["skip"]}
    assert "needs store-v1, which the orchestrator doesn't declare" in reasons
    assert "needs step start.identity_recorded, which the orchestrator doesn't declare" in reasons
    swept = [cell for cell in cells["fail"] if str(cell["node"]).endswith("[start-calls]")]
    assert "of 8 crash cells failed" in str(swept[0]["reason"])


def test_it_has_the_length_that_it_says() -> None:
    count = len((ROOT / "docs" / "examples" / "naive.mjs").read_text().splitlines())
    assert 150 <= count <= 300
