"""The documentation says what is so: generated pages are up to date, names exist, every page is reached."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nvx_ref.steps import Step

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def broken(path: Path, text: str) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found: list[str] = []
    for target in LINK.findall(text):
        place, _, anchor = target.partition("#")
        if ":" in place:
            continue
        there = path.parent / place if place else path
        listing = path.name == "README.md" and there.is_dir()
        if not listing and (not there.is_file() or (anchor and anchor not in anchors(there))):
            found.append(target)
    return found


@pytest.mark.parametrize("path", [*pages(), ROOT / "README.md"], ids=lambda path: path.name)
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    assert broken(path, path.read_text()) == []


def test_a_broken_link_is_found() -> None:
    page = DOCS / "index.md"
    text = "[a](none.md) [b](launch.md#nothing) [c](launch.md#start) [d](https://example.org/x) [e](#nowhere)"
    assert broken(page, text) == ["none.md", "launch.md#nothing", "#nowhere"]


def test_every_page_is_in_the_navigation_or_in_its_own_table() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = re.findall(r"[\w/.-]+\.md", str(settings["nav"]))
    decisions = LINK.findall((DOCS / "decisions" / "README.md").read_text())
    there = {path.relative_to(DOCS).as_posix() for path in pages()}
    unreached = there - {*named, *(f"decisions/{name}" for name in decisions)}
    assert unreached == set(), "add them to nav in mkdocs.yml, or to docs/decisions/README.md"


def written(name: str, tmp_path: Path) -> str:
    subprocess.run([sys.executable, ROOT / "ci" / name, tmp_path / "page.md"], check=True, capture_output=True)
    return (tmp_path / "page.md").read_text()


def test_the_life_of_a_launch_is_as_the_steps_are(tmp_path: Path) -> None:
    text = (DOCS / "launch.md").read_text()
    assert text == written("write_launch_page.py", tmp_path), "run python ci/write_launch_page.py"
    assert [step for step in Step if text.count(f"| `{step.value}` |") != 1] == []
    assert text.count("<circle") == len(Step)


def unknown_reasons(text: str) -> set[str]:
    """Return the codes that say why something can't be told, from the source."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"Indeterminate", "Unpinnable"}:
            for word in (word for word in node.keywords if word.arg == "detail"):
                found |= {
                    one.value
                    for one in ast.walk(word.value)
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
    return found


def test_every_reason_of_indeterminate_is_explained_and_none_that_there_is_not() -> None:
    sources = [path.read_text() for path in (ROOT / "nvx_ref").rglob("*.py")]
    codes = {code for text in sources for code in unknown_reasons(text)} | {"launch-unfinished"}
    explained = re.findall(r"^\| `([a-z-]+)` \| ", (DOCS / "verdicts.md").read_text(), re.MULTILINE)
    assert [code for code in explained if code not in {"start", "exec", "stop", "deprovision", "status"}] == sorted(
        codes
    )
    assert unknown_reasons('Indeterminate("x", detail="a" if y else "b"); Refused("z", detail="c")') == {"a", "b"}


def test_a_test_that_a_page_names_exists() -> None:
    named = [
        (path.name, test)
        for path in [*pages(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for test in re.findall(r"`((?:tests|scenarios)/[\w/]+\.py::\w+)`", path.read_text())
    ]
    assert len({test for name, test in named if name == "security.md"}) > 20
    missing = [(name, test) for name, test in named if not defines(*test.split("::"))]
    assert missing == []
    assert not defines("tests/lint/test_pages.py", "test_nothing")


def defines(place: str, function: str) -> bool:
    path = ROOT / place
    return path.is_file() and f"def {function}(" in path.read_text()


def test_every_target_of_make_is_helped() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    targets = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    assert set(targets) == set(phony[1].split())
    done = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True)
    helped = re.findall(r"^  make ([a-z-]+)\s+\S", done.stdout, re.MULTILINE)
    assert sorted(helped) == sorted(targets)
