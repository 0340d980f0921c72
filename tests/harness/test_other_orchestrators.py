"""What the author of another orchestrator is told: what is wrong, with which request, and what to do about it."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from harness import python
from harness.platform import short_root
from harness.settings import RUNS
from tests.harness.seeded import ROOT

pytest_plugins = ["pytester"]

SPEAKS = """
import json, os, sys

def say(**message):
    print(json.dumps(message), flush=True)

say(hello={"protocol": 1, "operations": ["provision", "start", "status", "reattach"], "steps": ["start.spawned"],
           "needs": ["scratch"], "ways": ["exit"]})
for line in sys.stdin:
    request = json.loads(line)
    BODY
    if "exit" in request:
        say(id=request["id"], step="start.spawned", hit=1)
        os._exit(77)
    say(id=request["id"], ok=True, result={})
"""
SCENARIO = "scenarios/test_interrupted_launch.py"
CELL = f"{SCENARIO}::test_a_spawned_vmm_without_an_endpoint_is_left_alone_until_it_exits[exit]"


def speaking(tmp_path: Path, body: str = "pass") -> list[str]:
    return python.write_script(
        str(tmp_path / "speaks.py"), packages=(), body=SPEAKS.replace("BODY", body.replace("\n", "\n    "))
    )


def judged(pytester: pytest.Pytester, command: str, *selection: str) -> pytest.RunResult:
    """Run scenarios of the repository on another orchestrator."""
    files = [str(ROOT / word) if word.startswith("scenarios/") else word for word in selection]
    options = [
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    pytester.makeconftest("")
    return pytester.runpytest_subprocess(*files, *options, "--orchestrator", command)


def test_a_file_that_is_no_program_is_told_from_one_that_is_not_there(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("pass\n")
    (tmp_path / "mine.py").chmod(0o600)
    told = {
        python.as_text([str(tmp_path / "mine.py")]): "mine.py isn't executable; name what runs it before it*",
        python.as_text([str(tmp_path)]): "is a directory; name the program in it",
        "nowhere": "no program 'nowhere' to start",
    }
    if os.name == "nt":
        # A file is a program there by its name alone, and a directory isn't told from what is missing.
        told = {"nowhere": told["nowhere"]}
    for command, text in told.items():
        result = judged(pytester, command, SCENARIO)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --orchestrator: *{text}"])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "import sys\nsys.stderr.write('waits for its database\\n')\nsys.stderr.flush()\nsys.stdin.read()",
            "hello: expected an answer of the orchestrator within 6 s, found nothing; its last words: waits for *; *",
        ),
        (
            "print('version 1', flush=True)\nimport sys\nsys.stdin.read()",
            "hello: the orchestrator said b'version 1', *",
        ),
    ],
    ids=["silence", "words"],
)
def test_one_that_never_says_hello_is_told_what_that_takes(
    pytester: pytest.Pytester, tmp_path: Path, body: str, told: str
) -> None:
    command = python.as_text(python.write_script(str(tmp_path / "mute.py"), packages=(), body=body))
    scale = "0.4" if told.startswith("hello: expected") else "4"
    result = judged(pytester, command, SCENARIO, "--timeout-scale", scale)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --orchestrator {command}: {told}"])
    asked = "; it says hello without being asked, and flushes each line" in result.stderr.str()
    assert asked == told.startswith("hello: expected")


def test_a_script_that_is_not_there_is_named_as_it_was_typed(pytester: pytest.Pytester) -> None:
    command = python.as_text([python.interpreter(), "typo.py"])
    result = judged(pytester, command, SCENARIO)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --orchestrator *ended with 2; its last words: *; there is no file typo.py here"]
    )


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_what_a_hello_declares_and_nobody_knows_is_noted_once(
    pytester: pytest.Pytester, tmp_path: Path, workers: list[str]
) -> None:
    words = speaking(tmp_path)
    script = tmp_path / "speaks.py"
    script.write_text(script.read_text().replace('"reattach"]', '"reatach"]').replace('["scratch"]', '["scratsh"]'))
    result = judged(pytester, python.as_text(words), CELL, *workers)
    result.assert_outcomes(skipped=1)
    noted = [line for line in result.stdout.lines if line.startswith("note: ")]
    assert noted == ["note: the hello declares what this harness doesn't know: operation reatach, need scratsh"]
    result.stdout.fnmatch_lines(
        ["error: every scenario on fake was skipped, *says why, and docs/protocol.md what a hello may declare"]
    )


@pytest.mark.skipif(os.name == "nt", reason="pipes have no identity there")
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_command_that_starts_the_program_instead_of_becoming_it_is_noted(
    pytester: pytest.Pytester, tmp_path: Path, *, wrapped: bool
) -> None:
    words = speaking(tmp_path)
    body = "import subprocess\nsys.exit(subprocess.call(WORDS))" if wrapped else "import os\nos.execv(WORDS[0], WORDS)"
    wrapper = python.write_script(str(tmp_path / "wrapper.py"), packages=(), body=f"WORDS = {words}\n{body}")
    result = judged(pytester, python.as_text(wrapper), CELL)
    noted = [line for line in result.stdout.lines if line.startswith("note: ")]
    assert len(noted) == wrapped
    assert not wrapped or re.match(
        r"note: pid \d+ \(\S*python\S* -I .*, which the command started, holds its st", noted[0]
    )


def test_one_that_ends_is_told_once_however_many_would_have_asked_it(pytester: pytest.Pytester, tmp_path: Path) -> None:
    body = "with open(__file__ + '.count', 'a') as file:\n    file.write('x')\nsys.exit('no database')"
    command = python.as_text(python.write_script(str(tmp_path / "ends.py"), packages=(), body=body))
    result = judged(pytester, command, SCENARIO, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --orchestrator *: hello: *ended with 1; its last words: no database"])
    assert (tmp_path / "ends.py.count").read_text() == "x"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("request['id'] += 4", "provision: the orchestrator answered another request: {*}, where the id is 1"),
        ("print('debug', flush=True)", "provision: the orchestrator said b'debug', which isn't a message *"),
        (
            "say(id=request['id'], ok=False, code='ALREADY_EXISTS', message='x')\ncontinue",
            "provision of box: expected success, found ALREADY_EXISTS (no code of protocol 1; *est: AlreadyExists): x",
        ),
        ("pass", "fake pause before_bind: expected a fake that waits there, found that no VMM was started"),
    ],
    ids=["another id", "words", "another code", "no VMM"],
)
def test_a_fault_in_an_operation_is_told_with_it_and_with_no_line_of_the_harness(
    pytester: pytest.Pytester, tmp_path: Path, body: str, told: str
) -> None:
    result = judged(pytester, python.as_text(speaking(tmp_path, body)), CELL)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E   harness.*: {told}", "evidence: *", "replay: *"])
    assert not re.search(r"harness.(sut|sandbox|channel)\S*\.py:\d+: in ", result.stdout.str())


MINIMAL = (ROOT / "docs" / "examples" / "minimal.py").read_text()


def minimal(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Return the command of the documentation's example, changed."""
    text = MINIMAL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine.py").write_text(text)
    return python.as_text([python.interpreter(), str(tmp_path / "mine.py")])


