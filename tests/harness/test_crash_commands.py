"""`nvx-harness replay` and `nvx-harness sweep`: the line that a failure prints works, and a sweep needs no pytest."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import python
from harness.progress import Line, clock, stages
from harness.sharding import Shard
from tests.harness.seeded import faulty

ROOT = Path(__file__).resolve().parents[2]
SPAWNED = "start/exit/start.spawned#1"
PARTS = 100
"""So many that a part of a scene's cells is one cell."""


def nvx_harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", [[], ["--started"]], ids=["forked", "started"])
def test_a_replay_of_a_cell_says_that_it_is_all_right(options: list[str]) -> None:
    done = nvx_harness("replay", *options, SPAWNED)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{SPAWNED}: ok\n", "")


@pytest.mark.parametrize(
    "cell",
    [
        "start/kill/start.marker_written#1",
        "provision/audit-exit/rename:.config.json.ID.tmp,config.json#1",
        "start/audit-kill/rename:.runtime.json.ID.tmp,runtime.json#1",
        "start/syscall-kill/renameat:.launch.json.ID.tmp,launch.json#2",
        "stop/syscall-EIO/unlinkat:runtime.json#1",
        "start/syscall-EINTR/openat:openvmm.log#1",
        "start/syscall-EROFS+/fsync:.launch.json.ID.tmp#1",
        "recover/pair/recover.verified#1,recover.probed#1",
    ],
)
def test_a_cell_of_each_way_is_replayed_from_its_name(cell: str) -> None:
    if "/syscall-" in cell and shutil.which("strace") is None:
        pytest.skip("needs strace (package strace)")
    done = nvx_harness("replay", cell)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{cell}: ok\n", "")


