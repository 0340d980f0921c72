"""The page of a report: everything on it, nothing from elsewhere, and hostile words stay words."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness import commandline
from harness.report import page
from harness.report.drawing import axis, bars, shown
from harness.report.model import (
    Carried,
    Crash,
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

HOSTILE = (
    "</script><script>document.title='taken'</script>",
    "</style><style>*{display:none}</style>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "<!--",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "'&\x01\ud7ff\u202eabc",
)
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs chromium (package chromium)")


def run(**changes: object) -> Run:
    values: dict[str, object] = {
        "kind": "scenarios",
        "backend": "fake",
        "orchestrator": "reference",
        "selection": Selection(2, "sha256:0"),
        "shard": Shard(1, 1, 2),
        "commit": "c0ffee",
    }
    return Run(**{**values, **changes})  # type: ignore[arg-type]


def row(outcome: Outcome, node: str, **changes: object) -> Row:
    scenario = node.partition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")
    values: dict[str, object] = {"groups": ["c3"], "backend": "fake", "cases": ["T01"], "clauses": ["620.acc.1"]}
    return Row(node=node, scenario=scenario, outcome=outcome, **{**values, **changes})  # type: ignore[arg-type]


def crash(name: str, outcome: Outcome = "pass", **changes: object) -> Crash:
    scene, way, where = name.split("/", 2)
    first, _, then = where.partition(",")
    point, _, hit = first.rpartition("#")
    values: dict[str, object] = {"verdict": "live", "fired": True, "replay": f"nvx-harness replay '{name}'"}
    cell = Crash(name, scene, way, point, int(hit), then, "fake", outcome)
    for field, value in {**values, **changes}.items():
        setattr(cell, field, value)
    return cell


LINE = "console=hvc1 quiet nr_cpus=1"
MOMENTS = [
    Moment(0, "harness", "asks for start"),
    Moment(1200, "orchestrator 7", "start.locked#1"),
    Moment(90_000, "VMM 8", "listening"),
    Moment(2_000_000, "witness", "expected one VMM, found two"),
]


def report(**changes: object) -> Report:
    failed, spoilt = "x.py::test_cold_boot[gpt]", "start/kill/start.spawned#1"
    values: dict[str, object] = {
        "crash_points": 3,
        "violations": 1,
        "cells_fired": 3,
        "cells": [
            row(
                "pass", "x.py::test_cold_boot[erofs]", command_line=commandline.measure("console=hvc1 quiet nr_cpus=1")
            ),
            row(
                "fail",
                failed,
                reason="expected one VMM, found two",
                evidence="/tmp/e/1",
                replay="pytest 'x'",
                vmms=[Vmm(8, "ended", 3, silent=True, log=["fatal error: no such disk"])],
            ),
            row("skip", "x.py::test_swap", reason="needs mkfs.erofs", groups=["c4"], backend="kvm"),
            row("pass", "x.py::test_reads", figures={"bytes read": 7}, unseen=["signals"], groups=["c4"]),
        ],
        "crashes": [
            crash("start/exit/start.locked#1", verdict="stopped"),
            crash("start/syscall-EIO/fsync:.#2", verdict=""),
            crash(spoilt, "fail", reason="two VMMs", evidence="/tmp/e 2/ü", vmms=[Vmm(9, "ended", -9)]),
        ],
        "timelines": [Timeline(failed, "fake", MOMENTS), Timeline(spoilt, "fake", MOMENTS)],
        "skipped": [Skipped("swap", "kvm", "needs mkfs.erofs")],
        "ids": [Carried("fake", "spec", 1, 1, 0)],
    }
    whole = Report(format=1, backend="fake, kvm", orchestrator="reference", runs=[run()])
    for field, value in {**values, **changes}.items():
        setattr(whole, field, value)
    return whole


class Reader(HTMLParser):
    """Takes a page apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def require_harmless(read: Reader) -> None:
    """Nothing runs, nothing is fetched, and every link leads to a place of this page or to a local file."""
    assert not {"script", "iframe", "object", "embed", "img", "base", "form", "link"} & set(read.tags)
    assert read.tags.count("style") == 1
    assert [name for _, name, _ in read.attributes if name.startswith("on") or name in {"src", "style", "action"}] == []
    ids = read.values("id")
    assert len(set(ids)) == len(ids)
    for address in read.values("href"):
        assert address.startswith("file:///") or address.removeprefix("#") in ids, address