linux = pytest.mark.skipif(os.name == "nt", reason="the example asks /proc")


@linux
def test_a_start_that_answers_too_early_is_told_so(pytester: pytest.Pytester, tmp_path: Path) -> None:
    # A VMM that is slower than whoever looks, however busy the machine is.
    slow = ('[*wanted["openvmm"], ', '[sys.executable, "-c", "import signal; signal.pause()", *wanted["openvmm"], ')
    command = minimal(tmp_path, ('step("start.spawned")', "pass"), slow)
    result = judged(pytester, command, "scenarios/test_cold_boot.py", "-k", "what_the_plan_says and erofs-ramfs")
    result.assert_outcomes(failed=1, deselected=15)
    result.stdout.fnmatch_lines(
        ["E *expected exactly one VMM started so far, found none that has begun to boot, and `s*"]
    )


@linux
def test_what_is_refused_after_a_crash_is_told_with_the_crash(pytester: pytest.Pytester, tmp_path: Path) -> None:
    command = minimal(
        tmp_path,
        ('return {"verdict": "stopped"}', 'return {"verdict": "indeterminate"}'),
        (
            "    require_stopped(box, args)\n    wanted",
            "    if (box / 'vm.log').exists():\n        raise Failure('Busy', 'wait')\n    wanted",
        ),
    )
    result = judged(pytester, command, CELL)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *: start of box after the crash start/exit/start.spawned#1: expected Indeterminate*"]
    )


@linux
def test_a_skip_in_the_midst_of_a_scenario_has_its_reason_alone_and_leaves_nothing(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="nv", dir=short_root()) as runs:
        monkeypatch.setenv(RUNS, runs)
        files = [f"scenarios/test_{name}.py" for name in ("terminals", "killed_in_the_spawn")]
        result = judged(pytester, minimal(tmp_path), *files)
        result.assert_outcomes(skipped=7)
        result.stdout.no_fnmatch_line("*left behind*")
        assert os.listdir(runs) == []


@linux
def test_a_copy_of_a_sandbox_leaves_out_what_is_no_file(pytester: pytest.Pytester, tmp_path: Path) -> None:
    command = minimal(tmp_path, ("{box}/vm.sock", "{box}/endpoint"))
    result = judged(pytester, command, "scenarios/test_field_reports.py", "-k", "copy_of_a_sandbox")
    result.assert_outcomes(failed=2, skipped=1, deselected=4)
    result.stdout.fnmatch_lines(["*the copy, status: expected indeterminate, found *"])
    result.stdout.no_fnmatch_line("*shutil.Error*")
