"""T62: a worker that dies takes its fakes, and what runs in them, with it; and any program can be under test."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from harness import python
from harness.deadline import until
from harness.witness import host
from tests.harness.stubs import SOON, orchestrator_script

pytest_plugins = ["pytester"]

DIES = """
import os, signal, pytest
from harness.sandbox import Sandbox

@pytest.mark.lifecycle
def test_it(world):
    box = Sandbox(world)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    # The workload has no argument of ours: the number of its seconds tells it apart from everybody else's.
    seconds = f"61.{os.getpid()}"
    program.begin("exec", {**box.named(), "argv": ["/bin/sleep", seconds], "timeoutMs": 60000})
    everything = lambda: {word for pid in world.host.processes() for word in world.host.arguments(pid)}
    assert world.until(lambda: seconds in everything())
    with open(os.environ["TOLD"], "w") as file:
        file.write(f"{world.vmm.needle} {world.processes.one('here').pin.pid} {seconds}")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def bearing(session: str, seconds: str) -> list[str]:
    """Return the processes whose arguments name something in a run's directory, and the workload of so many seconds."""
    found = host()
    arguments = [found.arguments(pid) for pid in found.processes() if pid != os.getpid()]
    return [" ".join(words) for words in arguments if seconds in words or any(session in word for word in words)]


@pytest.mark.case("T62")
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_worker_that_dies_takes_its_fakes_with_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    told = pytester.path / "told"
    monkeypatch.setenv("TOLD", str(told))
    pytester.makepyfile(DIES)
    options = ["--max-worker-restart=0"] if workers else []
    result = pytester.runpytest_subprocess("-p", "no:randomly", *workers, *options)
    assert result.ret != 0
    needle, pid, seconds = told.read_text().split()
    session = os.path.dirname(os.path.dirname(needle))
    assert re.fullmatch(r"/\S+/nvx-[0-9a-f]{8}", session)
    until(lambda: not bearing(session, seconds), SOON(60))
    assert bearing(session, seconds) == []
    stat = host().stat(int(pid))
    assert stat is None or stat.state == "Z"
    shutil.rmtree(session, ignore_errors=True)


def test_another_program_takes_the_reference_s_place(pytester: pytest.Pytester, tmp_path: Path) -> None:
    command = python.as_text(orchestrator_script(tmp_path))
    pytester.makepyfile(
        """
import pytest

@pytest.mark.crash
@pytest.mark.parametrize("way", ["exit", "kill"])
def test_it(world, way):
    program = world.orchestrator()
    assert program.ready(world.soon()).steps == ("start.a", "start.b")
    assert program.call("start", {"name": "a"}, world.soon()).result == {"args": {"name": "a"}}
    program.crash("start", {}, ("start.b", 2), way, world.soon())
"""
    )
    result = pytester.runpytest_subprocess("--orchestrator", command, "--nvx-report", "report.json")
    result.assert_outcomes(passed=2)
    assert '"orchestrator": "' in (pytester.path / "report.json").read_text()
    assert '"orchestrator": "reference"' not in (pytester.path / "report.json").read_text()


def test_what_judges_the_reference_s_own_command_is_skipped_for_another_program(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    command = python.as_text(orchestrator_script(tmp_path))
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.lifecycle\ndef test_it(world):\n    world.nvx_ref('--version')\n"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess("--orchestrator", command)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*skip it judges the nvx-ref command, and --orchestrator names another orchestrator"])


def test_an_orchestrator_that_stays_after_its_requests_end_fails_the_test(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    hello = '{"hello":{"protocol":1,"operations":[]}}'
    body = f"import signal\nprint({hello!r}, flush=True)\nsignal.alarm(60)\nsignal.pause()"
    command = python.as_text(python.write_script(str(tmp_path / "stays.py"), packages=(), body=body))
    pytester.makepyfile(
        "import pytest\nfrom harness import world as it\n\nit.ENDING = 0.5\n\n"
        "@pytest.mark.lifecycle\ndef test_it(world):\n    world.orchestrator()\n"
    )
    result = pytester.runpytest_subprocess("--orchestrator", command)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*process of the orchestrator, pid *, after the end of its requests"])
    evidence = re.search(r"evidence: (/\S+/nvx-[0-9a-f]{8})/", result.stdout.str())
    assert evidence is not None
    shutil.rmtree(evidence[1])
