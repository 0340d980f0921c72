from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from agent_build import AGENT, READERS, SANITIZERS, compiled

HERE = Path(__file__).resolve().parent

Ask = Callable[..., list[str]]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's readers as a program of this machine, with the sanitizers where the compiler has them."""
    target = tmp_path_factory.mktemp("driver") / "driver"
    sources = [HERE / "driver.c", *(AGENT / name for name in READERS)]
    if not compiled(target, sources, *SANITIZERS):
        compiled(target, sources)
    return target


@pytest.fixture(scope="session")
def ask(driver: Path) -> Ask:
    """Gives what the readers say of many inputs, in their order."""

    def run(mode: str, inputs: Iterable[bytes], *arguments: str) -> list[str]:
        raw = b"".join(len(one).to_bytes(4, "little") + one for one in inputs)
        done = subprocess.run([str(driver), mode, *arguments], input=raw, capture_output=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode().split("\n")[:-1]

    return run
