"""How a command ends early: Ctrl-C is answered with one word and status 130, a broken session with where to look."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nvx_ref.cli import ENDINGS
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


STATUS = """
import signal, sys
from nvx_ref.cli import main
from nvx_ref.orchestrator import Orchestrator

def status(*_):
    {body}

Orchestrator.status = status
sys.argv[1:] = ["status", "--state-dir", "box"]
main()
"""
"""A command in whose place something else is done; `INT` is a Ctrl-C."""

TWICE = """try:
        INT
    finally:
        INT
        print("tidied", flush=True)"""

IN_THE_BACKGROUND = """INT
    sys.exit(4)"""


@pytest.mark.parametrize(
    ("body", "first", "ended"),
    [
        (TWICE, "", (130, "tidied\n", "Interrupted\n")),
        (IN_THE_BACKGROUND, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)", (4, "", "")),
    ],
    ids=["while it tidies up", "in the background"],
)
def test_ctrl_c_is_answered_once(body: str, first: str, ended: tuple[int, str, str]) -> None:
    """Another one would cut short what ends the VM of a `run`, of which nobody would know any more."""
    code = f"{first}{STATUS.format(body=body)}".replace("INT\n", "signal.raise_signal(signal.SIGINT)\n")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == ended


@pytest.mark.parametrize("name", ENDINGS)
def test_a_run_answers_whoever_ends_it_and_what_was_ignored_is_ignored(name: str) -> None:
    if not hasattr(signal, name):
        pytest.skip(f"there is no {name} here")
    code = f"""
import signal, sys
from nvx_ref.cli import INTERRUPTS, main, program
def answer(_):
    INTERRUPTS.take(*{ENDINGS})
    try:
        signal.raise_signal(signal.{name})
    except KeyboardInterrupt:
        signal.raise_signal(signal.{name})
        print("tidied", flush=True)
        raise
program.commands.main = lambda **_: answer(_)
main()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    expected = 128 + getattr(signal, name)
    assert (run.returncode, run.stdout, run.stderr) == (expected, "tidied\n", "Interrupted\n")
    ignored = code.replace("def answer", f"signal.signal(signal.{name}, signal.SIG_IGN)\ndef answer")
    run = subprocess.run([sys.executable, "-c", ignored], capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_what_the_system_refuses_while_it_loads_is_told(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise OSError(5, 'Input/output error', 'click.py')\n")
    run = subprocess.run(
        [sys.executable, "-m", "nvx_ref", "--help"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "error: [Errno 5] Input/output error: 'click.py'\n"


def test_at_its_end_it_is_not_answered() -> None:
    code = (
        "import atexit, signal, sys\nfrom nvx_ref.cli import main\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\nsys.argv[1:] = ['--help']\nmain()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")


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
