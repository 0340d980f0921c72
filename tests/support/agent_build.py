"""Compiling the agent's sources for this machine, to hold them against inputs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[2] / "fake_openvmm" / "qemu" / "agent"
READERS = ("disk.c", "json.c", "nvxc.c", "nvxs.c", "tokens.c")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-O1", f"-I{AGENT}"]


def compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if found is None:
        pytest.skip("there is no C compiler (Debian: gcc libc6-dev)")
    return found


def compiled(target: Path, sources: Iterable[Path], *more: str) -> bool:
    command = [compiler(), *FLAGS, *more, "-o", str(target), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "-fsanitize" not in " ".join(more):
        pytest.fail(done.stderr)
    return not done.returncode
