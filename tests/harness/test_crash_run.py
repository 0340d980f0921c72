"""Positive controls of the crash machinery: a cell that does nothing fails, and so does all that a cell must catch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harness import python
from harness.backends import load
from harness.crash import run as runner
from harness.crash import workers
from harness.crash.cells import parse
from harness.crash.plan import CALLS, EVENTS, STEPS, Part, Planned
from harness.crash.scenes import SCENES
from harness.crash.sweep import Sweep, Tally, golden_path, open_bench, options_of
from harness.errors import Finding, Unavailable, Unsupported
from harness.progress import bar
from harness.report.build import of_sweep
from harness.settings import Settings, session_directory
from harness.sharding import Slice
from harness.table import LEFT
from tests.harness.seeded import ROOT, faulty, seed
from tests.harness.stubs import orchestrator_script

NEEDS_STRACE = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace (package strace)")
SPAWNED = "start/exit/start.spawned#1"


@contextmanager
def sweeping(*, started: bool = False, golden: Path | None = None, **settings: object) -> Iterator[Sweep]:
    made = replace(Settings(directory=session_directory()), **settings)
    with open_bench(made, load(made), started=started) as bench:
        yield Sweep(bench, golden_path(str(golden) if golden else None), options_of(made, started=started))
    shutil.rmtree(made.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def sweep() -> Iterator[Sweep]:
    """A sweep whose files go with this module, for the evidence of cells that are meant to fail is nobody's."""
    with sweeping() as made:
        yield made


def test_a_cell_that_nothing_is_wrong_with_passes(sweep: Sweep) -> None:
    result = sweep.replay(parse(SPAWNED))
    assert (result.violation, result.fired, result.started) == ("", True, 2)


@pytest.mark.parametrize("way", ["exit", "kill", "audit-exit", "audit-kill"])
def test_a_cell_that_does_not_fire_fails(sweep: Sweep, way: str) -> None:
    result = sweep.replay(parse(f"provision/{way}/provision.unheard_of#1"))
    assert not result.fired
    assert "expected that it " in result.violation
    assert os.path.isdir(result.evidence)


@pytest.mark.parametrize(
    "cell", ["provision/exit/provision.locked#2", "provision/pair/provision.locked#1,stop.locked#1"]
)
def test_a_step_that_is_not_hit_so_often_fails(sweep: Sweep, cell: str) -> None:
    assert "expected that it fires" in sweep.replay(parse(cell)).violation


@NEEDS_STRACE
@pytest.mark.parametrize("way", ["syscall-kill", "syscall-EIO"])
def test_a_call_that_is_not_made_fails(sweep: Sweep, way: str) -> None:
    result = sweep.replay(parse(f"provision/{way}/unlinkat:nothing#1"))
    assert "expected that it fires, found no such call in a counting run" in result.violation


@NEEDS_STRACE
def test_a_call_whose_number_is_wrong_is_looked_up_again_and_else_fails(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = parse("provision/syscall-kill/renameat:.config.json.ID.tmp,config.json#1")
    bench = sweep._bench
    call = runner.find(bench, cell)
    other = replace(call, count=call.count + 1)
    assert runner.run(bench, sweep.allowed, cell, other).violation == ""
    monkeypatch.setattr(runner, "find", lambda *_: other)
    result = runner.run(bench, sweep.allowed, cell, other)
    assert result.violation == f"{cell}: expected that it fires, found that another call was hit 3 times"


@NEEDS_STRACE
def test_a_counting_run_that_is_fooled_by_a_wrapper_fails(tmp_path: Path) -> None:
    """A wrapper that starts the orchestrator as a child shows no call of its own: nothing was crashed there."""
    reference = python.write_script(
        str(tmp_path / "reference.py"),
        packages=("nvx_ref", "harness", "msgspec"),
        body="from harness.sut.reference import main\n\nsys.exit(main())\n",
    )
    wrapper = f"import subprocess, sys\nsys.exit(subprocess.run({reference!r}).returncode)\n"
    command = [python.interpreter(), "-I", "-S", "-c", wrapper]
    with sweeping(orchestrator=python.as_text(command)) as sweep, pytest.raises(Finding, match="nothing was traced"):
        sweep.run(Part("provision", CALLS))


def test_a_state_that_the_golden_does_not_allow_fails(tmp_path: Path) -> None:
    golden = json.loads(Path(golden_path(None)).read_text())
    golden["start"]["start.spawned"]["at"] = ["config lock"]
    golden["start"]["start.marker_written"]["restart"] = ["live: config lock"]
    (tmp_path / "allowed_states.json").write_text(json.dumps(golden))
    with sweeping(golden=tmp_path) as sweep:
        at = sweep.replay(parse(SPAWNED))
        restart = sweep.replay(parse("start/kill/start.marker_written#1"))
    assert "then a look: expected (config lock), found (capability config journal lock log" in at.violation
    assert "then reattach: expected (live: config lock), found (exited: config lock log)" in restart.violation


def test_a_vmm_that_was_told_to_end_is_no_excuse_for_calling_it_live(tmp_path: Path) -> None:
    """It may end between a verdict and the look at it, but must have run when the verdict was asked for."""
    golden = json.loads(Path(golden_path(None)).read_text())
    golden["stop"]["stop.exited"]["restart"] = ["live: config lock log outcome"]
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "allowed_states.json").write_text(json.dumps(golden))
    liar = faulty("exited is called live", tmp_path)
    with sweeping(golden=tmp_path / "golden", orchestrator=liar) as sweep:
        result = sweep.replay(parse("stop/exit/stop.exited#1"))
    assert result.fired
    assert "then reattach: expected a VMM alive, as the verdict says, found none" in result.violation


