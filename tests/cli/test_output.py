"""What the command says where its output can't go, and how far a long reading has come."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvx_ref.cli.output import Progress, write_output
from nvx_ref.errors import Refused

FULL = "/dev/full"
WRITE = "import sys; from nvx_ref.cli.output import write_output; write_output(sys.argv[1], b'x')"
needs_shell = pytest.mark.skipif(not os.path.exists(FULL), reason=f"needs a POSIX shell and {FULL}")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def under_shell(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # -E: a PYTHONUNBUFFERED of the caller would leave nothing for the interpreter to write at its end.
        ["/bin/sh", "-c", line, "sh", sys.executable, "-E", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_for_a_closed_stream_is_refused_by_name(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, stream, None)
    with pytest.raises(Refused, match="it is closed") as caught:
        write_output(stream, b"x")
    assert caught.value.subject == stream


@needs_shell
def test_output_that_finds_no_room_is_refused_by_name() -> None:
    run = under_shell(f'"$@" > {FULL}', "-c", WRITE, "stdout")
    assert "Refused: stdout: it can't be written: No space left on device" in run.stderr


@needs_shell
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        (f'"$@" > {FULL}', 1, "error: the output: No space left on device\n"),
        ('"$@" >&-', 0, ""),
        ('"$@" <&- >&-', 0, ""),
    ],
)
def test_a_command_whose_output_goes_nowhere_never_shows_a_traceback(line: str, status: int, said: str) -> None:
    run = under_shell(line, "-m", "nvx_ref", "--help")
    assert (run.returncode, run.stdout, run.stderr) == (status, "", said)


@needs_shell
def test_what_could_not_be_written_does_not_change_the_status(tmp_path: Path) -> None:
    script = tmp_path / "nvx-ref.py"
    script.write_text(
        "import sys\nfrom nvx_ref import cli\nfrom nvx_ref.cli import program\n"
        "program.run_command = lambda _: sys.stdout.buffer.write(b'x')\ncli.main()\n"
    )
    run = under_shell(f'"$@" > {FULL}', str(script))
    assert (run.returncode, run.stderr) == (1, "")


@needs_shell
def test_a_failure_without_any_stream_still_has_its_status() -> None:
    run = under_shell('"$@" <&- >&- 2>&-', "-m", "nvx_ref", "status", "--state-dir", "/")
    assert (run.returncode, run.stdout, run.stderr) == (1, "", "")


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_progress_is_for_terminals(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress()
    progress(5, 10)
    monkeypatch.undo()
    assert progress.hashed == 5
    assert stream is None or stream.getvalue() == ""


def test_progress_says_each_percent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    progress = Progress()
    for done in (0, 500, 501, 1000):
        progress(done, 1000)
    monkeypatch.undo()
    assert shown.getvalue() == "\rhashed   0%\rhashed  50%\rhashed 100%\n"