def test_a_replay_of_a_cell_that_fails_says_why_and_keeps_the_evidence() -> None:
    cell = "provision/exit/provision.locked#2"
    done = nvx_harness("replay", cell)
    assert done.returncode == 1
    found = re.fullmatch(r"provision crashed at provision.locked#2: .*\n  evidence: (\S+)\n", done.stdout)
    assert found is not None
    assert os.path.isfile(os.path.join(found[1], "transcript-0.txt"))
    shutil.rmtree(os.path.dirname(os.path.dirname(found[1])))


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (
            ["replay", "nonsense"],
            "error: 'nonsense' is no crash cell: they are called operation/way/call:argument#k",
            1,
        ),
        (["replay", "strat/exit/start.spawned#1"], "error: no scene is called 'strat': there are provision, ", 1),
        (["replay", "--goldens", "/nowhere", SPAWNED], "error: no allowed_states.json in /nowhere: name its dir", 1),
        (["replay", "--backend", "kvm", SPAWNED], "error: --backend kvm can't run here; missing: ", 1),
        (["replay", "--backend", "kvm", "--artifacts", "/none", SPAWNED], "missing: the directory /none; ", 1),
        (["sweep", "--openvmm", "mine"], "error: --artifacts and --openvmm are for real backends: the fake brings", 1),
        (["sweep", "--scene", "strat"], "error: no scene is called 'strat': there are provision, ", 1),
        (["sweep", "--group", "all"], "'all' is none of steps, events, calls, errors, pairs", 2),
        (["sweep", "--timeout-scale", "0"], "'--timeout-scale': '0' isn't a number over 0, and finite", 2),
        (["replay", "--timeout-scale", "nan", SPAWNED], "'--timeout-scale': 'nan' isn't a number over 0", 2),
        (["sweep", "--timeout-scale", "inf"], "'--timeout-scale': 'inf' isn't a number over 0", 2),
        (["replay", "--orchestrator", "", SPAWNED], "error: --orchestrator: no program '' to start", 1),
        (["sweep", "--backend", "kvm", "--openvmm", ""], "error: --openvmm: it is empty", 1),
        (
            ["sweep", "--report", "/nowhere/report.json"],
            "error: --report: /nowhere/report.json: there is no directory /nowhere; make it, or name another place",
            1,
        ),
        (["sweep", "--orchestrator", "nowhere"], "error: --orchestrator: no program 'nowhere' to start", 1),
        (["replay", "--orchestrator", "nowhere", SPAWNED], "error: --orchestrator: no program 'nowhere' to start", 1),
        (["replay", "--orchestrator", "'", SPAWNED], "error: --orchestrator: No closing quotation", 1),
        (["mutants", "--only", "m999"], "no seeded fault is called 'm999': ci/mutants has them", 2),
        (["sweep", "--shard", "3/2"], "error: --shard: '3/2' is no shard: write I/N, the I-th of N parts", 1),
        (["report", "x.json"], "Missing option '-o'", 2),
        (["report", "x.json", "-o", "x.txt"], "error: --output: x.txt: call it something.html or something.json", 1),
        (["report", "/nowhere.json", "-o", "x.html"], "error: /nowhere.json: can't be read: No such file", 1),
    ],
)
def test_what_can_not_be_done_is_named(arguments: list[str], said: str, status: int) -> None:
    done = nvx_harness(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


def test_a_sweep_that_judges_nothing_is_an_error(tmp_path: Path) -> None:
    hello = '{"hello": {"protocol": 1, "operations": ["provision", "start"], "steps": ["start.spawned"]}}'
    body = f"print({hello!r}, flush=True)\nsys.stdin.read()"
    command = python.as_text(python.write_script(str(tmp_path / "little.py"), packages=(), body=body))
    done = nvx_harness("sweep", "--scene", "start", "--group", "steps", "-j", "1", "--orchestrator", command)
    assert done.returncode == 1
    assert done.stdout.startswith("skipped: needs ")
    assert done.stderr == "error: every cell was skipped, so nothing was judged\n"


def test_a_replay_without_evidence_names_none() -> None:
    done = nvx_harness("replay", "start/syscall-kill/openat:nothing#1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "found no such call" in done.stdout
    assert "evidence" not in done.stdout


def test_a_page_that_can_not_be_written_names_the_option(tmp_path: Path) -> None:
    report, page = tmp_path / "1.json", tmp_path / "none" / "page.html"
    assert nvx_harness("sweep", "--scene", "deprovision", "--group", "steps", "--report", str(report)).returncode == 0
    done = nvx_harness("report", str(report), "-o", str(page))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"error: --output: {page}: there is no directory {page.parent}; make it, or name another place" in done.stderr
    )


def test_a_sweep_counts_runs_and_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    chosen = ["--scene", "provision", "--scene", "recover-ended", "--group", "steps", "--group", "pairs"]
    done = nvx_harness("sweep", *chosen, "-j", "2", "--report", str(report))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "14 crash points, 14 of them fired, 16 processes started: 0 violations\n"
    figures = json.loads(report.read_text())
    counts = {name: figures[name] for name in ("crashPoints", "violations", "cellsFired", "processesStarted")}
    assert counts == {"crashPoints": 14, "violations": 0, "cellsFired": 14, "processesStarted": 16}
    assert {one["outcome"] for one in figures["crashes"]} == {"pass"}
    assert {one["verdict"] for one in figures["crashes"]} == {"NotFound", "stopped"}


def test_a_faulty_orchestrator_ends_red_with_a_line_for_each_cell(tmp_path: Path) -> None:
    command = faulty("marker after the spawn", tmp_path)
    options = ["--orchestrator", command]
    report = tmp_path / "report.json"
    part = next(f"{index}/{PARTS}" for index in range(1, PARTS + 1) if Shard(index, PARTS).has(SPAWNED))
    chosen = ["--scene", "start", "--group", "steps", "--shard", part, "--report", str(report)]
    done = nvx_harness("sweep", *chosen, *options, "-j", "1")
    replayed = nvx_harness("replay", *options, SPAWNED)
    evidence = re.search(r"evidence: (/\S+/nvx-\w+)/", replayed.stdout)
    assert evidence is not None
    shutil.rmtree(evidence[1])
    assert (done.returncode, replayed.returncode) == (1, 1)
    assert re.match(r"1 of 1 crash cells failed, the first: \S+, then a look: expected a record .*\n\n", done.stdout)
    assert [one["outcome"] for one in json.loads(report.read_text())["crashes"]] == ["fail"]
    assert "expected a record of the VMM that is alive, found pid " in replayed.stdout


def test_a_terminal_sees_a_bar_with_counts_and_the_time_left() -> None:
    pexpect = pytest.importorskip("pexpect")
    words = ["-m", "harness", "sweep", "--scene", "provision", "--group", "steps", "-j", "2"]
    child = pexpect.spawn(sys.executable, words, cwd=str(ROOT), encoding="utf-8", timeout=60, dimensions=(24, 120))
    child.expect(r"quick sweep .*8/8.*\d:\d\d:\d\d.*left")
    child.expect("8 crash points, 8 of them fired, 8 processes started: 0 violations")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


STAGES = """
from harness.progress import stages
with stages("setup") as say:
    for line in ("1/3 fetching", "2/3 compiling", "3/3 images", "there: ready"):
        say(line)
        input()
"""


def test_a_set_up_shows_its_stages_on_a_terminal() -> None:
    pexpect = pytest.importorskip("pexpect")
    child = pexpect.spawn(sys.executable, ["-c", STAGES], cwd=str(ROOT), encoding="utf-8", timeout=60)
    child.setwinsize(24, 120)
    for shown in ("setup: fetching.*0/3.*left", "setup: compiling.*1/3", "setup: images.*2/3", "there: ready"):
        child.expect(shown)
        child.sendline()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_where_there_is_no_terminal_a_set_up_says_its_result_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with stages("setup") as say:
        for line in ("1/2 fetching", "2/2 images", "there: ready"):
            say(line)
    assert capsys.readouterr() == ("there: ready\n", "")


def test_a_run_of_pytest_shows_one_line_that_is_written_over() -> None:
    line = Line(4)
    assert line.take(10, 0).startswith("crash cells: 10; part 1 of 4, 0:00, about 0:00 left")
    assert line.take(5, 2).startswith("crash cells: 15, 2 failed; part 2 of 4, ")
    assert clock(125.9) == "2:05"


@pytest.mark.parametrize("command", [["sweep", "--scene", "deprovision", "--group", "steps"], ["replay", SPAWNED]])
@pytest.mark.parametrize(("golden", "said"), [("x", "Expecting value"), ("[]", "says nothing of provision, start, ")])
def test_a_golden_that_would_allow_anything_is_refused(
    tmp_path: Path, command: list[str], golden: str, said: str
) -> None:
    (tmp_path / "allowed_states.json").write_text(golden)
    done = nvx_harness(*command, "--goldens", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path}/allowed_states.json: {said}")
    assert done.stderr.count("\n") == 1


def test_what_is_no_report_is_not_read_for_ever() -> None:
    done = nvx_harness("report", "/dev/zero", "-o", "x.html")
    assert (done.returncode, done.stderr) == (1, "error: /dev/zero: isn't a report: it is over 256 MiB long\n")
