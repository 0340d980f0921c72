"""What a run of the scenarios says at its end: one table, scenario by backend, and one file for machines.

Both are made by the process that the user started, from what every worker sends with its reports, so they are the
same with and without parallel workers, and printed once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

PROPERTY = "nvx"
"""The name of the property that a scenario's report carries."""

FIGURES = "nvx-figures"
"""The name of the property that a sweep's report carries: its figures by name."""

CRASHES = "nvx-crashes"
"""The name of the property that holds crash cells, each with what became of it."""

LEFT = "nvx-left"
"""The name of the property that says what a sweep has left out, since it can't run here: how much, and why."""

STORY = "nvx-story"
"""The name of the property that holds what happened in a failed test: moments, by microseconds."""

COUNTED = ("crashPoints", "violations", "cellsFired", "processesStarted")
"""The figures of the report: where orchestrators were crashed, what was held against them, how many of the cells fired,
and how many processes were really started for it."""

GROUPS = ("c3", "c4", "c5", "c6", "c7", "crash", "command_line", "image_swap", "lifecycle", "windows")
"""The markers that make a test a scenario, in the table's order."""

Moment = tuple[int, str, str]
"""Microseconds, who, what."""

Told = dict[str, object]
"""What a worker tells of something, by name."""


@dataclass(slots=True)
class Cell:
    """One test of a scenario on one backend.

    Attributes:
        node: Its id, as pytest takes it.
        scenario: The behaviour that it shows, in words.
        groups: The markers that it carries of :data:`GROUPS`.
        backend: What it ran on.
        cases: The cases of the catalogue that it replays.
        clauses: The clauses of the specification that it shows.
        outcome: ``pass``, ``fail`` or ``skip``.
        reason: Why, for a fail or a skip: one line.
        evidence: Where the evidence of a failure is.
        figures: What the scenario measured, by name.
        unseen: What it couldn't judge, since it isn't visible on the backend.
        guests: What its guests found that are Linux itself, by name.
        command_line: Bytes of the longest kernel command line that it booted, by the family of the tokens.
        replay: The command that runs it again.
        seconds: How long it took.
        story: What happened, for a fail.
        vmms: What became of its VMMs, for a fail.
    """

    node: str
    scenario: str
    groups: list[str]
    backend: str
    cases: list[str] = field(default_factory=list[str])
    clauses: list[str] = field(default_factory=list[str])
    outcome: str = ""
    reason: str = ""
    evidence: str = ""
    figures: dict[str, int] = field(default_factory=dict[str, int])
    unseen: list[str] = field(default_factory=list[str])
    guests: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    command_line: dict[str, int] = field(default_factory=dict[str, int])
    replay: str = ""
    seconds: float = 0.0
    story: list[Moment] = field(default_factory=list[Moment])
    vmms: list[Told] = field(default_factory=list[Told])


class Table:
    """Collects the cells of a run.

    Attributes:
        figures: What was counted, by the names of :data:`COUNTED`.
        crashes: Crash cells as whoever ran them tells of them, each with its test and backend; the report reads them.
        cut: Whether the run ended before everything had run.
    """

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}
        self.figures: Counter[str] = Counter()
        self.crashes: list[Told] = []
        self.cut = False
        self._seconds: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._cells)

    def take(self, properties: Iterable[tuple[str, object]], outcome: str, reason: str) -> None:
        """Take one phase of one test.

        Args:
            properties: The report's properties; those of other tests than scenarios are ignored.
            outcome: pytest's word for the phase: ``passed``, ``failed`` or ``skipped``.
            reason: Why, for the latter two.
        """
        given = dict(properties)
        cell = _cell(cast("dict[str, object]", given[PROPERTY])) if PROPERTY in given else None
        if cell is not None:
            cell.story = moments(given.get(STORY))
            cell.unseen += _strings(given.get(LEFT))
            self._note(cell, outcome, reason)
        self.figures.update(cast("dict[str, int]", given.get(FIGURES, {})))
        for one in cast("list[Told]", given.get(CRASHES, [])):
            self.crashes.append({**one, "backend": cell.backend, "node": cell.node} if cell else one)

    def spend(self, properties: Iterable[tuple[str, object]], seconds: float) -> None:
        """Take note of how long a phase of a test took."""
        for name, value in properties:
            if name == PROPERTY:
                node = str(cast("dict[str, object]", value)["node"])
                self._seconds[node] = self._seconds.get(node, 0.0) + seconds

    def lose(self, node: str, backend: str, reason: str, properties: Iterable[tuple[str, object]] = ()) -> None:
        """Take a test whose worker died in it, which ends the run; what it would have said of itself is lost.

        Args:
            node: Its id.
            backend: The backend of the run.
            reason: What is known.
            properties: What its worker had noted of it, if it had.
        """
        self.cut = True
        if known := dict(properties).get(PROPERTY):
            self._note(_cell(cast("dict[str, object]", known)), "failed", reason)
            return
        function = node.partition("[")[0].rpartition("::")[2]
        self._note(Cell(node=node, scenario=words(function), groups=[], backend=backend), "failed", reason)

    def cells(self) -> list[Cell]:
        """Return the cells in the table's order."""
        for node, seconds in self._seconds.items():
            if node in self._cells:
                self._cells[node].seconds = seconds
        return sorted(self._cells.values(), key=lambda cell: (_place(cell), cell.scenario, cell.node))

    def lines(self) -> list[str]:
        """Return the table as lines of plain text."""
        rows = self._rows()
        heads = [(_group(cells[0]), cells[0].scenario, cells[0].backend, _summary(cells)) for cells in rows]
        names = ("group", "scenario", "backend")
        width = [max(len(name), *(len(head[place]) for head in heads)) for place, name in enumerate(names)]
        lines = [f"{'group':{width[0]}}  {'scenario':{width[1]}}  {'backend':{width[2]}}  result"]
        for (group, scenario, backend, summary), cells in zip(heads, rows, strict=True):
            lines.append(f"{group:{width[0]}}  {scenario:{width[1]}}  {backend:{width[2]}}  {summary}")
            lines += [f"{'':{width[0]}}    {line}" for line in [*_measured(cells), *_unseen(cells), *_reasons(cells)]]
        counts = [f"{sum(cell.outcome == word for cell in self.cells())} {word}" for word in ("pass", "fail", "skip")]
        total = f"{_count(len(rows), 'scenario')}, {_count(len(self._cells), 'cell')}"
        cut = ["the run was cut short: what isn't listed was not run"] if self.cut else []
        return [*lines, *self._counted(), f"{total}: {', '.join(counts)}", *cut]

    def _note(self, cell: Cell, outcome: str, reason: str) -> None:
        reason = cell.reason or reason
        known = self._cells.setdefault(cell.node, cell)
        known.evidence = cell.evidence or known.evidence
        known.replay = cell.replay or known.replay
        known.story = cell.story or known.story
        known.vmms = cell.vmms or known.vmms
        known.figures |= cell.figures
        known.unseen = known.unseen or cell.unseen
        known.guests = known.guests or cell.guests
        known.command_line = cell.command_line or known.command_line
        word = {"passed": "pass", "failed": "fail", "skipped": "skip"}[outcome]
        # A failed phase is the last word; a later phase that passes takes nothing back.
        if known.outcome in {"", "pass"}:
            known.outcome, known.reason = word, reason

    def _counted(self) -> list[str]:
        points, violations, fired, started = (self.figures[name] for name in COUNTED)
        if not points:
            return []
        cells = f"{_count(points, 'crash point')}, {fired} of them fired, {_count(started, 'process', 'es')} started"
        return [f"{cells}: {_count(violations, 'violation')}"]

    def _rows(self) -> list[list[Cell]]:
        rows: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self.cells():
            rows.setdefault((_group(cell), cell.scenario, cell.backend), []).append(cell)
        return list(rows.values())