def test_everything_of_a_report_is_on_the_page() -> None:
    read = Reader(page.draw(report()))
    require_harmless(read)
    for text in (
        "expected one VMM, found two",
        "needs mkfs.erofs",
        "not seen: signals",
        "not run",
        "nvx-harness replay 'start/kill/start.spawned#1'",
        "two VMMs",
        "pid 8 ended with status 3, before it said hello; its log ends with",
        "fatal error: no such disk",
        "pid 9 was ended by signal 9",
        "4 moments",
        "asks for start",
        "c0ffee",
        "3 crash points, 3 fired, 1 violations",
        "29 of 2048 bytes: cold boot",
    ):
        assert text in read.text
    assert "red: 2 pass, 1 fail, 1 skip on fake, kvm" in read.text
    assert {"file:///tmp/e/1", "file:///tmp/e%202/%C3%BC"} <= set(read.values("href"))
    assert read.values("scope").count("row") >= 5


def test_a_failed_cell_of_the_matrix_and_of_the_map_leads_to_its_timeline() -> None:
    read = Reader(page.draw(report()))
    assert read.values("href").count("#f1") == 1
    assert read.values("href").count("#f2") == 1
    assert read.values("href").count("#c3") == 1
    assert read.text.count("listening") == 6


def test_a_failed_part_of_a_sweep_leads_to_the_evidence_of_its_cells() -> None:
    node, backend = "scenarios/x.py::test_a_crash_anywhere[start-steps]", "fake"
    names = [f"start/kill/start.step{number}#1" for number in range(14)]
    cells = [crash(name, "fail", reason="two VMMs", evidence=f"/tmp/e/{name[-3]}", node=node) for name in names]
    others = [
        crash("stop/kill/stop.locked#1", "fail", reason="of another test", evidence="/tmp/e/z", node="y"),
        crash("start/exit/start.locked#1", node=node),
        crash("start/exit/start.vague#1", "fail", reason="without evidence", node=node),
    ]
    for count, told in ((1, "kept by its 1 failed crash cell: "), (14, "kept by its 14 failed crash cells: ")):
        rows = [row("fail", node, reason="crash cells failed", backend=backend), row("fail", "z", reason="alone")]
        whole = report(cells=rows, crashes=[*others, *cells[:count]], timelines=[])
        read = Reader(page.draw(whole))
        require_harmless(read)
        links = [f"#f{number}" for number in range(5, 5 + min(count, 12))]
        # The first two are the tests, the next two failed cells: another test's, and one without evidence.
        assert [address for address in read.values("href") if address in links][: len(links)] == links
        # Each has a square on the map, too, that leads to it.
        assert all(read.values("href").count(address) == 2 for address in links)
        assert f"{told}{', '.join(names[: min(count, 12)])}" in read.text
        assert (" and 2 more below" in read.text) == (count == 14)
        # The test that has no cells, and the cell that has none.
        assert read.text.count("none was kept") == 3


def test_a_run_that_was_cut_and_a_part_that_is_missing_are_told_first() -> None:
    whole = report(runs=[run(cut=True, shard=Shard(2, 3, 1))])
    read = Reader(page.draw(whole))
    assert "was cut short: what isn't listed was not run" in read.text
    assert "Parts are missing: scenarios on fake: 1/3, 3/3." in read.text
    assert read.values("role").count("alert") == 2


