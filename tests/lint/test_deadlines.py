"""Waits of the scenarios: none by the clock, and every deadline stretched by the one factor of the command line."""

from __future__ import annotations

import ast

import pytest

from ci.write_requirements import ROOT

pytest_plugins = ["pytester"]

CLOCKS = {"asyncio", "sched", "time", "harness.deadline", "nvx_ref.deadline"}
"""Modules that sleep, tell the time, or make deadlines that no factor stretches; `World.soon` makes those it does."""
WAITS = {"sleep", "pause", "sigtimedwait", "perf_counter", "monotonic"}


def own_clocks(text: str) -> list[str]:
    """Return what in a module waits by the clock or makes a deadline by itself; imports for types alone are none."""
    found: list[str] = []
    tree = ast.parse(text)
    typing = {
        inner
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import) and node not in typing:
            names = [alias.name for alias in node.names if alias.name in CLOCKS]
        elif isinstance(node, ast.ImportFrom) and node not in typing:
            parent = [node.module] if node.module in CLOCKS else []
            names = parent or [alias.name for alias in node.names if f"{node.module}.{alias.name}" in CLOCKS]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            words = ast.unparse(node.args[0]) if node.args else ""
            names = [name] if name in WAITS else [words] if words in {"['sleep'", "'sleep'"} else []
            names += [ast.unparse(keyword) for keyword in node.keywords if _bare(keyword)]
        found += [f"{getattr(node, 'lineno', 0)}: {name}" for name in names if name]
    return found


def _bare(keyword: ast.keyword) -> bool:
    """Tell a bound in seconds that is written down, and so not stretched."""
    written = isinstance(keyword.value, ast.Constant | ast.BinOp) and ast.unparse(keyword.value) != "None"
    return keyword.arg in {"timeout", "deadline"} and written


@pytest.mark.case("T65")
def test_no_scenario_has_a_clock_of_its_own() -> None:
    files = sorted((ROOT / "scenarios").glob("*.py"))
    assert files
    assert [f"{path.name}:{fault}" for path in files for fault in own_clocks(path.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from time import sleep",
        "from harness.deadline import Clock",
        "from harness import deadline",
        "import nvx_ref.deadline",
        "anything.sleep(1)",
        "signal.pause()",
        "subprocess.run(command, timeout=5)",
        "child.wait(timeout=5)",
    ],
)
def test_a_clock_is_found(text: str) -> None:
    assert own_clocks(text)


def test_a_deadline_of_the_world_is_none_of_its_own() -> None:
    text = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from harness.deadline import Deadline

def test_it(world):
    world.run(command, deadline=world.soon(5))
"""
    assert own_clocks(text) == []


SCALED = """
def test_it(world):
    assert 3 * 100 - 10 < world.soon(100).remaining() <= 3 * 100
    assert not world.until(lambda: False, 0.001)
"""


@pytest.mark.case("T65")
def test_the_factor_of_the_command_line_stretches_a_scenario_s_deadlines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SCALED)
    pytester.runpytest_subprocess("-p", "no:randomly", "--timeout-scale", "3").assert_outcomes(passed=1)
