"""The page for people: one file that needs nothing else, no network and no script.

Everything that a report says is text to the template, which escapes it; a panel or a filter opens by the address or by
a box alone. The policy in the page's head lets the browser take its one style sheet, by digest, and nothing more.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from harness.crash.cells import EXIT, KILL, PAIR
from harness.crash.scenes import SCENES
from harness.errors import Unavailable
from harness.report.drawing import FAMILIES, WIDTH, Axis, axis, bars, shown
from harness.report.merge import missing, unjudged
from harness.report.model import COMMAND_LINE_LIMIT, Crash, Row
from harness.runs import Told
from harness.table import GROUPS
from nvx_ref.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.report.model import Report, Vmm

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
OTHER = "-"
STEP_WAYS = (EXIT, KILL, PAIR)
ORDER = {step.value: place for place, step in enumerate(Step)}
SLOWEST = 10
SHOWN = 12
"""How many of its crash cells a failed test names."""

LETTERS = {
    "live": "L",
    "exited": "E",
    "stopped": "S",
    "NotFound": "N",
    "indeterminate": "I",
    "mismatched": "M",
    "Mismatched": "M",
}
"""What a passed cell shows: the verdict of the next orchestrator, so that colour alone tells nothing."""

FAILED = "✕"


@dataclass(slots=True)
class Note:
    """A line below the counts of a place in the matrix."""

    word: str
    text: str
    target: str = ""


@dataclass(slots=True)
class Place:
    """One scenario on one backend."""

    word: str
    summary: str
    notes: list[Note]


@dataclass(slots=True)
class Line:
    """One scenario on every backend."""

    group: str
    scenario: str
    word: str
    places: list[Place]


@dataclass(slots=True)
class Square:
    """One crash cell on the map.

    Attributes:
        anchor: Where its panel is.
        kind: What colours it: its verdict, or ``fail``.
        letter: What it shows.
        crash: The cell.
        evidence: Where its evidence can be opened, empty if nowhere.
        story: Where its timeline is, empty if it has none.
    """

    anchor: str
    kind: str
    letter: str
    crash: Crash
    evidence: str
    story: str = ""


@dataclass(slots=True)
class Strip:
    """The cells of one way of crashing; at steps they are in columns, elsewhere one after the other."""

    way: str
    columns: list[list[Square]] = field(default_factory=list[list[Square]])
    squares: list[Square] = field(default_factory=list[Square])


@dataclass(slots=True)
class Scene:
    """The map of one operation."""

    name: str
    steps: list[str]
    at_steps: list[Strip]
    elsewhere: list[Strip]
    cells: int
    failed: int


@dataclass(slots=True)
class Failure:
    """One failed case with everything that is known of it.

    Attributes:
        cells: The failed crash cells of a test that is a part of a sweep, whose evidence is kept by cell.
    """

    anchor: str
    name: str
    backend: str
    reason: str
    evidence: str
    link: str
    replay: str
    vmms: list[Vmm]
    cells: list[Failure] = field(default_factory=list["Failure"])
    axis: Axis | None = None
    moments: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


def draw(report: Report) -> str:
    """Return the page of a report.

    Raises:
        Unavailable: jinja2 isn't installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - for the page only
        from markupsafe import Markup  # noqa: PLC0415
    except ImportError:
        raise Unavailable("nvx-harness report", ("jinja2 (pip install 'nvx-ref[test]')",)) from None
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["told"] = _told
    with open(os.path.join(TEMPLATES, "page.css"), encoding="utf-8") as file:
        style = file.read()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    failures = _failures(report)
    squares = _squares(report, failures)
    words = Counter(row.outcome for row in report.cells)
    return environment.get_template(
        "page.html"
    ).render(
        report=report,
        # The project's own style sheet, whole and as it is: its digest stands in the policy.
        style=Markup(style),  # noqa: S704
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        backends=_backends(report),
        lines=_lines(report, failures),
        words={word: words[word] for word in ("pass", "fail", "skip")},
        failures=failures,
        scenes=_scenes(squares),
        squares=squares,
        verdicts=Counter(square.kind for square in squares),
        letters=LETTERS,
        failed=FAILED,
        shown=SHOWN,
        missing=missing(report),
        unjudged=unjudged(report),
        colour=_colour(report),
        bars=bars(report.cells),
        families=FAMILIES,
        limit=COMMAND_LINE_LIMIT,
        width=WIDTH,
        slowest=sorted(report.cells, key=lambda row: -row.seconds)[:SLOWEST],
        measured=[row for row in report.cells if row.figures],
    )


def _colour(report: Report) -> str:
    if report.violations or any(row.outcome == "fail" for row in report.cells):
        return "red"
    # What was skipped as a whole beside what was judged is told below.
    judged = bool(report.crash_points) or any(row.outcome == "pass" for row in report.cells)
    return "green" if judged else "nothing judged"


def _told(vmm: Vmm) -> str:
    return str(Told(vmm.pid, vmm.state, vmm.status, silent=vmm.silent))


def link(path: str) -> str:
    """Return the address of a file or directory of this machine, empty for anything else."""
    if re.match(r"[A-Za-z]:[\\/]", path):
        return "file:///" + quote(path.replace("\\", "/"), safe="/:")
    return "file://" + quote(path, errors="replace") if path.startswith("/") else ""


def _backends(report: Report) -> list[str]:
    seen = [row.backend for row in report.cells] or [one.backend for one in report.crashes]
    return list(dict.fromkeys(seen))


