"""The page for authors of orchestrators: its program, its commands, what they print and its repair are all real."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from harness.python import as_text
from tests.harness.seeded import ROOT

PAGE = (ROOT / "docs" / "write-your-own.md").read_text()
MINIMAL = "docs/examples/minimal.py"
FAILED = "a_spawned_vmm_without_an_endpoint_is_left_alone_until_it_exits[kill]"
LINES = 66
"""How many lines of code the example may have: it is there to be read in a minute."""


def blocks(kind: str) -> list[str]:
    """Return the page's blocks of a kind, in order."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def typed(number: int, program: str) -> str:
    """Run a command of the page as it stands there, with this interpreter, and return what it printed."""
    words = shlex.split(blocks("sh")[number])
    assert words[0] == "pytest"
    assert words[-1] == f"python {MINIMAL}"
    command = [sys.executable, "-P", "-m", *words[:-1], as_text([sys.executable, program])]
    done = subprocess.run(
        [*command, "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    for found in {Path(path).parents[1] for path in re.findall(r"^evidence: (\S+)$", text, re.MULTILINE)}:
        shutil.rmtree(found, ignore_errors=True)
    return text.replace(as_text([sys.executable, program]), f"python {MINIMAL}")


def require_lines(block: str, text: str) -> None:
    """Check that the lines of a block are among those of a text, in their order; three dots stand for anything."""
    lines = iter(text.splitlines())
    for wanted in block.splitlines():
        parts = [re.sub(r"([*?\[])", r"[\1]", part) for part in wanted.split("...")]
        pattern = "*".join(parts)
        assert any(fnmatchcase(line.rstrip(), pattern) for line in lines), f"{wanted!r} isn't in\n{text}"


def test_the_program_is_the_file_and_short() -> None:
    text = (ROOT / MINIMAL).read_text()
    assert blocks("python") == [text]
    assert len([line for line in text.splitlines() if line.strip()]) <= LINES


def test_the_scenarios_say_what_the_page_says() -> None:
    text = typed(1, MINIMAL)
    table, failure = blocks("text")[:2]
    require_lines(table, text.partition("= scenarios on fake =")[2])
    kill = next(part for part in re.split(r"\n_+ test_", text) if part.startswith(FAILED))
    require_lines(failure, kill)


def test_the_steps_of_one_case_are_shown_as_they_happen() -> None:
    require_lines(blocks("text")[2], typed(2, MINIMAL))


def test_the_repair_applies_and_repairs(tmp_path: Path) -> None:
    (tmp_path / "docs" / "examples").mkdir(parents=True)
    repaired = shutil.copy(ROOT / MINIMAL, tmp_path / MINIMAL)
    (diff,) = blocks("diff")
    if (git := shutil.which("git")) is None:
        pytest.skip("needs git (package git)")
    subprocess.run([git, "apply", "--unidiff-zero", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    require_lines(blocks("text")[3], typed(3, str(repaired)).partition("= scenarios on fake =")[2])


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in ("write-your-own.md", "protocol.md"):
        prose = re.sub(r"```.*?```", "", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            assert (ROOT / "docs" / target).exists(), f"{page}: {target}"
