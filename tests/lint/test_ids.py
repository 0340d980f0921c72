"""Every clause and case that a test names exists, each has a test or a reason, and the page of them is current."""

from __future__ import annotations

import re

import pytest

from ci.write_requirements import COMMAND, PAGE, ROOT, carried, carriers, entries, faults, known, page, reasons
from scenarios.contract import CONTRACT, MARKERS

SHARED = ROOT.parent / "shared" / "contract"
MODULE = """
import pytest
pytestmark = [pytest.mark.c3, pytest.mark.case("T1", "T2")]

@pytest.mark.spec("a")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.spec("b", "c"))])
def test_it(x): pass

TEXT = '@pytest.mark.spec("d")'
"""


def test_every_id_exists_and_has_a_test_or_a_reason() -> None:
    assert faults(known(), carriers(), reasons()) == []


def test_the_page_of_requirements_is_current() -> None:
    expected = page(known(), carriers(), reasons())
    assert entries(PAGE.read_text()) == entries(expected), f"run {COMMAND}"
    assert PAGE.read_text().partition("\n- ")[0] == expected.partition("\n- ")[0], f"run {COMMAND}"


def test_a_page_is_current_in_any_order_and_stale_by_one_line() -> None:
    ids = [("spec", "a"), ("case", "T1")]
    text = page(ids, {ids[0]: ["x", "y"]}, {ids[1]: "needs a moon"})
    assert entries(text) == {"- a": {"    - `x`", "    - `y`"}, "- T1": {"    - No test: needs a moon"}}
    assert entries(text.replace("    - `x`\n    - `y`\n", "    - `y`\n    - `x`\n")) == entries(text)
    for line in ("    - `y`\n", "- T1\n"):
        assert entries(text.replace(line, "")) != entries(text)


def test_markers_are_found_wherever_they_count() -> None:
    assert sorted(carried(MODULE)) == [
        (("case", "T1"), ""),
        (("case", "T2"), ""),
        (("spec", "a"), "test_it"),
        (("spec", "b"), "test_it"),
        (("spec", "c"), "test_it"),
    ]


def test_an_unknown_a_bare_and_a_doubly_settled_id_are_found() -> None:
    ids = [("spec", "bare"), ("spec", "both"), ("spec", "empty"), ("spec", "fine")]
    found = {("case", "T999"): ["t.py::test_it"], ids[1]: ["t.py"], ids[3]: ["t.py"]}
    assert faults(ids, found, {ids[1]: "no kernel has it", ids[2]: "", ("spec", "gone"): "old"}) == [
        "case T999: no such id",
        "spec gone: no such id",
        "spec bare: neither a test nor a reason",
        "spec empty: neither a test nor a reason",
        "spec both: has a test, so its reason goes",
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the contract pages aren't beside this checkout")
def test_the_committed_list_is_the_contracts() -> None:
    clauses = re.findall(r"^\| ([\w.]+) \|", (SHARED / "requirements.md").read_text(), re.MULTILINE)
    cases = re.findall(r"^\| (T\d+\w?) \|", (SHARED / "test-cases.md").read_text(), re.MULTILINE)
    assert set(known()) == {("spec", one) for one in clauses if one != "Id"} | {("case", one) for one in cases}


def test_the_table_of_scenarios_names_every_module_and_nothing_else() -> None:
    assert sorted(MARKERS) == sorted(path.stem for path in (ROOT / "scenarios").glob("test_*.py"))


def test_every_module_of_a_consumer_scenario_says_so() -> None:
    marked = {name for name in carriers()["spec", "card.3"] if "::" not in name}
    assert marked == {f"scenarios/{module}.py" for module in CONTRACT}
    assert set(CONTRACT.values()) == {"c3", "c4", "c5", "c6", "c7"}
