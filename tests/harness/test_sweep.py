"""The sweep at the end of a scenario, by scenarios that leave things behind on purpose (T61), and its failure text."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from harness.goldens import Goldens
from harness.witness import host
from tests.harness.stubs import SOON, unmount_runs

pytest_plugins = ["pytester"]

HEAD = """
import os, socket, subprocess, pytest
from harness import python

pytestmark = pytest.mark.lifecycle

SLEEP = "import signal; signal.alarm(60); signal.pause()"

def run(code, *arguments):
    return [python.interpreter(), "-I", "-c", code, *arguments]
"""

LEAVES = {
    "a VMM": """
    out = os.posix_spawn(python.interpreter(), run(SLEEP, world.vmm.needle), {}, setsid=True)
    """,
    "an orphan": """
    subprocess.run(run("import os\\nif os.fork() == 0:\\n    " + SLEEP), check=True)
    """,
    "a process with the token": """
    os.posix_spawn(python.interpreter(), run(SLEEP, "x" + world.token), {}, setsid=True)
    """,
    "a file": """
    open(os.path.join(world.root, "stray"), "w").close()
    """,
    "a temporary file": """
    subprocess.run(run("import tempfile\\ntempfile.mkstemp()"), check=True, env=world.environment())
    """,
    "a runtime record": """
    os.mkdir(world.sandbox("box"))
    open(os.path.join(world.sandbox("box"), "runtime.json"), "w").close()
    """,
    "a socket": """
    world.kept = socket.socket(socket.AF_UNIX)
    os.mkdir(world.sandbox("box"))
    world.kept.bind(os.path.join(world.sandbox("box"), "s.sock"))
    """,
    "a mount": """
    subprocess.run(["mount", "-t", "tmpfs", "none", world.state], check=True)
    """,
}

FOUND = {
    "a VMM": r"process pid \d+ \(adopted, launcher\): ",
    "an orphan": r"process pid \d+ \(adopted\): ",
    "a process with the token": r"process pid \d+ \(adopted, bears the token\): ",
    "a file": r"file /\S+/nvx-\w+/[\d.]+/stray",
    "a temporary file": r"file /\S+/nvx-\w+/[\d.]+/tmp/tmp\w+",
    "a runtime record": r"file /\S+/nvx-\w+/[\d.]+/s/box/runtime\.json \(-rw-r--r--\)",
    "a socket": r"socket /\S+/nvx-\w+/[\d.]+/s/box/s\.sock",
    "a mount": r"mount /\S+/nvx-\w+/[\d.]+/s",
}


def can_mount() -> bool:
    return os.geteuid() == 0 and os.access("/bin/mount", os.X_OK)


@pytest.mark.case("T61")
@pytest.mark.parametrize("what", LEAVES)
def test_what_a_scenario_leaves_behind_fails_it(pytester: pytest.Pytester, what: str) -> None:
    if what == "a mount" and not can_mount():
        pytest.skip("mounting needs root")
    body = LEAVES[what]
    pytester.makepyfile(f"{HEAD}\ndef test_it(world):{body}")
    result = pytester.runpytest_subprocess("-p", "no:randomly", "--timeout-scale", "0.2")
    text = result.stdout.str()
    try:
        result.assert_outcomes(failed=1)
        assert "the test left behind:" in text
        assert re.search(FOUND[what], text)
    finally:
        unmount_runs()
    evidence = re.search(r"evidence: (\S+)", text)
    assert evidence is not None
    clean_up(evidence[1])


def clean_up(evidence: str) -> None:
    session = Path(evidence).parents[1]
    assert re.fullmatch(r"/\S+/nvx-[0-9a-f]{8}", str(session))
    shutil.rmtree(session)


def test_a_survivor_is_explained_and_ended(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"{HEAD}\ndef test_it(world):{LEAVES['a VMM']}\n    print('left', out)")
    text = pytester.runpytest_subprocess("-p", "no:randomly", "--timeout-scale", "0.2").stdout.str()
    left = re.search(r"left (\d+)", text)
    evidence = re.search(r"evidence: (\S+)", text)
    assert left is not None
    assert evidence is not None
    pin = host().pin(int(left[1]))
    assert pin is None or pin.wait(SOON(60))
    explained = Path(evidence[1], "survivors", f"{left[1]}.txt").read_text()
    assert re.search(r"stat Stat\(.*state='[DRS]'.*\nwchan: ", explained)
    assert "descriptor 0 " in explained
    clean_up(evidence[1])


def test_a_failure_of_the_test_itself_comes_first_and_the_leftovers_are_noted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"{HEAD}\ndef test_it(world):{LEAVES['a file']}\n    assert 1 == 2, 'the verdict'")
    result = pytester.runpytest_subprocess("-p", "no:randomly", "--timeout-scale", "0.2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * AssertionError: the verdict", "E * the test left behind:", "E *file */stray"])
    evidence = re.search(r"evidence: (\S+)", result.stdout.str())
    assert evidence is not None
    clean_up(evidence[1])


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_clean_run_leaves_no_file(pytester: pytest.Pytester, workers: list[str]) -> None:
    pytester.makepyfile(
        f"""{HEAD}
@pytest.mark.parametrize("n", range(4))
def test_it(world, n):
    os.mkdir(world.sandbox("box"))
    print("root", world.root)
    world.evidence.keep("figures.txt", "of a test that passes")
"""
    )
    result = pytester.runpytest_subprocess("-rP", *workers)
    result.assert_outcomes(passed=4)
    roots = set(re.findall(r"root (\S+)", result.stdout.str()))
    assert len(roots) == 4
    assert not any(os.path.exists(root) or os.path.exists(os.path.dirname(root)) for root in roots)


@pytest.mark.case("T63")
def test_the_failure_text_names_evidence_and_replay(pytester: pytest.Pytester, goldens: Goldens) -> None:
    """T63: step, expected and found, where the evidence is, and one line that runs it again."""
    pytester.makepyfile(
        test_crashes="""
import pytest
from harness.errors import Finding

@pytest.mark.crash
@pytest.mark.parametrize("cell", ["start.spawned-kill"])
def test_interrupted_launch(world, cell):
    raise Finding("start.spawned#1 by kill, then reattach", expected="exited", found="indeterminate (claim held)")
"""
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "--tb=short")
    text = result.stdout.str()
    evidence = re.search(r"evidence: (\S+)", text)
    assert evidence is not None
    goldens.name(evidence[1], "<EVIDENCE>")
    start = text.index("=" * 10, text.index("FAILURES"))
    end = text.index("short test summary")
    kept = [line.rstrip("=").rstrip() for line in text[start:end].splitlines()[1:]]
    goldens.check("harness/failure.txt", kept)
    clean_up(evidence[1])


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_failure_whose_evidence_finds_no_room_is_told_with_what_became_of_its_vmm(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    """As on a full disk: a fault of the harness in the midst of its sweep would leave the VMM running."""
    pytester.makepyfile(
        f"""{HEAD}
def test_it(world):
    open(os.path.join(os.path.dirname(world.root), "evidence"), "w").close()
    {LEAVES["a VMM"].strip()}
    print("left", out)
    assert 1 == 2, "the verdict"
"""
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "--timeout-scale", "0.2", *workers)
    result.assert_outcomes(failed=1)
    text = result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in text
    result.stdout.fnmatch_lines(
        ["E * AssertionError: the verdict", "E *process pid *", "evidence: *", "          not whole: *", "replay: *"]
    )
    left = re.search(r"left (\d+)", text)
    assert left is not None
    pin = host().pin(int(left[1]))
    assert pin is None or pin.wait(SOON(60))
