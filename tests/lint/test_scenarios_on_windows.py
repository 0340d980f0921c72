"""Every scenario is collected on Windows too: one module that can't be imported there would end the whole run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = frozenset({"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"})
"""Modules of the standard library that Windows hasn't."""

IS_WINDOWS = "sys.platform == 'win32'"
ISNT_WINDOWS = "sys.platform != 'win32'"


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Return what an import of a module runs on Windows."""
    for one in body:
        test = ast.unparse(one.test) if isinstance(one, ast.If) else ""
        if not isinstance(one, ast.If):
            yield one
        elif test in {"TYPE_CHECKING", ISNT_WINDOWS}:
            yield from statements(one.orelse)
        elif test == IS_WINDOWS:
            yield from statements(one.body)
        else:
            yield from statements([*one.body, *one.orelse])


def imported(statement: ast.stmt) -> list[str]:
    """Return the modules that a statement may import."""
    if isinstance(statement, ast.Import):
        return [one.name for one in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.module:
        return [statement.module, *(f"{statement.module}.{one.name}" for one in statement.names)]
    return []


def faults(name: str, seen: set[str]) -> list[str]:
    """Return what an import of a module fails at on Windows, and of all that it imports here."""
    place = ROOT.joinpath(*name.split("."))
    path = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
    if path is None or name in seen:
        return []
    seen.add(name)
    found: list[str] = []
    for statement in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.Assert) and ast.unparse(statement.test) == ISNT_WINDOWS:
            found.append(f"{name}: {ast.unparse(statement)}")
        for module in imported(statement):
            if module.partition(".")[0] in ELSEWHERE:
                found.append(f"{name}: {ast.unparse(statement)}")
            found += faults(module, seen)
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.py")), ids=lambda path: path.stem)
def test_a_scenario_can_be_imported_on_windows(path: Path) -> None:
    seen: set[str] = set()
    assert faults(f"scenarios.{path.stem}", seen) == []
    assert f"scenarios.{path.stem}" in seen


def test_what_only_linux_has_is_noticed() -> None:
    assert faults("harness.witness.linux", set()) != []
    assert faults("harness.faults.debugged", set()) == []
