"""Ctrl-C is answered with one word and status 130, from the first instant on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvx_ref.cli.program import run_command
from nvx_ref.orchestrator import Orchestrator


@pytest.mark.parametrize("module", ["nvx_ref", "harness"])
def test_while_it_loads(module: str, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    run = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "Interrupted\n")


def test_while_it_works(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Orchestrator, "status", interrupted)
    assert run_command(["status", "--state-dir", "box"]) == 130
    assert capsys.readouterr() == ("", "Interrupted\n")