def test_a_run_that_has_judged_nothing_is_not_called_green() -> None:
    rows = [row("skip", "x.py::test_swap", reason="too slow", backend="kvm"), row("pass", "x.py::test_swap")]
    kvm = run(backend="kvm")
    for cells, runs, title in ((rows[:1], [kvm], "nothing judged: 0 pass"), (rows, [run(), kvm], "green: 1 pass")):
        read = Reader(page.draw(report(cells=cells, runs=runs, crashes=[], crash_points=0, violations=0)))
        assert title in read.text
        assert "Nothing was judged by scenarios on kvm: everything was skipped." in read.text
    swept = run(kind="sweep", backend="whp")
    read = Reader(page.draw(report(cells=rows, runs=[run(), swept])))
    assert "Nothing was judged by sweep on whp: everything was skipped." in read.text
    assert "Nothing was judged by" not in Reader(page.draw(report())).text


def test_an_empty_report_has_a_page_too() -> None:
    read = Reader(page.draw(Report(format=1, backend="fake", orchestrator="reference", runs=[run()])))
    require_harmless(read)
    for text in ("No scenario ran.", "No crash cell ran.", "No guest's command line was seen."):
        assert text in read.text


def spoilt(word: str) -> Report:
    """Return a report with a word in every place that holds text."""
    whole = report()
    first, cell = whole.cells[1], whole.crashes[2]
    for field in ("node", "scenario", "backend", "reason", "evidence", "replay"):
        setattr(first, field, word)
    first.groups, first.cases, first.unseen, first.figures = [word], [word], [word], {word: 1}
    first.command_line = {word: 3, "caller": 5}
    first.vmms = [Vmm(1, "ended", 0, log=[word])]
    for field in (
        "cell",
        "scene",
        "way",
        "point",
        "then",
        "backend",
        "verdict",
        "reason",
        "evidence",
        "replay",
        "node",
    ):
        setattr(cell, field, word)
    whole.timelines = [Timeline(word, word, [Moment(1, word, word), Moment(1, "witness", word)])]
    whole.skipped = [Skipped(word, word, word)]
    whole.backend = whole.orchestrator = word
    whole.runs = [run(orchestrator=word, backend=word, system=word, commit=word)]
    whole.ids = [Carried(word, "spec", 1, 0, 0)]
    return whole


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_words_stay_words(word: str) -> None:
    text = page.draw(spoilt(word))
    read = Reader(text)
    require_harmless(read)
    assert read.text.count(word) > 20
    assert "49" not in read.text or "{{" not in word


