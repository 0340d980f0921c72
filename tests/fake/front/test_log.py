"""Contract openvmm 5: shapes of the log's lines, and what each exit status means."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fake_openvmm.machine import Log
from tests.support.openvmm_stand import LINE, ROOT, Stand


def test_tracing_lines_have_their_shape(stand: Stand) -> None:
    lines = stand.run().log.splitlines()
    assert lines
    for line in lines:
        assert LINE.match(line), line
    assert any("starting microVM processors=0x1 memory=0x10000000" in line for line in lines)


def test_fields_and_levels(capfd: pytest.CaptureFixture[str]) -> None:
    written = Log()
    written.info("broker", "accepted", peer=7, name="a b", fine=True, ratio=0.5)
    written.line("DEBUG", "broker", "hidden")
    written.fatal("no kernel")
    lines = capfd.readouterr().err.splitlines()
    assert LINE.match(lines[0])
    assert lines[0].endswith(' INFO broker: accepted peer=0x7 name="a b" fine=true ratio=0.5')
    assert lines[1:] == ["fatal error: no kernel"]


@pytest.mark.parametrize("authenticated", [True, False])
def test_portb_bytes_are_raw_and_move_to_stderr_with_the_capability(stand: Stand, *, authenticated: bool) -> None:
    stand.guest = """
def run(config, opened, tools):
    tools.log.portb(b"NVX-MANAGED-ERROR: stage=tty status=2\\n")
    return 125
"""
    changes = "" if authenticated else "~microvm-control-auth-stdin ~microvm-control-console ~microvm-lifecycle"
    reader, writer = os.pipe()
    os.write(writer, bytes([1]) * 32)
    os.close(writer)
    run = subprocess.run(stand.command() + stand.argv(changes), stdin=reader, capture_output=True, check=False)
    os.close(reader)
    assert run.returncode == 125
    assert (b"NVX-MANAGED-ERROR: stage=tty status=2\n" in run.stderr) == authenticated
    assert run.stdout == (b"" if authenticated else b"NVX-MANAGED-ERROR: stage=tty status=2\n")


def test_a_usage_error_goes_to_stderr_and_help_to_stdout() -> None:
    command = [sys.executable, "-m", "fake_openvmm"]
    error = subprocess.run([*command, "--bogus"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (error.returncode, error.stdout) == (2, "")
    usage = "\n\nUsage: openvmm [OPTIONS]\n\nFor more information, try '--help'.\n"
    assert error.stderr == "error: unexpected argument '--bogus' found" + usage
    shown = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Usage: openvmm [OPTIONS]" in shown.stdout


def test_a_fault_of_the_stand_in_itself_is_loud(stand: Stand) -> None:
    stand.guest = "def run(config, opened, tools):\n    raise ZeroDivisionError('bug')\n"
    outcome = stand.run()
    assert outcome.status == 101
    assert "ZeroDivisionError: bug" in outcome.log
    assert outcome.report is None


def test_the_log_may_be_gone_or_full(stand: Stand) -> None:
    with open("/dev/full", "wb") as full:
        reader, writer = os.pipe()
        os.write(writer, bytes([1]) * 32)
        os.close(writer)
        run = subprocess.run(stand.command() + stand.argv(), stdin=reader, stdout=full, stderr=full, check=False)
        os.close(reader)
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("level", "shown"), [("error", 0), ("off", 0), ("warn", 1), ("info", 2), ("broker=warn,warn", 1)]
)
def test_the_level_comes_from_the_environment(stand: Stand, level: str, shown: int) -> None:
    stand.start(stand.argv(), env={"OPENVMM_LOG": level})
    assert len(stand.finish().log.splitlines()) == shown
