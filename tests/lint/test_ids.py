"""Every clause and case that a test names exists, and the committed list of them is the contract's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scenarios.contract import MARKERS

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "contract"
IDS = Path(__file__).with_name("ids.txt")


def known() -> set[tuple[str, str]]:
    pairs = (line.split() for line in IDS.read_text().splitlines() if not line.startswith("#"))
    return {(kind, name) for kind, name in pairs}


def named(text: str) -> set[tuple[str, str]]:
    """Return the ids that the markers of a module name."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"case", "spec"}:
            ids = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            found |= {(node.func.attr, one) for one in ids} if "mark" in ast.unparse(node.func) else set()
    return found


def test_every_id_that_a_test_carries_exists() -> None:
    files = [path for place in ("tests", "scenarios") for path in (ROOT / place).rglob("*.py")]
    unknown = {(path.name, *pair) for path in files for pair in named(path.read_text()) - known()}
    assert unknown == set()


def test_an_unknown_id_is_found() -> None:
    assert named("import pytest\n@pytest.mark.case('T999')\ndef test_it(): pass\n") - known() == {("case", "T999")}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the contract pages aren't beside this checkout")
def test_the_committed_list_is_the_contracts() -> None:
    clauses = set(re.findall(r"^\| ([\w.]+) \|", (SHARED / "requirements.md").read_text(), re.MULTILINE)) - {"Id"}
    cases = set(re.findall(r"^\| (T\d+\w?) \|", (SHARED / "test-cases.md").read_text(), re.MULTILINE))
    assert known() == {("spec", one) for one in clauses} | {("case", one) for one in cases}


def test_the_table_of_scenarios_names_every_module_and_nothing_else() -> None:
    assert sorted(MARKERS) == sorted(path.stem for path in (ROOT / "scenarios").glob("test_*.py"))