def _failures(report: Report) -> list[Failure]:
    told = {(one.case, one.backend): one for one in report.timelines if one.moments}
    failed: list[tuple[str, Row | Crash]] = [
        *((row.node, row) for row in report.cells if row.outcome == "fail"),
        *((one.cell, one) for one in report.crashes if one.outcome == "fail"),
    ]
    found: list[Failure] = []
    for number, (name, one) in enumerate(failed, 1):
        reason = one.reason or "no reason was told"
        failure = Failure(
            f"f{number}", name, one.backend, reason, one.evidence, link(one.evidence), one.replay, one.vmms
        )
        if timeline := told.get((name, one.backend)):
            failure.axis = axis(timeline)
            failure.moments = [(shown(moment.offset), moment.lane, moment.text) for moment in timeline.moments]
        found.append(failure)
    by_test: dict[tuple[str, str], list[Failure]] = {}
    for failure, (_, one) in zip(found, failed, strict=True):
        if isinstance(one, Crash) and one.evidence:
            by_test.setdefault((one.node, one.backend), []).append(failure)
    for failure, (name, one) in zip(found, failed, strict=True):
        if isinstance(one, Row):
            failure.cells = by_test.get((name, one.backend), [])
    return found


def _lines(report: Report, failures: Sequence[Failure]) -> list[Line]:
    anchors = {(failure.name, failure.backend): failure.anchor for failure in failures}
    by_scenario: dict[tuple[str, str], list[Row]] = {}
    for row in report.cells:
        by_scenario.setdefault((_group(row), row.scenario), []).append(row)
    found: list[Line] = []
    for group, scenario in sorted(by_scenario, key=lambda key: (_rank(key[0]), key[1])):
        rows = by_scenario[group, scenario]
        places = [_place([row for row in rows if row.backend == backend], anchors) for backend in _backends(report)]
        found.append(Line(group, scenario, _worst(row.outcome for row in rows), places))
    return found


def _group(row: Row) -> str:
    return min(row.groups, key=_rank, default=OTHER)


def _rank(group: str) -> int:
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


def _place(rows: Sequence[Row], anchors: dict[tuple[str, str], str]) -> Place:
    counts = Counter(row.outcome for row in rows)
    if not rows:
        return Place("none", "not run", [])
    several = [f"{counts[word]} {word}" for word in ("fail", "pass", "skip") if counts[word]]
    notes = [
        Note("fail", f"{_parameters(row)}{row.reason}", anchors[row.node, row.backend])
        for row in rows
        if row.outcome == "fail"
    ]
    skipped = Counter(row.reason for row in rows if row.outcome == "skip")
    unseen = Counter(", ".join(row.unseen) for row in rows if row.unseen)
    notes += [Note("skip", _times(reason, count)) for reason, count in skipped.items()]
    notes += [Note("unseen", f"not seen: {_times(what, count)}") for what, count in unseen.items()]
    summary = next(iter(counts)) if len(rows) == 1 else ", ".join(several)
    return Place(_worst(row.outcome for row in rows), summary, notes)


def _worst(words: Iterable[str]) -> str:
    seen = set(words)
    return next(word for word in ("fail", "pass", "skip") if word in seen)


def _times(text: str, count: int) -> str:
    return text if count == 1 else f"{text} ({count} cells)"


def _parameters(row: Row) -> str:
    _, bracket, rest = row.node.partition("[")
    return f"{bracket}{rest}: " if bracket else ""


def _squares(report: Report, failures: Sequence[Failure]) -> list[Square]:
    anchors = {(failure.name, failure.backend): failure.anchor for failure in failures}
    found: list[Square] = []
    for number, crash in enumerate(report.crashes, 1):
        failed = crash.outcome == "fail"
        kind = "fail" if failed else crash.verdict if crash.verdict in LETTERS else "done"
        letter = FAILED if failed else LETTERS.get(crash.verdict, "·")
        story = anchors.get((crash.cell, crash.backend), "") if failed else ""
        found.append(Square(f"c{number}", kind.lower(), letter, crash, link(crash.evidence), story))
    return found


def _scenes(squares: Sequence[Square]) -> list[Scene]:
    by_scene: dict[str, list[Square]] = {}
    for square in squares:
        by_scene.setdefault(square.crash.scene, []).append(square)
    known = {name: place for place, name in enumerate(SCENES)}
    names = sorted(by_scene, key=lambda name: (known.get(name, len(known)), name))
    return [_scene(name, by_scene[name]) for name in names]


def _scene(name: str, members: Sequence[Square]) -> Scene:
    at_steps = [square for square in members if square.crash.way in STEP_WAYS]
    points = {(square.crash.point, square.crash.hit) for square in at_steps}
    steps = sorted(points, key=lambda point: (ORDER.get(point[0], len(ORDER)), *point))
    strips: list[Strip] = []
    for way in STEP_WAYS:
        own = [square for square in at_steps if square.crash.way == way]
        if own:
            columns = [[one for one in own if (one.crash.point, one.crash.hit) == step] for step in steps]
            strips.append(Strip(way, columns=columns))
    others: dict[str, list[Square]] = {}
    for square in members:
        if square.crash.way not in STEP_WAYS:
            others.setdefault(square.crash.way, []).append(square)
    elsewhere = [
        Strip(way, squares=sorted(own, key=lambda one: (one.crash.point, one.crash.hit)))
        for way, own in sorted(others.items())
    ]
    names = [f"{point}#{hit}" if hit > 1 else point for point, hit in steps]
    failed = sum(square.crash.outcome == "fail" for square in members)
    return Scene(name, names, strips, elsewhere, len(members), failed)
