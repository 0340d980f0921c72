"""How a command ends early: Ctrl-C is answered with one word and status 130, a broken session with where to look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvx_ref.cli.program import run_command
from nvx_ref.errors import SessionFailed
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


def test_a_session_that_breaks_says_where_to_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise SessionFailed("the peer closed the session", subject="NVXS")

    monkeypatch.setattr(Orchestrator, "exec", broken)
    assert run_command(["exec", "--state-dir", "box", "--", "/bin/true"]) == 1
    assert capsys.readouterr() == ("", "error: NVXS: the peer closed the session; ask status what became of the VM\n")
