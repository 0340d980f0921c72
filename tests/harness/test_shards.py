"""`--shard I/N` and `nvx-harness report`: every item exactly once over the parts, and parts of one whole only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import jsonschema
import pytest

from harness.errors import HarnessError
from harness.report.merge import merge, missing
from harness.report.model import Report, read
from harness.sharding import Shard, Slice, digest, parse

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs" / "schema" / "report.json"

MANY = """
import pytest

@pytest.mark.c6
@pytest.mark.case("T60")
@pytest.mark.spec("620.scope3.k")
@pytest.mark.parametrize("number", range(40))
def test_it_goes_on(number):
    assert number != 7, "expected no seven, found one"

@pytest.mark.xdist_group("alone")
@pytest.mark.c3
def test_cold_boot():
    pytest.skip("needs a drill")

def test_no_scenario():
    pass
"""


def run(pytester: pytest.Pytester, shard: str, name: str, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("--shard", shard, "--nvx-report", name, *options)


def document(path: Path) -> dict[str, object]:
    """Return a report that its published schema allows."""
    found = json.loads(path.read_text())
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    return cast("dict[str, object]", found)


def test_the_parts_of_a_run_are_the_whole_each_test_once_in_any_order_and_with_any_workers(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tree may change its commit meanwhile, which is no matter of its parts.
    monkeypatch.setenv("NVX_COMMIT", "tested")
    pytester.makepyfile(MANY)
    ways = (["-p", "no:randomly"], ["-n", "2"], ["-p", "randomly", "-p", "no:xdist"])
    passed = failed = skipped = 0
    for index, way in enumerate(ways, 1):
        outcomes = run(pytester, f"{index}/3", f"{index}.json", *way).parseoutcomes()
        passed, failed = passed + outcomes.get("passed", 0), failed + outcomes.get("failed", 0)
        skipped += outcomes.get("skipped", 0)
    assert (passed, failed, skipped) == (40, 1, 1)
    whole = merge([str(pytester.path / f"{index}.json") for index in (2, 3, 1)])
    assert len({row.node for row in whole.cells}) == len(whole.cells) == 41
    assert [one.shard.index for one in whole.runs] == [1, 2, 3]
    assert sum(one.shard.items for one in whole.runs) == whole.runs[0].selection.items == 42
    assert (whole.skipped[0].reason, whole.ids[0].failed, whole.ids[1].kind) == ("needs a drill", 1, "case")
    for index in (1, 2, 3):
        document(pytester.path / f"{index}.json")


def test_a_part_without_any_test_is_no_failure_and_a_run_without_any_is(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one():\n    pass\n")
    assert sorted(run(pytester, f"{index}/2", "r.json").ret for index in (1, 2)) == [0, 0]
    assert run(pytester, "1/2", "r.json", "-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_parts_that_were_skipped_as_a_whole_are_no_green_run_together(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVX_COMMIT", "tested")
    pytester.makepyfile(MANY)
    parts = [f"{index}.json" for index in (1, 2)]
    for index, name in enumerate(parts, 1):
        assert run(pytester, f"{index}/2", name, "-k", "cold_boot").ret == pytest.ExitCode.OK
    told = "error: scenarios on fake: everything was skipped, so nothing was judged\n"
    for output, options, status, error in (
        ("a.html", [], 1, told),
        ("b.json", [], 1, told),
        ("c.json", ["--partial"], 0, ""),
    ):
        command = [sys.executable, "-m", "harness", "report", *parts, *options, "-o", output]
        done = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (status, error)
        assert done.stdout == f"{output}: 1 scenario cells, 0 failed; 0 crash points, 0 violations\n"
        assert (pytester.path / output).stat().st_size > 0


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "a/b", "-1/2", "1/2/3", "1/0", " 1/2"])
def test_what_is_no_shard_is_refused(pytester: pytest.Pytester, text: str) -> None:
    with pytest.raises(HarnessError, match="is no shard: write I/N"):
        parse(text)
    result = pytester.runpytest_subprocess(f"--shard={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--shard*is no shard: write I/N*"])


def test_an_id_belongs_to_one_part_whatever_else_there_is() -> None:
    names = [f"start/kill/start.spawned#{number}" for number in range(500)]
    slices = [Slice(Shard(index, 7)) for index in range(1, 8)]
    for one in slices:
        for name in names:
            one.take(name)
    assert sorted(name for one in slices for name in one.own) == sorted(names)
    assert len({digest(one.whole) for one in slices}) == 1
    assert min(len(one.own) for one in slices) > 40
    assert Shard(3, 7).has(names[0]) == (names[0] in slices[2].own)


def shards(directory: Path, count: int = 3) -> list[Path]:
    """Write the reports of the parts of a run."""
    found: list[Path] = []
    items = {f"x.py::test_{number}" for number in range(30)}
    for index in range(1, count + 1):
        own = sorted(name for name in items if Shard(index, count).has(name))
        part: dict[str, object] = {
            "format": 1,
            "backend": "fake",
            "orchestrator": "reference",
            "runs": [
                {
                    "kind": "scenarios",
                    "backend": "fake",
                    "orchestrator": "reference",
                    "selection": {"items": len(items), "digest": digest(items)},
                    "shard": {"index": index, "count": count, "items": len(own)},
                    "commit": "c0ffee",
                }
            ],
            "crashPoints": index,
            "cells": [
                {
                    "node": node,
                    "scenario": "x",
                    "groups": ["c3"],
                    "backend": "fake",
                    "cases": ["T01"],
                    "clauses": [],
                    "outcome": "pass",
                }
                for node in own
            ],
        }
        path = directory / f"{index}.json"
        path.write_text(json.dumps(part))
        document(path)
        found.append(path)
    return found


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def merged(paths: list[Path], *, partial: bool = False) -> Report:
    return merge([str(path) for path in paths], partial=partial)


def test_parts_add_up(tmp_path: Path) -> None:
    whole = merged(shards(tmp_path))
    assert (len(whole.cells), whole.crash_points, missing(whole)) == (30, 6, [])


def test_a_missing_part_is_an_error_unless_it_is_asked_for(tmp_path: Path) -> None:
    first, _, third = shards(tmp_path)
    with pytest.raises(HarnessError, match=r"shard 2/3 is missing; add its report, or take --partial"):
        merged([first, third])
    with pytest.raises(HarnessError, match=r"shard 2/3, 3/3 is missing"):
        merged([first])
    assert missing(merged([third, first], partial=True)) == ["scenarios on fake: 2/3"]


def test_a_part_that_is_given_twice_is_an_error(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    with pytest.raises(HarnessError, match=r"both are shard 1/3; each part goes in once"):
        merged([*parts, parts[0]])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("c0ffee", "decaf", "another commit, c0ffee and decaf"),
        ("c0ffee", "", "another commit, c0ffee and nothing"),
        ("sha256:", "sha256:0", "another selection"),
        ('"count": 3', '"count": 4', "another number of shards, 3 and 4"),
        ('"commit"', '"sweep": "full", "commit"', "another sweep, quick and full"),
        ('"items": 30', '"items": 31', "of 30 selected items are in a shard"),
    ],
)
def test_parts_of_something_else_are_an_error(tmp_path: Path, old: str, new: str, said: str) -> None:
    parts = shards(tmp_path)
    if "items" in old:
        change(parts[1], f'"index": 2, "count": 3, "items": {own(parts[1])}', '"index": 2, "count": 3, "items": 1')
    else:
        change(parts[1], old, new)
    with pytest.raises(HarnessError, match=said):
        merged(parts)


def own(path: Path) -> int:
    return read(str(path)).runs[0].shard.items


def test_a_test_in_two_parts_is_an_error(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    name = read(str(parts[0])).cells[0].node
    other = read(str(parts[1])).cells[0].node
    change(parts[1], other, name)
    with pytest.raises(HarnessError, match=rf"{name} on fake: in more than one shard"):
        merged(parts)


def test_runs_on_another_backend_or_system_stand_beside_each_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        place.mkdir()
    parts, others = shards(here), shards(there)
    for path in others:
        change(path, '"commit"', '"system": "win32, Windows", "commit"')
    whole = merged([*parts, *others])
    assert {row.backend for row in whole.cells} == {"fake ()", "fake (win32, Windows)"}
    assert len(whole.cells) == 60


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', "\xff", '{"format": 1, "unknown": 1}'])
def test_what_is_no_report_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(HarnessError, match=r"odd\.json: isn't a report of format 1: "):
        merge([str(path)])
    with pytest.raises(HarnessError, match=r"none\.json: can't be read: "):
        merge([str(tmp_path / "none.json")])


def test_the_parts_of_a_sweep_are_the_whole_each_cell_once(tmp_path: Path) -> None:
    paths: list[str] = []
    for index in (1, 2):
        paths.append(str(tmp_path / f"{index}.json"))
        words = ["sweep", "--scene", "provision", "--group", "steps", "--shard", f"{index}/2", "--report", paths[-1]]
        done = harness(*words, "-j", "1")
        assert (done.returncode, done.stderr) == (0, "")
        document(Path(paths[-1]))
    page = tmp_path / "whole.json"
    assert harness("report", *paths, "-o", str(page)).stdout.endswith("8 crash points, 0 violations\n")
    whole = read(str(page))
    assert len({one.cell for one in whole.crashes}) == len(whole.crashes) == whole.crash_points == 8
    assert all(one.verdict and one.replay.startswith("nvx-harness replay ") for one in whole.crashes)
    failed = harness("report", paths[0], "-o", str(page))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith(f"error: {paths[0]}: shard 2/2 is missing")


def harness(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NVX_COMMIT": "tested"}
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