@needs_chromium
def test_a_browser_shows_hostile_words_runs_nothing_and_has_nothing_to_complain_about(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for word in HOSTILE:
        path.write_text(page.draw(spoilt(word)), encoding="utf-8", errors="replace")
        dom, said = browse(tmp_path, path.as_uri())
        assert "<title>red: " in dom
        assert "taken</title>" not in dom
        assert "<script" not in dom
        assert "CONSOLE" not in said


@needs_chromium
def test_the_policy_is_kept_by_the_browser(tmp_path: Path) -> None:
    """The control: a page with another style than its policy allows makes the browser complain."""
    path = tmp_path / "page.html"
    path.write_text(page.draw(report()).replace("<style>", "<style> "), encoding="utf-8")
    _, said = browse(tmp_path, path.as_uri())
    assert re.search(r"CONSOLE.*(Refused|violates)", said)


@needs_chromium
def test_three_thousand_cells_are_drawn_and_one_opens_by_its_address(tmp_path: Path) -> None:
    points = [f"start/syscall-kill/write:.runtime.json.ID.tmp#{number}" for number in range(1, 3001)]
    whole = report(crashes=[crash(name) for name in points], timelines=[])
    path = tmp_path / "page.html"
    path.write_text(page.draw(whole), encoding="utf-8")
    assert path.stat().st_size < 4_000_000
    dom, said = browse(tmp_path, path.as_uri())
    assert dom.count('<a class="c live"') == 3000
    assert "CONSOLE" not in said
    pictures = [
        picture(tmp_path, f"{path.as_uri()}{fragment}", name) for name, fragment in (("a", ""), ("b", "#c2999"))
    ]
    assert pictures[0] != pictures[1]
    assert picture(tmp_path, path.as_uri(), "c") == pictures[0]


def browse(home: Path, address: str) -> tuple[str, str]:
    done = chromium(home, "--dump-dom", "--enable-logging=stderr", address)
    return done.stdout, done.stderr


def picture(home: Path, address: str, name: str) -> bytes:
    path = home / f"{name}.png"
    chromium(home, f"--screenshot={path}", "--window-size=1200,800", address)
    return path.read_bytes()


def chromium(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Its sandbox needs rights that a container hasn't; the page is ours, and is held to running nothing.
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={home}/profile",
    ]
    return subprocess.run(
        [CHROMIUM, *options, *words], capture_output=True, text=True, check=True, timeout=110, errors="replace"
    )


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/tmp/a b", "file:///tmp/a%20b"),
        ("C:\\t\\a", "file:///C:/t/a"),
        ("", ""),
        ("relative/x", ""),
        ("javascript:alert(1)", ""),
        ("//host/x", "file:////host/x"),
        ('/a"><b', "file:///a%22%3E%3Cb"),
    ],
)
def test_only_what_is_a_whole_path_becomes_a_link(path: str, address: str) -> None:
    assert page.link(path) == address


def test_moments_stand_where_their_time_is() -> None:
    drawn = axis(Timeline("x", "fake", MOMENTS))
    assert [lane.name for lane in drawn.lanes] == ["harness", "orchestrator 7", "VMM 8", "witness"]
    places = [dot.x for lane in drawn.lanes for dot in lane.dots]
    assert places[0] == drawn.left
    assert places[-1] == drawn.right
    assert places == sorted(places)
    assert [shown(offset) for offset in (0, 1200, 2_000_000)] == ["0.0 ms", "1.2 ms", "2.000 s"]
    assert axis(Timeline("x", "fake", MOMENTS[:1])).lanes[0].dots[0].x == drawn.left


@pytest.mark.parametrize("offsets", [(0, 1), (5, 5), (0, 7), (0, 59_999_999), (3, 123_456)])
def test_an_axis_has_few_marks_and_all_within(offsets: tuple[int, int]) -> None:
    drawn = axis(Timeline("x", "fake", [Moment(offset, "harness", "x") for offset in offsets]))
    assert 1 <= len(drawn.ticks) <= 8
    assert all(drawn.left <= tick.x <= drawn.right for tick in drawn.ticks)


def test_the_bytes_of_a_command_line_add_up_to_its_length_and_the_nul() -> None:
    line = "earlycon=xe9 quiet é=1 nvx_hostname=a  virtnet_ip=10.0.0.2 virtfs_dir=x nr_cpus=1"
    found = commandline.measure(line)
    assert sum(found.values()) == len(line.encode()) + 1
    assert (found["caller"], found["network"], found["shares"]) == (len("quieté=1".encode()), 19, 12)
    assert commandline.longest([None, "a", "abc", ""]) == {"caller": 3, "spaces and NUL": 1}
    assert commandline.longest([None]) == {}


def test_bars_are_the_longest_lines_and_fit_into_the_limit() -> None:
    rows = [row("pass", f"x.py::test_{size}", command_line=commandline.measure("x" * size)) for size in range(1, 30)]
    drawn = bars([*rows, row("pass", "x.py::test_none")])
    assert [bar.used for bar in drawn] == [30, 29, 28, 27, 26, 25, 24, 23]
    full = bars([row("pass", "x.py::test_full", command_line=commandline.measure("x" * 2047))])[0]
    assert full.used == full.limit
    assert full.pieces[-1].x + full.pieces[-1].width == pytest.approx(1000, abs=0.2)
