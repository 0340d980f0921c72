"""Ctrl-C, at whatever moment: a word at once, an end soon, nothing left behind, and never a traceback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar, Self

import pytest

from harness import python
from harness.crash import workers
from harness.crash.cells import parse
from harness.crash.plan import Planned, parts
from harness.crash.sweep import Tally
from harness.deadline import until
from harness.platform import short_root
from harness.progress import Silence
from harness.settings import RUNS, Settings
from tests.harness.stubs import SOON, appears, found_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C takes a console there")

# An orchestrator that never comes to its first step: without Ctrl-C a sweep of it would go on for an hour.
SILENT = """
import json, sys
OPERATIONS = ["provision", "start", "stop", "reattach", "deprovision"]
HELLO = {"protocol": 1, "operations": OPERATIONS, "steps": ["start.spawned"], "needs": ["scratch"], "ways": ["exit"]}
print(json.dumps({"hello": HELLO}), flush=True)
sys.stdin.read()
"""
# What a run in the background ignores, a shell gives back.
LEAD = "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nos.execv(sys.argv[1], sys.argv[1:])"
# One that, asked for anything, hears neither Ctrl-C nor the end of its requests.
DEAF = SILENT.replace(
    "sys.stdin.read()",
    "import signal\nif sys.stdin.readline():\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    signal.pause()",
)
TWO = """
import pathlib, select, pytest

pytestmark = pytest.mark.c3

def test_first(world):
    pass

@pytest.fixture
def waiting(world):
    (pathlib.Path(__file__).parent / "waits").touch()
    select.select([], [], [], 60)

def test_second(waiting):
    pass
"""
COLLECTS = """
import pathlib, select, pytest

(pathlib.Path(__file__).parent / "collects").touch()
select.select([], [], [], 600)

@pytest.mark.c3
def test_it(world):
    pass
"""
BEGINS = """
import pathlib, pytest

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_newgateway(gateway):
    (pathlib.Path(__file__).parent / "begun").touch()
"""
ENDLESS = ["--timeout-scale", "120"]


@pytest.fixture
def runs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nv", dir=short_root()) as place:
        yield Path(place)


@pytest.fixture(autouse=True)
def no_command_stays() -> Iterator[None]:
    """What a failed test hasn't waited for would go on for an hour."""
    yield
    for child in Command.started:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)  # noqa: TID251 - nobody has waited for it yet
            child.communicate()
    Command.started.clear()


class Command:
    """A command of the harness, in a session of its own like one that is typed."""

    started: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, runs: Path, *arguments: str, module: str = "harness") -> None:
        self.runs = runs
        self.child = subprocess.Popen(
            [sys.executable, "-c", LEAD, sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, RUNS: str(runs)},
        )
        self.started.append(self.child)

    def interrupt(self, *, typed: bool) -> None:
        """Send it alone the signal, or everything in its terminal."""
        if typed:
            os.killpg(self.child.pid, signal.SIGINT)  # noqa: TID251 - nobody has waited for it yet
        else:
            self.child.send_signal(signal.SIGINT)

    def insist(self) -> None:
        """Type it again and again, until the end."""
        self.interrupt(typed=True)
        while not until(lambda: self.child.poll() is not None, SOON(0.05)):
            self.interrupt(typed=True)

    def require_clean(self) -> None:
        """It has ended as it should, and left nothing."""
        out, errors = self.child.communicate(timeout=60)
        assert (self.child.returncode, out) == (130, "")
        assert errors.split() == ["Interrupted"]
        assert until(lambda: found_of(self.runs) == [], SOON(60))
        assert os.listdir(self.runs) == []


def require_tidied(command: Command) -> str:
    """A run of pytest was cut short as it should be; what it said."""
    out, errors = command.child.communicate(timeout=120)
    assert (command.child.returncode, errors) == (pytest.ExitCode.INTERRUPTED, "")
    assert "KeyboardInterrupt" in out
    assert "Traceback" not in out
    assert "left behind" not in out
    assert until(lambda: found_of(command.runs) == [], SOON(60))
    assert os.listdir(command.runs) == []
    return out


def works(runs: Path) -> bool:
    """Whether an orchestrator has been started in a test's directory."""
    return appears(runs, "nvx-*/*/out/orchestrator-*.txt")


@pytest.mark.parametrize("typed", [False, True], ids=["to it alone", "typed"])
def test_a_cell_that_would_go_on_for_ever_is_cut_short(runs: Path, tmp_path: Path, *, typed: bool) -> None:
    script = python.write_script(str(tmp_path / "silent.py"), packages=(), body=SILENT)
    command = Command(
        runs, "sweep", "--jobs", "1", "--scene", "start", "--group", "steps", *ENDLESS,
        "--orchestrator", python.as_text(script),
    )  # fmt: skip
    assert until(lambda: works(runs), SOON(60))
    command.interrupt(typed=typed)
    command.require_clean()


@pytest.mark.parametrize("typed", [False, True], ids=["to it alone", "typed"])
def test_a_replay_is_cut_short_with_its_vmm(runs: Path, *, typed: bool) -> None:
    command = Command(runs, "replay", "--started", "start/kill/start.spawned#1")
    assert until(lambda: works(runs), SOON(60))
    command.interrupt(typed=typed)
    command.require_clean()


