"""Write which tests carry each clause and case, from the tests' markers: ``python ci/write_requirements.py [FILE]``.

An id without a test needs its reason in ``tests/lint/untested.txt``, and an id with one needs none.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
LINT = ROOT / "tests" / "lint"
PAGE = ROOT / "docs" / "requirements.md"
COMMAND = "python ci/write_requirements.py"

Id = tuple[str, str]
"""``spec`` or ``case``, and the clause or case."""

HEAD = f"""# Requirements and their tests

Written by `{COMMAND}` from the markers `spec(...)` and `case(...)`; don't edit. Each clause of the specification and
each case of the fault catalogue is followed by the tests that carry it, as pytest takes them, or by the reason why none
does yet (from `tests/lint/untested.txt`).
"""
PARTS = {"spec": "Clauses", "case": "Cases"}


def known() -> list[Id]:
    """Return every id, in the order of the committed list."""
    return [(kind, name) for kind, name, *_ in _lines(LINT / "ids.txt")]


def reasons() -> dict[Id, str]:
    """Return the ids that no test carries, each with its reason."""
    return {(kind, name): " ".join(words) for kind, name, *words in _lines(LINT / "untested.txt")}


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]


def carried(text: str) -> Iterator[tuple[Id, str]]:
    """Yield each id that a module's markers name, with its test; without one (``""``) it is the whole module's."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield from ((one, node.name) for place in node.decorator_list for one in _ids(place))
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
            yield from ((one, "") for one in _ids(node.value))


def _ids(place: ast.expr) -> Iterator[Id]:
    for node in ast.walk(place):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pytest.mark.case", "pytest.mark.spec"}:
            kind = ast.unparse(node.func).rpartition(".")[2]
            yield from ((kind, one.value) for one in node.args if isinstance(one, ast.Constant) and one.value)


def carriers() -> dict[Id, list[str]]:
    """Return every id that a test carries, with the tests as pytest takes them."""
    found: dict[Id, set[str]] = {}
    for path in (path for place in ("tests", "scenarios") for path in (ROOT / place).rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        for one, test in carried(path.read_text()):
            found.setdefault(one, set()).add(f"{name}::{test}" if test else name)
    return {one: sorted(names) for one, names in found.items()}


def faults(ids: Sequence[Id], found: Mapping[Id, Sequence[str]], why: Mapping[Id, str]) -> list[str]:
    """Return what is wrong: an id that isn't known, one with neither a test nor a reason, and one with both."""
    spelt = {one: " ".join(one) for one in [*ids, *found, *why]}
    return [
        *(f"{spelt[one]}: no such id" for one in dict.fromkeys([*found, *why]) if one not in ids),
        *(f"{spelt[one]}: neither a test nor a reason" for one in ids if one not in found and not why.get(one)),
        *(f"{spelt[one]}: has a test, so its reason goes" for one in ids if one in found and one in why),
    ]


def page(ids: Sequence[Id], found: Mapping[Id, Sequence[str]], why: Mapping[Id, str]) -> str:
    """Return the whole page."""
    lines = [HEAD.rstrip()]
    for kind, title in PARTS.items():
        lines.append(f"\n## {title}\n")
        for one in (one for one in ids if one[0] == kind):
            told = [f"`{test}`" for test in found.get(one, ())] or [f"No test: {why.get(one, '')}"]
            lines += [f"- {one[1]}", *(f"    - {text}" for text in told)]
    return "\n".join(lines) + "\n"


def entries(text: str) -> dict[str, set[str]]:
    """Return what a page says of each id, whatever the order: two branches that each add a test merge line by line."""
    found: dict[str, set[str]] = {}
    told: set[str] = set()
    for line in text.splitlines():
        if line.startswith("- "):
            told = found.setdefault(line, set())
        elif line.startswith("    - "):
            told.add(line)
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the page; say what is wrong and return 1 if something is."""
    ids, found, why = known(), carriers(), reasons()
    (Path(arguments[0]) if arguments else PAGE).write_text(page(ids, found, why))
    wrong = faults(ids, found, why)
    print(f"{sum(one in found for one in ids)} of {len(ids)} ids are carried by a test")
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
