"""The document of one run, from what its table or its tally holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Literal

import msgspec

from harness.crash.cells import parse
from harness.errors import HarnessError
from harness.platform import KERNEL, system_name
from harness.report.model import (
    SCENARIOS,
    SWEEP,
    Carried,
    Crash,
    Guest,
    Kind,
    Moment,
    Outcome,
    Report,
    Row,
    Run,
    Selection,
    Shard,
    Skipped,
    Timeline,
    Vmm,
)
from harness.sharding import digest
from harness.table import COUNTED, moments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness import table
    from harness.settings import Settings
    from harness.sharding import Slice

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
UNKNOWN_WAY = "?"
OUTCOMES: dict[str, Outcome] = {"pass": "pass", "fail": "fail", "skip": "skip"}


def of_scenarios(found: table.Table, settings: Settings, slice_: Slice) -> Report:
    """Return the document of a run of pytest.

    Args:
        found: Its table.
        settings: Its options.
        slice_: Which tests of how many it covers.
    """
    run = _run(SCENARIOS, settings, slice_, cut=found.cut)
    rows = [_row(cell) for cell in found.cells()]
    timelines = [_timeline(cell.node, cell.backend, cell.story) for cell in found.cells() if cell.story]
    return finished(_report(run, found.figures, found.crashes, timelines), rows)


def of_sweep(
    crashes: Sequence[table.Told],
    figures: Mapping[str, int],
    missing: Mapping[str, int],
    settings: Settings,
    slice_: Slice,
) -> Report:
    """Return the document of a sweep.

    Args:
        crashes: Its cells.
        figures: Its figures.
        missing: Why what could not run could not, each with how many cells it was.
        settings: Its options.
        slice_: Which cells of how many it covers.
    """
    report = _report(_run(SWEEP, settings, slice_, cut=False), figures, crashes, [])
    report.skipped = [
        Skipped("crash cells", settings.backend, reason, count) for reason, count in sorted(missing.items())
    ]
    return report


def finished(report: Report, rows: list[Row]) -> Report:
    """Give a document its rows, and what follows from them."""
    report.cells = rows
    report.skipped = [one for one in report.skipped if one.what == "crash cells"] + _skipped(rows)
    report.ids = [carried for kind in ("spec", "case") for carried in _carried(rows, kind)]
    return report


def _run(kind: Kind, settings: Settings, slice_: Slice, *, cut: bool) -> Run:
    return Run(
        kind=kind,
        backend=settings.backend,
        orchestrator=settings.orchestrator or "reference",
        system=f"{KERNEL}{system_name()}",
        commit=commit(),
        sweep=settings.sweep,
        selection=Selection(len(slice_.whole), digest(slice_.whole)),
        shard=Shard(slice_.shard.index, slice_.shard.count, len(slice_.own)),
        cut=cut,
    )


def _report(run: Run, figures: Mapping[str, int], crashes: Sequence[table.Told], timelines: list[Timeline]) -> Report:
    points, violations, fired, started = (figures.get(name, 0) for name in COUNTED)
    made = [_crash({"backend": run.backend, **one}) for one in crashes]
    stories = [moments(one.get("story")) for one in crashes]
    told = [_timeline(one.cell, one.backend, story) for one, story in zip(made, stories, strict=True) if story]
    return Report(
        format=1,
        backend=run.backend,
        orchestrator=run.orchestrator,
        runs=[run],
        crash_points=points,
        violations=violations,
        cells_fired=fired,
        processes_started=started,
        crashes=made,
        timelines=[*timelines, *told],
    )


def _row(cell: table.Cell) -> Row:
    return Row(
        node=cell.node,
        scenario=cell.scenario,
        groups=cell.groups,
        backend=cell.backend,
        cases=cell.cases,
        clauses=cell.clauses,
        outcome=OUTCOMES[cell.outcome],
        reason=cell.reason,
        evidence=cell.evidence,
        replay=cell.replay,
        seconds=round(cell.seconds, 3),
        figures=cell.figures,
        unseen=cell.unseen,
        guests=msgspec.convert(cell.guests, list[Guest]),
        command_line=cell.command_line,
        vmms=msgspec.convert(cell.vmms, list[Vmm]),
    )


def _crash(told: table.Told) -> Crash:
    """Return a crash cell by what whoever ran it tells of it."""
    name, reason, replay = str(told["cell"]), str(told.get("reason", "")), str(told.get("replay", ""))
    try:
        cell = parse(name)
        scene, way, point, hit = cell.scene, cell.way, cell.point.name, cell.point.hit
        then = str(cell.then) if cell.then else ""
    except HarnessError:
        # What failed before there were cells is called by its scene and what was tried.
        scene, _, point = name.partition("/")
        way, hit, then, replay = UNKNOWN_WAY, 1, "", ""
    return Crash(
        cell=name,
        scene=scene,
        way=way,
        point=point,
        hit=hit,
        then=then,
        backend=str(told["backend"]),
        outcome="fail" if reason else "pass",
        fired=told.get("fired") is not False,
        verdict=str(told.get("verdict", "")),
        reason=reason,
        evidence=str(told.get("evidence", "")),
        replay=replay,
        seconds=float(str(told.get("seconds", 0.0))),
        node=str(told.get("node", "")),
        vmms=msgspec.convert(told.get("vmms") or [], list[Vmm]),
    )


def _timeline(case: str, backend: str, story: Iterable[table.Moment]) -> Timeline:
    return Timeline(case, backend, [Moment(*moment) for moment in story])


def _skipped(rows: Iterable[Row]) -> list[Skipped]:
    counts = Counter((row.scenario, row.backend, row.reason) for row in rows if row.outcome == "skip")
    return [Skipped(*key, count) for key, count in counts.items()]


def _carried(rows: Sequence[Row], kind: Literal["spec", "case"]) -> list[Carried]:
    outcomes: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        for one in row.clauses if kind == "spec" else row.cases:
            outcomes.setdefault(row.backend, {}).setdefault(one, set()).add(row.outcome)
    found: list[Carried] = []
    for backend, ids in sorted(outcomes.items()):
        words = Counter(_worst(seen) for seen in ids.values())
        found.append(Carried(backend, kind, words["pass"], words["fail"], words["skip"]))
    return found


def _worst(outcomes: set[str]) -> str:
    return next(word for word in ("fail", "pass", "skip") if word in outcomes)


def commit() -> str:
    """Return the commit of the project that this is, with ``+changes`` where files differ; empty if unknown.

    What is built from an archive can be told by the variable `NVX_COMMIT`.
    """
    if told := os.environ.get("NVX_COMMIT"):
        return told
    if not os.path.exists(os.path.join(ROOT, ".git")):
        return ""
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return f"{head}{'+changes' if changes else ''}" if head else ""


def _git(*words: str) -> str:
    command = [shutil.which("git") or "git", "-C", ROOT, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