def words(function: str) -> str:
    """Return a test function's name as the behaviour that it shows."""
    return function.removeprefix("test_").replace("_", " ")


def _cell(value: dict[str, object]) -> Cell:
    return Cell(
        node=str(value["node"]),
        scenario=str(value["scenario"]),
        groups=_strings(value["groups"]),
        backend=str(value["backend"]),
        cases=_strings(value["cases"]),
        clauses=_strings(value["clauses"]),
        reason=str(value.get("reason", "")),
        evidence=str(value.get("evidence", "")),
        replay=str(value.get("replay", "")),
        figures=_figures(value.get("figures")),
        unseen=_strings(value.get("unseen")),
        guests=cast("list[dict[str, object]]", value.get("guests") or []),
        command_line=_figures(value.get("commandLine")),
        vmms=cast("list[Told]", value.get("vmms") or []),
    )


def moments(value: object) -> list[Moment]:
    """Return a story as it was sent."""
    return [(offset, who, what) for offset, who, what in cast("list[Moment]", value or [])]


def _strings(value: object) -> list[str]:
    return [str(entry) for entry in cast("list[object]", value)] if isinstance(value, list) else []


def _figures(value: object) -> dict[str, int]:
    entries = cast("dict[object, object]", value) if isinstance(value, dict) else {}
    return {str(name): number for name, number in entries.items() if isinstance(number, int)}


def _place(cell: Cell) -> int:
    return min((GROUPS.index(group) for group in cell.groups if group in GROUPS), default=len(GROUPS))


def _group(cell: Cell) -> str:
    place = _place(cell)
    return GROUPS[place] if place < len(GROUPS) else "-"


def _summary(cells: list[Cell]) -> str:
    counts = {word: sum(cell.outcome == word for cell in cells) for word in ("fail", "pass", "skip")}
    if len(cells) == 1:
        return next(word for word, count in counts.items() if count)
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def _measured(cells: list[Cell]) -> list[str]:
    return [
        f"{_parameters(cell)}{', '.join(f'{name} {number}' for name, number in cell.figures.items())}"
        for cell in cells
        if cell.figures
    ]


def _unseen(cells: list[Cell]) -> list[str]:
    counts = Counter(", ".join(cell.unseen) for cell in cells if cell.unseen)
    return [f"not seen {what}" if count == 1 else f"not seen {what} ({count} cells)" for what, count in counts.items()]


def _reasons(cells: list[Cell]) -> list[str]:
    lines = [f"fail {_parameters(cell)}{cell.reason}" for cell in cells if cell.outcome == "fail"]
    skipped: dict[str, int] = {}
    for cell in cells:
        if cell.outcome == "skip":
            skipped[cell.reason] = skipped.get(cell.reason, 0) + 1
    for reason, count in skipped.items():
        lines.append(f"skip {reason}" if count == 1 else f"skip {reason} ({count} cells)")
    return lines


def _count(number: int, word: str, ending: str = "s") -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}{ending}"


def _parameters(cell: Cell) -> str:
    _, bracket, rest = cell.node.partition("[")
    return f"{bracket}{rest}: " if bracket else ""
