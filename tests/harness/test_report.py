"""The report of a run: what a failed case tells of itself, and JUnit's properties."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

from harness.report.build import commit
from harness.report.model import read
from harness.report.page import draw

pytest_plugins = ["pytester"]

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schema" / "report.json"

RED = """
import pytest
from harness.sandbox import Sandbox

@pytest.mark.crash
@pytest.mark.case("T10", "T11")
@pytest.mark.spec("620.acc.3")
def test_it_ends_red(world):
    box, program = Sandbox(world), world.orchestrator()
    box.provision(program)
    world.figures["bytes read"] = 7
    program.crash("start", box.named(), ("start.runtime_written", 1), "kill", world.soon())
    with open(box.path("control.capability"), "rb") as file:
        secret = file.read()
    open("secret", "wb").write(secret)
    for one in world.processes.vmms():
        one.pin.end()
    world.expect("after the crash", expected="nothing", found=secret.hex())
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_failed_case_tells_what_happened_on_one_axis_and_no_secret(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makepyfile(RED)
    result = pytester.runpytest_subprocess("--nvx-report", "report.json", "--junitxml", "junit.xml", *workers)
    result.assert_outcomes(failed=1)
    path = pytester.path / "report.json"
    jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA.read_text()))
    report = read(str(path))
    (row,), (crash,), (timeline,) = report.cells, report.crashes, report.timelines
    assert (row.outcome, row.figures, row.node) == ("fail", {"bytes read": 7}, timeline.case)
    assert row.seconds > 0
    assert row.replay.startswith("pytest test_a_failed_case")
    assert sum(row.command_line.values()) > 100
    assert (crash.cell, crash.scene, crash.way) == ("start/kill/start.runtime_written#1", "start", "kill")
    assert (crash.point, crash.hit, crash.node) == ("start.runtime_written", 1, row.node)
    assert (report.crash_points, report.violations) == (1, 1)
    (vmm,) = row.vmms
    assert (vmm.state, vmm.status, vmm.silent) == ("ended", -9, False)
    assert vmm.log[-1].endswith("starting microVM processors=0x1 memory=0x10000000")
    offsets = [moment.offset for moment in timeline.moments]
    assert offsets == sorted(offsets)
    told = {lane: [moment.text for moment in timeline.moments if moment.lane == lane] for lane in lanes(report)}
    who = [lane.partition(" ")[0] for lane in told]
    assert sorted(who) == ["VMM", "harness", "orchestrator", "witness"]
    by = dict(zip(who, told.values(), strict=True))
    assert by["harness"][-1].startswith("kills orchestrator ")
    assert by["orchestrator"].index("start.spawned#1") < by["orchestrator"].index("start.runtime_written#1")
    assert any(text.startswith(("listening", "session")) for text in by["VMM"])
    assert by["witness"] == ["after the crash: expected nothing, found <capability>"]
    secret = (pytester.path / "secret").read_bytes()
    assert secret.hex() not in path.read_text()
    assert row.reason == by["witness"][0]
    assert "start.runtime_written#1" in draw(report)
    shutil.rmtree(Path(row.evidence).parents[1])


def lanes(report: object) -> list[str]:
    (timeline,) = report.timelines  # type: ignore[attr-defined]
    return list(dict.fromkeys(moment.lane for moment in timeline.moments))


def test_junit_carries_the_ids_of_a_test_and_no_tables(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.c3\n@pytest.mark.case('T01')\n@pytest.mark.spec('620.acc.1', '620.acc.2')\n"
        "def test_it(record_property):\n    record_property('own', 7)\n"
    )
    pytester.runpytest_subprocess("--junitxml", "junit.xml").assert_outcomes(passed=1)
    found = [
        (one.get("name"), one.get("value"))
        for one in ET.parse(pytester.path / "junit.xml").iter("property")  # noqa: S314
    ]
    assert sorted(found) == [
        ("backend", "fake"),
        ("case", "T01"),
        ("own", "7"),
        ("scenario", "it"),
        ("spec", "620.acc.1"),
        ("spec", "620.acc.2"),
    ]


def test_a_report_names_the_commit_that_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVX_COMMIT", "c0ffee")
    assert commit() == "c0ffee"


def test_a_run_that_is_cut_short_says_so_in_its_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.c3\n@pytest.mark.parametrize('n', [0, 1, 2])\n"
        "def test_it(n):\n    assert n != 1\n"
    )
    options = ["-p", "no:randomly", "--nvx-report", "report.json"]
    pytester.runpytest_subprocess("-x", *options).assert_outcomes(passed=1, failed=1)
    assert read(str(pytester.path / "report.json")).runs[0].cut is True
    pytester.runpytest_subprocess("-p", "no:randomly", "--nvx-report", "report.json").assert_outcomes(
        passed=2, failed=1
    )
    assert read(str(pytester.path / "report.json")).runs[0].cut is False
