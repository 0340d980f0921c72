"""What the pages show runs: every block of shell or Python, and every difference, as a reader would.

A block that follows `<!-- tested -->` is run, one that follows `<!-- not run: why -->` isn't; one without a mark is a
fault. The blocks of a page run one after the other in one directory, a copy of what the page talks about.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNNABLE = ("sh", "python", "diff")
FENCE = re.compile(r"(?:^<!-- (tested|not run: .+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHERS = ("benchmarks.md", "protocol.md", "write-your-own.md", "requirements.md")
"""Pages whose blocks have tests of their own, or none."""

COPIED = ("scenarios", "goldens", "pyproject.toml")
LINKED = ("harness", "fake_openvmm", "nvx_ref", "tests", "ci")

PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name not in OTHERS)


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    mark: str
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(text) if found[1] in RUNNABLE]


def run(block: Block, directory: Path) -> None:
    """Run a block where a reader would."""
    name = re.match(r"# file: (\S+)\n", block.text)
    if block.language == "python" and name:
        (directory / name[1]).write_text(block.text.partition("\n")[2])
        return
    command = {
        "sh": ["bash", "-eu", "-c", block.text],
        "python": [sys.executable, "-c", block.text],
        "diff": ["git", "apply", "--unidiff-zero", "--recount", "-"],
    }[block.language]
    home = os.path.dirname(sys.executable)
    steering = ("PYTEST_", "NVX_", "GIT_", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    environment |= {"PATH": f"{home}{os.pathsep}{os.environ['PATH']}", "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    # The tree may change its commit meanwhile, which is no matter of a page.
    environment["NVX_COMMIT"] = "tested"
    text = block.text if block.language == "diff" else None
    done = subprocess.run(
        command, cwd=directory, env=environment, input=text, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"


def project(tmp_path: Path) -> Path:
    """Make a copy of the project in which a page may write."""
    place = tmp_path / "nvx-ref"
    place.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            # Compiled files come and go while others run what they are made of.
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place / name)
    for name in LINKED:
        (place / name).symlink_to(ROOT / name)
    return place


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_tested_or_says_why_not(page: str) -> None:
    assert [block for block in blocks((DOCS / page).read_text()) if not block.mark] == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- tested -->" in (DOCS / page).read_text()])
def test_what_a_page_shows_runs(page: str, tmp_path: Path) -> None:
    place = project(tmp_path)
    for block in blocks((DOCS / page).read_text()):
        if block.mark == "tested":
            run(block, place)


def test_a_block_that_fails_is_told(tmp_path: Path) -> None:
    place = project(tmp_path)
    text = "<!-- tested -->\n```sh\nnvx-harness replay nonsense\n```\n\n```python\nassert False\n```\n```text\nx\n```\n"
    first, second = blocks(text)
    assert (first.mark, second.mark) == ("tested", "")
    for block in (first, second, Block("tested", "diff", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")):
        with pytest.raises(AssertionError):
            run(block, place)