@pytest.mark.parametrize("patient", [True, False], ids=["once", "again and again"])
def test_a_run_of_pytest_is_cut_short_in_a_scenario_without_a_word_of_what_it_had_in_hand(
    runs: Path, tmp_path: Path, *, patient: bool
) -> None:
    """By its user, who may well be in a hurry."""
    script = python.write_script(str(tmp_path / "deaf.py"), packages=(), body=DEAF)
    command = Command(
        runs, "scenarios/test_interrupted_launch.py", "-p", "no:cacheprovider", *ENDLESS,
        "--orchestrator", python.as_text(script), module="pytest",
    )  # fmt: skip
    assert until(lambda: works(runs), SOON(60))
    command.interrupt(typed=True) if patient else command.insist()
    require_tidied(command)


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_run_of_pytest_that_is_cut_short_in_a_fixture_keeps_what_was_judged_before(
    runs: Path, workers: list[str]
) -> None:
    scenarios = runs / "test_two.py"
    scenarios.write_text(TWO)
    command = Command(
        runs / "r", str(scenarios), "--confcutdir", str(runs), "-p", "no:cacheprovider", "-p", "no:randomly",
        *workers, module="pytest",
    )  # fmt: skip
    assert until((runs / "waits").exists, SOON(60))
    command.insist()
    out = require_tidied(command)
    assert [line for line in out.splitlines() if "first" in line or "cut short" in line] == [
        "c3     first     fake     pass",
        "the run was cut short: what isn't listed was not run",
    ]


@pytest.mark.parametrize(
    ("workers", "when"),
    [([], "collects"), (["-n", "2"], "collects"), (["-n", "2"], "begun")],
    ids=["alone, collecting", "xdist, collecting", "xdist, as workers begin"],
)
def test_a_run_of_pytest_is_cut_short_again_and_again_before_it_has_any_test(
    runs: Path, workers: list[str], when: str
) -> None:
    (runs / "r").mkdir()
    (runs / "conftest.py").write_text(BEGINS)
    scenarios = runs / "test_slow.py"
    scenarios.write_text(COLLECTS)
    command = Command(
        runs / "r", str(scenarios), "--confcutdir", str(runs), "-p", "no:cacheprovider", *workers, module="pytest"
    )
    assert until((runs / when).exists, SOON(120))
    command.insist()
    out = require_tidied(command)
    assert out.splitlines().count("Interrupted: the workers are ending") == bool(workers)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_ctrl_c_is_left_to_tests_that_are_no_scenarios_and_to_whoever_has_called_pytest(workers: str) -> None:
    code = """
import os, signal, sys, pytest
signal.signal(signal.SIGINT, signal.default_int_handler)
place = sys.argv[1]
with open(os.path.join(place, "test_one.py"), "w") as file:
    file.write('''
import signal, pytest
def test_one():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
''')
options = ["-p", "no:cacheprovider", "--rootdir", place, "-q", "-n", sys.argv[2], place]
status = pytest.main(options)
print("status", int(status), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print("held", *signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run([sys.executable, "-c", code, place, workers], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-2:] == ["status 0 True", "held"], done.stdout + done.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_of_the_reference_is_cut_short_again_and_again(runs: Path, jobs: str) -> None:
    for _ in range(2):
        command = Command(runs, "sweep", "--jobs", jobs, "--group", "steps")
        assert until(lambda: works(runs), SOON(60))
        command.interrupt(typed=True)
        command.interrupt(typed=True)
        command.require_clean()


def test_mutants_are_cut_short_with_their_tests(runs: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    command = Command(runs, "mutants", "--only", "m01", "--jobs", "1")
    assert until(lambda: appears(runs, "nvx-*/*/o"), SOON(60))
    command.interrupt(typed=False)
    command.require_clean()


def test_what_a_run_in_the_background_ignores_is_ignored() -> None:
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom harness.cli import Interrupts\n"
        "Interrupts().take()\nsignal.raise_signal(signal.SIGINT)\nprint('on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


# Ctrl-C at each line of the command's end, after the one that has interrupted it.
AT_EACH_LINE = """
import signal, sys, types
from harness import cli

def at_each_line(*_):
    signal.raise_signal(signal.SIGINT)
    return at_each_line

def run_command(_):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        sys.settrace(at_each_line)
        sys._getframe(1).f_trace = at_each_line

sys.modules["harness.commands"] = types.SimpleNamespace(run_command=run_command)
cli.main()
"""


def test_who_insists_until_the_very_end_is_told_once() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EACH_LINE], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted\n")


def test_a_process_that_a_sweep_begins_hears_nothing_before_it_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool begins one with the work that it has for it: with a part's plan, or with the cells that come of that."""
    held: list[bool] = []

    class Pool:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, work: object, *_: object) -> Future[object]:
            held.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
            done: Future[object] = Future()
            plan = workers._Plan([Planned(parse("start/exit/start.spawned#1"))])
            done.set_result(plan if work is workers._plan else workers._Ran(Tally()))
            return done

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    workers.sweep_all(workers.Task(Settings(), ""), parts("quick", ["start"], ["steps"]), 2, Silence())
    assert held == [True, True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