def test_a_process_that_was_touched_although_it_has_nothing_to_do_with_it_fails() -> None:
    with sweeping() as sweep:
        bystander = sweep._bench.bystander
        assert bystander is not None
        bystander.pin.end()
        result = sweep.replay(parse("provision/exit/provision.locked#1"))
    assert "expected no other process touched, found pid " in result.violation


@pytest.mark.parametrize(
    ("fault", "cell", "found"),
    [
        ("marker after the spawn", SPAWNED, "expected a record of the VMM that is alive, found pid "),
        ("journal forgotten", SPAWNED, "then reattach: expected a record of the VMM that is alive, found pid "),
    ],
)
def test_a_fault_that_was_put_into_the_reference_is_caught(tmp_path: Path, fault: str, cell: str, found: str) -> None:
    with sweeping(orchestrator=faulty(fault, tmp_path)) as sweep:
        result = sweep.replay(parse(cell))
    assert result.fired
    assert found in result.violation


@NEEDS_STRACE
def test_an_error_that_is_answered_with_a_code_of_its_own_is_none_of_the_family(tmp_path: Path) -> None:
    cell = "provision/syscall-ENOSPC/write:.config.json.ID.tmp#1"
    with sweeping(orchestrator=faulty("a code of its own", tmp_path)) as sweep:
        result = sweep.replay(parse(cell))
    assert result.fired
    found = "found refuse (no code of protocol 1; the nearest: Refused): "
    assert result.violation.startswith(f"{cell}: expected an error of the family, {found}")


def test_the_text_of_failed_cells_says_how_to_run_each_again(sweep: Sweep) -> None:
    tally = Tally()
    tally.take(runner.Result(SPAWNED, fired=True, violation="what was found", evidence="/e"))
    assert sweep.text(tally).splitlines() == [
        "1 of 1 crash cells failed, the first: what was found",
        "",
        "what was found",
        "  evidence: /e",
        f"  replay:   nvx-harness replay '{SPAWNED}'",
    ]
    assert tally.figures() == {"crashPoints": 1, "violations": 1, "cellsFired": 1, "processesStarted": 0}


