"""How fast the harness is: crash cells a second, and the scenarios on one processor and on two."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from tests.bench.measure import Row, in_unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
JOBS = 2
FAILING = ("FAILED", "ERROR", "error:")
"""How lines begin that say what failed."""
SHOWN = 3


def sweep_rows(scale: float = 1) -> list[Row]:
    """Measure whole crash cells: provision, crash, recovery, start, stop, removal, with every witness."""
    scenes = ["start"] if scale < 1 else ["provision", "start", "stop", "recover", "deprovision"]
    rows: list[Row] = []
    for started, name, target in ((False, "crash-cells", 10.0), (True, "crash-cells-started", 2.0)):
        cells, elapsed, busy = _sweep(scenes[:2] if started else scenes, started=started)
        rows.append(
            Row(
                id=name,
                what="whole crash cells a second, "
                + ("each orchestrator started" if started else "by the fork server"),
                measured=cells / elapsed,
                unit="cells/s",
                target=target,
                bound="least",
                figures=in_unit({"elapsed": elapsed, "of processors": busy, "processors' each": busy / cells}, 1),
                figure_unit="s",
                rounds=cells,
                note=f"planning and start are in it; by processor time alone it were {JOBS * cells / busy:.3g} cells/s",
            )
        )
    return rows


def scenario_rows(scale: float = 1) -> list[Row]:
    """Measure `pytest scenarios/` on the fake: one process, and two."""
    chosen = ["-k", "managed or command"] if scale < 1 else []
    serial, _ = timed([sys.executable, "-m", "pytest", "-q", "scenarios", "-n", "0", *chosen])
    double, busy = timed([sys.executable, "-m", "pytest", "-q", "scenarios", "-n", str(JOBS), *chosen])
    figures = in_unit({"serial": serial, f"-n {JOBS}": double, f"-n {JOBS}, of processors": busy}, 1)
    what = "pytest scenarios/ on the fake, " + ("a few of them" if chosen else "quick")
    return [
        Row(
            id="scenarios",
            what=f"{what}, -n {JOBS}",
            measured=double,
            unit="s",
            target=90,
            bound="most",
            figures=figures,
            figure_unit="s",
            rounds=1,
        ),
        Row(
            id="scenarios-parallel",
            what=f"{what}, -n {JOBS} over serial",
            measured=double / serial,
            unit="x",
            target=0.7,
            bound="most",
            figures=figures,
            figure_unit="s",
            rounds=1,
        ),
    ]


def _sweep(scenes: list[str], *, started: bool) -> tuple[int, float, float]:
    with tempfile.TemporaryDirectory() as place:
        report = os.path.join(place, "sweep.json")
        command = [sys.executable, "-m", "harness", "sweep", "--group", "steps", "-j", str(JOBS), "--report", report]
        command += [word for scene in scenes for word in ("--scene", scene)]
        elapsed, busy = timed([*command, *(["--started"] if started else [])])
        with open(report, encoding="utf-8") as file:
            found = json.load(file)
    assert not found["violations"], f"{found['violations']} of the cells failed"
    return int(found["crashPoints"]), elapsed, busy


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command, and return its seconds and those that it and its children had a processor."""
    before, begin = _children(), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - begin
    assert done.returncode == 0, _told(done.stdout + done.stderr)
    return elapsed, _children() - before


def _told(text: str) -> str:
    """Return what failed, in one line."""
    lines = [line for line in text.splitlines() if line.strip()] or ["nothing was said"]
    telling = [line for line in lines if line.startswith(FAILING)]
    return "; ".join(dict.fromkeys([*telling[:SHOWN], lines[-1]]))


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
