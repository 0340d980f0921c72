"""Every benchmark runs, and says what it measured beside what; none fails on a figure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

if sys.platform == "win32":
    pytest.skip("measured on Linux", allow_module_level=True)

from tests.bench import __main__ as program
from tests.bench import harnessing
from tests.bench.__main__ import BENCHES
from tests.bench.measure import BenchReport, Row, Skipped, low, side_by_side, table

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["exits", "spawn", "launch", "reattach", "staged", "import", "fake"]
"""The others run parts of the suite once more."""


def test_each_way_is_measured_in_every_round_after_one_that_does_not_count() -> None:
    order: list[str] = []
    values = {"a": iter([100.0, 3.0, 1.0, 2.0]), "b": iter([100.0, 6.0, 4.0, 5.0])}

    def way(name: str) -> float:
        order.append(name)
        return next(values[name])

    found = side_by_side({"a": lambda: way("a"), "b": lambda: way("b")}, 3)
    assert found == {"a": 2.0, "b": 5.0}
    assert [sorted(order[place : place + 2]) for place in range(0, 8, 2)] == [["a", "b"]] * 4
    assert low([float(number) for number in range(20)]) == 2


@pytest.mark.parametrize(
    ("bound", "met"), [("most", {1: True, 2: True, 3: False}), ("least", {1: False, 2: True, 3: True})]
)
def test_a_target_is_a_bound(bound: str, met: dict[int, bool]) -> None:
    for measured, expected in met.items():
        row = msgspec.convert(
            {
                "id": "x",
                "what": "w",
                "measured": measured,
                "unit": "x",
                "target": 2,
                "bound": bound,
                "figures": {},
                "figureUnit": "s",
                "rounds": 1,
            },
            Row,
        )
        assert row.met is expected


def test_the_quick_ones_run_and_report(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--scale", "0.02", "--json", path, *QUICK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    report = msgspec.json.decode(path.read_bytes(), type=BenchReport)
    assert run.stdout == table(report) + "\n"
    assert {row.id for row in report.rows} | {"spawn"} == {
        *("exit-noticed", "spawn", "launch", "launch-fsyncs", "reattach", "reattach-many", "reattach-unreachable"),
        *("staged-launch", "import", "fake-listening"),
    }
    assert report.met == {row.id: row.met for row in report.rows}
    # A rival, or more of them, beside each figure that is a ratio.
    assert all(len(row.figures) > 1 for row in report.rows if row.unit == "x")
    # No wall clock: the launch's syncs are counted.
    assert next(row for row in report.rows if row.id == "launch-fsyncs").measured == 3


def test_a_benchmark_that_fails_loses_no_other_s_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: float) -> list[Row]:
        raise AssertionError("it broke")

    def impossible(_: float) -> list[Row]:
        raise Skipped("no such kernel")

    monkeypatch.setattr(program, "BENCHES", {"broken": broken, "impossible": impossible, "staged": BENCHES["staged"]})
    assert program.main(["--scale", "0.01"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert any(line.startswith("staged-launch") for line in told)
    assert [line.split(None, 1)[1] for line in told[-2:]] == ["skipped: failed: it broke", "skipped: no such kernel"]


def test_a_run_that_fails_is_told_in_one_line() -> None:
    with pytest.raises(AssertionError) as caught:
        harnessing.timed(
            [sys.executable, "-c", "print('noise'); print('FAILED a'); print('1 failed'); raise SystemExit(1)"]
        )
    assert str(caught.value) == "FAILED a; 1 failed"


def test_every_benchmark_is_explained() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [name for name in BENCHES if f"`{name}`" not in page] == []
