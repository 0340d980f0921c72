"""The table of the fault catalogue on Windows names tests that carry the case, and that the Windows lane takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.write_requirements import ROOT, carriers

ROW = re.compile(r"^\| (T\d+a?) \| [^|]+ \| (.+) \|$", re.MULTILINE)
OF_WINDOWS = {
    *("T03", "T04", "T07a", "T08", "T10", "T11", "T13", "T14", "T18", "T19"),
    *("T29", "T31", "T34", "T35", "T37", "T41", "T41a", "T42", "T48", "T55"),
}


def rows(text: str) -> list[tuple[str, str]]:
    return [(case, test) for case, tests in ROW.findall(text) for test in re.findall(r"`([^`]+)`", tests)]


def lane() -> list[str]:
    """What the lane takes by default: directories and modules."""
    text = (ROOT / "Makefile").read_text()
    start = text.index("WINE_TESTS ?=")
    words = text[start : text.index("))", start)].replace("\\\n", " ").split()[2:]
    places = [word for word in words if word.startswith("tests/")]
    names = words[words.index("$(addprefix") + 1 :]
    return [*places, *(f"scenarios/test_{name}.py" for name in names if re.fullmatch(r"\w+", name))]


PAGE = (ROOT / "docs" / "windows.md").read_text()


def test_every_case_of_windows_is_in_the_table() -> None:
    assert OF_WINDOWS - {case for case, _ in rows(PAGE)} == set()


@pytest.mark.parametrize(("case", "test"), rows(PAGE))
def test_a_row_names_a_test_that_carries_its_case_and_runs_in_the_lane(case: str, test: str) -> None:
    assert test in carriers()["case", case]
    path = Path(test.partition("::")[0])
    assert any(path == Path(place) or Path(place) in path.parents for place in lane()), path


def beyond(run: str) -> list[str]:
    """What the lane takes and a command of pytest doesn't."""
    taken = [Path(word) for word in run.split() if word.startswith(("tests/", "scenarios"))]
    return [place for place in lane() if not any(one == Path(place) or one in Path(place).parents for one in taken)]


def test_what_runs_under_wine_runs_on_windows_at_every_push() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "windows.yml").read_text())
    (run,) = [step["run"] for step in workflow["jobs"]["fake"]["steps"] if "-m pytest" in step.get("run", "")]
    assert beyond(run) == []
    assert beyond(run.replace("tests/store ", "")) == ["tests/store"]
    # All of them, and not the lane's selection alone: so does who has Windows.
    assert "scenarios" in run.split()


def test_the_lane_is_read_as_it_is_written() -> None:
    assert {"tests/store", "tests/platform/windows", "scenarios/test_cold_boot.py"} <= set(lane())
    assert "scenarios/test_image_swap.py" not in lane()