def test_calls_are_unavailable_where_there_is_neither_strace_nor_a_process_table(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.listdir

    def absent(path: str) -> list[str]:
        if path.endswith("/task"):
            raise FileNotFoundError(2, "as on Windows", path)
        return listed(path)

    monkeypatch.setattr("harness.crash.trace.shutil.which", lambda _name: None)
    monkeypatch.setattr("harness.crash.stage.os.listdir", absent)
    with pytest.raises(Unavailable, match="strace"):
        sweep.replay(parse("stop/syscall-EIO/unlinkat:runtime.json#1"))


def test_a_replay_names_what_the_run_was_told() -> None:
    settings = Settings(backend="kvm", orchestrator="mine --json")
    assert options_of(settings, started=True) == ("--backend", "kvm", "--orchestrator", "mine --json")
    assert options_of(Settings(), started=True) == ("--started",)
    settings = Settings(backend="kvm", artifacts="/re lease", openvmm="mine --loud")
    assert options_of(settings, started=True) == (
        *("--backend", "kvm", "--artifacts", "/re lease", "--openvmm", "mine --loud", "--started"),
    )


def test_where_guests_boot_for_seconds_each_step_with_a_vmm_is_crashed_at_once(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = sweep._bench.backend
    monkeypatch.setattr(backend, "lacks", lambda need: "too slow" if need == "sweep" else None)
    ran: list[str] = []
    with monkeypatch.context() as seen:
        seen.setattr(sweep, "cell", lambda planned: ran.append(str(planned.cell)) or runner.Result(str(planned.cell)))
        for scene in SCENES:
            with suppress(Unsupported):
                sweep.run(Part(scene, STEPS))
    steps = [cell.rpartition("/")[2].removesuffix("#1") for cell in ran]
    assert len(set(steps)) == len(steps)
    assert {"start.spawned", "start.journal_removed", "stop.requested", "stop.forced", "recover.terminated"} < {*steps}
    assert "failed_start.abandoned" in steps
    assert not [step for step in steps if step.startswith(("provision.", "removal."))]
    assert {cell.split("/")[1] for cell in ran} == {"exit", "kill"}
    for part, said in ((Part("provision", STEPS), "provision has none"), (Part("start", CALLS), "too slow$")):
        with pytest.raises(Unsupported, match=said):
            sweep.run(part)
    tally = sweep.run(Part("forced-stop", STEPS))
    assert (tally.points, tally.fired, tally.failures) == (1, 1, [])


def test_a_cell_that_can_not_be_run_is_left_out_and_counted_and_the_others_are_judged(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(planned: Planned) -> runner.Result:
        if planned.cell.way == "kill":
            raise Unsupported("kvm", "it can't be held")
        return runner.Result(str(planned.cell), fired=True)

    monkeypatch.setattr(sweep, "cell", cell)
    tally = sweep.run(Part("provision", STEPS))
    assert tally.points == tally.left.total() > 1
    left = [f"{tally.points} of {2 * tally.points} crash cells: kvm: it can't be held"]
    assert (LEFT, left) in sweep.told(tally)
    # In a process of its own, too, of which nothing is lost.
    planned = [Planned(parse(f"start/{way}/start.spawned#1")) for way in ("exit", "kill", "exit")]
    monkeypatch.setattr(workers._worker, "sweep", sweep)
    ran = workers._run(planned)
    swept = workers.Swept(Slice())
    with ThreadPoolExecutor(1) as pool, bar("cells") as shown:
        assert workers._take(pool, ran, swept, shown) == set()  # type: ignore[arg-type]
    assert (swept.tally.points, swept.missing) == (2, {"kvm: it can't be held": 1})
    (skipped,) = of_sweep([], {}, swept.missing, Settings(), Slice()).skipped
    assert (skipped.what, skipped.reason, skipped.count) == ("crash cells", "kvm: it can't be held", 1)


def test_an_orchestrator_that_reports_no_events_is_not_swept_there(tmp_path: Path) -> None:
    command = python.as_text(orchestrator_script(tmp_path))
    missing = "an orchestrator that announces what its run-time reports"
    with sweeping(orchestrator=command) as sweep, pytest.raises(Unavailable, match=missing):
        sweep.run(Part("provision", EVENTS))


def evidence_of(text: str) -> str:
    """Return the directory of a run's files, from where its output says that the evidence is."""
    found = re.search(r"evidence: (\S+?/nvx-\w+)/", text)
    assert found is not None, text
    return found[1]


@pytest.mark.timeout(400)
def test_the_whole_command_ends_red_with_a_fault_in_the_reference(tmp_path: Path) -> None:
    """Marker after the spawn: a VMM runs that nobody knows, and the sweep says so, cell by cell."""
    # The very command of `make sweep`, on as many of its cells as a test has time for.
    command = ["scenarios", "-m", "crash", "--sweep", "full", "-n", "2"]
    chosen = ["-k", "start-steps-2of4 or provision-steps"]
    report = tmp_path / "report.json"
    environment = {**os.environ, "PYTHONPATH": str(seed("marker after the spawn", tmp_path))}
    options = ["-p", "no:randomly", "-p", "no:cacheprovider", "--nvx-report", str(report)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *command, *chosen, *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    figures = json.loads(report.read_text())
    assert figures["crashPoints"] == figures["cellsFired"] == len(figures["crashes"]) >= 16
    assert 0 < figures["violations"] < figures["crashPoints"]
    # The line as a user pastes it shows the same.
    line = re.search(
        r"(expected .*)\n  evidence: \S+\n  replay:   (nvx-harness replay '?start/.*)$", done.stdout, re.MULTILINE
    )
    assert line is not None
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    pasted = subprocess.run(
        ["sh", "-c", line[2]], cwd=ROOT, env={**environment, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert pasted.returncode == 1, pasted.stdout + pasted.stderr
    assert line[1].partition("/")[0].partition("pid ")[0] in pasted.stdout
    assert os.path.isdir(evidence_of(done.stdout))
