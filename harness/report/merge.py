"""Putting the parts of a run together, and runs on several backends beside each other.

Parts of one run are those of the same kind, backend, orchestrator and system. They must be all of it, each once, of the
same commit and of the same selection: a gap, a test that ran twice or a part of something else would make a green page
that says nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from harness.crash.cells import parse
from harness.errors import HarnessError
from harness.report.build import finished
from harness.report.model import SWEEP, Crash, Report, Row, Run, Skipped, Timeline, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SHOWN = 5
"""How many names of what is wrong an error shows."""

Whose = tuple[str, str, str, str]
Given = list[tuple[str, Run]]
"""Runs, each with the file that it is from."""


def merge(paths: Sequence[str], *, partial: bool = False) -> Report:
    """Read reports and put them together.

    Args:
        paths: Their files; one alone must be a whole run, too.
        partial: Whether parts may be missing.

    Returns:
        One document with everything that they say.

    Raises:
        HarnessError: A file is no report, or the parts aren't one whole.
    """
    given = [(path, read(path)) for path in paths]
    runs = [(path, run) for path, report in given for run in report.runs]
    _same("commit", runs, lambda run: run.commit, "nothing")
    groups: dict[Whose, Given] = {}
    for path, run in runs:
        groups.setdefault(whose(run), []).append((path, run))
    for members in groups.values():
        _one_whole(members, partial=partial)
    for path, report in given:
        _name_apart(report, groups)
        _as_promised(path, report)
    merged = _joined([report for _, report in given])
    _each_once(merged)
    return merged


def whose(run: Run) -> Whose:
    """Return what parts of one run have in common."""
    return run.kind, run.backend, run.orchestrator, run.system


def missing(report: Report) -> list[str]:
    """Return the parts that a document lacks, in words."""
    there: dict[Whose, list[Run]] = {}
    for run in report.runs:
        there.setdefault(whose(run), []).append(run)
    found: list[str] = []
    for (kind, backend, *_), runs in there.items():
        absent = sorted(set(range(1, runs[0].shard.count + 1)) - {run.shard.index for run in runs})
        if absent:
            found.append(f"{kind} on {backend}: {_listed(f'{index}/{runs[0].shard.count}' for index in absent)}")
    return found


def unjudged(report: Report) -> list[str]:
    """Return the runs of a document in which everything was skipped, in words: they are neither red nor green."""
    found: list[str] = []
    for kind, backend in dict.fromkeys((run.kind, run.backend) for run in report.runs):
        rows = [row.outcome for row in report.cells if row.backend == backend]
        crashes = [one for one in report.crashes if one.backend == backend and not one.node]
        if (kind == SWEEP and not crashes) or (kind != SWEEP and rows and {*rows} == {"skip"}):
            found.append(f"{kind} on {backend}")
    return found


def _one_whole(members: Given, *, partial: bool) -> None:
    """Check that some runs are the parts of one."""
    _same("selection", members, lambda run: run.selection.digest, "nothing")
    _same("sweep", members, lambda run: run.sweep, "nothing")
    _same("number of shards", members, lambda run: run.shard.count, "none")
    by_index: dict[int, list[str]] = {}
    for path, run in members:
        by_index.setdefault(run.shard.index, []).append(path)
    count = members[0][1].shard.count
    for index, paths in by_index.items():
        if len(paths) > 1:
            raise HarnessError(f"{', '.join(paths)}: both are shard {index}/{count}; each part goes in once")
    absent = [f"{index}/{count}" for index in range(1, count + 1) if index not in by_index]
    if absent and not partial:
        there = ", ".join(path for path, _ in members)
        raise HarnessError(f"{there}: shard {_listed(absent)} is missing; add its report, or take --partial")
    ran, selected = sum(run.shard.items for _, run in members), members[0][1].selection.items
    if not absent and ran != selected:
        there = ", ".join(path for path, _ in members)
        raise HarnessError(f"{there}: {ran} of {selected} selected items are in a shard; run it again")


def _same(what: str, members: Given, value: Callable[[Run], object], nothing: str) -> None:
    first_path, first = members[0]
    for path, run in members[1:]:
        if value(run) != value(first):
            told = f"{str(value(first)) or nothing} and {str(value(run)) or nothing}"
            raise HarnessError(f"{first_path}, {path}: not parts of one run: another {what}, {told}")


def _as_promised(path: str, report: Report) -> None:
    """Check that a sweep's document holds the cells that it says it ran: those that could not run are named in it."""
    if [run.kind for run in report.runs] != [SWEEP] or report.skipped or report.runs[0].cut:
        return
    found = sum(_is_cell(one.cell) for one in report.crashes)
    if found != report.runs[0].shard.items:
        raise HarnessError(f"{path}: {found} of its {report.runs[0].shard.items} cells are in it")


def _each_once(report: Report) -> None:
    rows = Counter((row.backend, row.node) for row in report.cells)
    cells = Counter((one.backend, one.cell) for one in report.crashes if not one.node and _is_cell(one.cell))
    for counts in (rows, cells):
        again = [f"{name} on {backend}" for (backend, name), count in counts.items() if count > 1]
        if again:
            raise HarnessError(f"{_listed(again)}: in more than one shard")


def _is_cell(name: str) -> bool:
    try:
        parse(name)
    except HarnessError:
        return False
    return True


def _name_apart(report: Report, groups: Iterable[Whose]) -> None:
    """Call a backend by its system or orchestrator, too, where runs differ by that alone."""
    if len(report.runs) != 1:
        return
    _, backend, orchestrator, system = whose(report.runs[0])
    others = [one for one in groups if one[1] == backend]
    words = [system] if len({one[3] for one in others}) > 1 else []
    words += [orchestrator] if len({one[2] for one in others}) > 1 else []
    if words:
        name = f"{backend} ({', '.join(words)})"
        told: list[Row | Crash | Timeline | Skipped] = [*report.cells, *report.crashes]
        for one in [*told, *report.timelines, *report.skipped]:
            one.backend = name


def _joined(reports: Sequence[Report]) -> Report:
    first = reports[0]
    runs = [run for report in reports for run in report.runs]
    whole = Report(
        format=first.format,
        backend=", ".join(dict.fromkeys(run.backend for run in runs)),
        orchestrator=", ".join(dict.fromkeys(run.orchestrator for run in runs)),
        runs=sorted(runs, key=lambda run: (whose(run), run.shard.index)),
    )
    for report in reports:
        whole.crash_points += report.crash_points
        whole.violations += report.violations
        whole.cells_fired += report.cells_fired
        whole.processes_started += report.processes_started
        whole.crashes += report.crashes
        whole.timelines += report.timelines
        whole.skipped += report.skipped
    seen = {(one.what, one.backend, one.reason): one for one in whole.skipped}
    whole.skipped = list(seen.values())
    return finished(whole, [row for report in reports for row in report.cells])


def _listed(names: Iterable[str]) -> str:
    found = [*names]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
