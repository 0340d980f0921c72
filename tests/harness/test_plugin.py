"""The plugin through pytest's own black box: options, markers, table, report, and that it leaves others alone."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from harness import guards, python
from harness.report.build import of_scenarios
from harness.settings import Settings
from harness.sharding import Slice
from harness.table import PROPERTY, Table

pytest_plugins = ["pytester"]

SCENARIOS = """
import pytest

@pytest.mark.c6
@pytest.mark.case("T60", "T61")
@pytest.mark.spec("620.scope3.k")
@pytest.mark.parametrize("way", ["exit", "kill"])
def test_it_goes_on(way):
    pass

@pytest.mark.c3
@pytest.mark.skipif(True, reason="needs mkfs.erofs (package erofs-utils)")
def test_cold_boot():
    pass

@pytest.mark.crash
@pytest.mark.parametrize("step", ["start.spawned", "start.locked"])
def test_every_step(step):
    assert step != "start.locked", f"crash at {step}: expected one VMM, found none"

def test_no_scenario():
    pass
"""

TABLE = [
    "group  scenario    backend  result",
    "c3     cold boot   fake     skip",
    "         skip needs mkfs.erofs (package erofs-utils)",
    "c6     it goes on  fake     2 pass",
    "crash  every step  fake     1 fail, 1 pass",
    "         fail [[]start.locked[]]: crash at start.locked: expected one VMM, found none",
    "3 scenarios, 5 cells: 3 pass, 1 fail, 1 skip",
]


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_the_table_is_printed_once_and_the_report_holds_every_cell(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makepyfile(SCENARIOS)
    result = pytester.runpytest_subprocess("--nvx-report", "report.json", *workers)
    result.assert_outcomes(passed=4, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*= scenarios on fake =*", *TABLE], consecutive=True)
    assert result.stdout.str().count("3 scenarios, 5 cells") == 1
    report = json.loads((pytester.path / "report.json").read_text())
    assert (report["format"], report["backend"], report["orchestrator"]) == (1, "fake", "reference")
    cell = next(cell for cell in report["cells"] if cell["node"].endswith("test_it_goes_on[kill]"))
    assert cell["cases"] == ["T60", "T61"]
    assert cell["clauses"] == ["620.scope3.k"]
    assert cell["outcome"] == "pass"
    assert [cell["outcome"] for cell in report["cells"]].count("skip") == 1


def test_a_worker_that_dies_is_in_the_table_with_what_it_cut_short(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import os, pytest

pytestmark = pytest.mark.c3

def test_first():
    pass

@pytest.mark.parametrize("way", ["hard"])
def test_it_dies(way):
    os._exit(9)

def test_last():
    pass
"""
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-n", "1", "--max-worker-restart=0")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "c3     first     fake     pass",
            "-      it dies   fake     fail",
            "         fail [[]hard[]]: worker 'gw0' crashed while running *test_it_dies*",
            "2 scenarios, 2 cells: 1 pass, 1 fail, 0 skip",
            "the run was cut short: what isn't listed was not run",
        ],
        consecutive=True,
    )


def test_a_run_without_scenarios_says_nothing_and_makes_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other():\n    pass\n")
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*scenarios on*")


@pytest.mark.parametrize("name", ["kvm", "mshv", "whp", "qemu"])
def test_a_chosen_backend_that_cannot_run_is_refused_before_any_test(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile("def test_other():\n    open('ran', 'w').close()\n")
    result = pytester.runpytest_subprocess("--backend", name)
    assert result.ret == pytest.ExitCode.USAGE_ERROR == 4
    result.stderr.fnmatch_lines([f"ERROR: --backend {name} can't run here; missing: *"])
    assert not (pytester.path / "ran").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--backend", "xen"],
        ["--sweep", "some"],
        ["--timeout-scale", "0"],
        ["--timeout-scale", "inf"],
        ["--orchestrator", "no-such-program --flag"],
        ["--orchestrator", "'unbalanced"],
        ["--orchestrator", ""],
        ["--nvx-report", "none/report.json"],
        ["--nvx-report", "."],
        ["--nvx-report", os.devnull],
    ],
)
def test_a_wrong_option_is_a_usage_error(pytester: pytest.Pytester, options: list[str]) -> None:
    result = pytester.runpytest_subprocess(*options)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{options[0]}*"])


@pytest.mark.parametrize("option", ["--openvmm", "--artifacts"])
def test_scenarios_on_the_fake_refuse_another_vmm_and_tests_of_any_vmm_do_not(
    pytester: pytest.Pytester, option: str
) -> None:
    pytester.makepyfile(f"def test_any_vmm(pytestconfig):\n    assert pytestconfig.getoption({option!r}) == 'given'\n")
    pytester.runpytest_subprocess(option, "given").assert_outcomes(passed=1)
    scenario = "import pytest\n@pytest.mark.c3\ndef test_scenario(backend):\n    open('ran', 'w').close()\n"
    pytester.makepyfile(scenario)
    result = pytester.runpytest_subprocess(option, "given")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{option}* for real backends*"])
    parallel = pytester.runpytest_subprocess(option, "given", "-n", "1")
    parallel.assert_outcomes(errors=1)
    assert "INTERNALERROR" not in parallel.stdout.str()
    assert not (pytester.path / "ran").exists()


def test_a_factor_that_is_none_is_told_so(pytester: pytest.Pytester) -> None:
    for text in ("0", "soon", "nan"):
        result = pytester.runpytest_subprocess("--timeout-scale", text)
        result.stderr.fnmatch_lines([f"*--timeout-scale: '{text}' isn't a number over 0, and finite"])


def test_a_report_that_can_t_be_written_at_the_end_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import os\ndef test_one():\n    os.mkdir('report.json')\n")
    result = pytester.runpytest_subprocess("--nvx-report", "report.json")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["error: --nvx-report: report.json can't be written: Is a directory; *"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_every_marker_of_the_design_is_registered(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--markers")
    names = set(re.findall(r"@pytest\.mark\.(\w+)", result.stdout.str()))
    wanted = "c3 c4 c5 c6 c7 crash command_line image_swap lifecycle windows case spec"
    assert set(wanted.split()) <= names


def test_the_plugin_imports_nothing_that_a_scenario_alone_needs() -> None:
    places = [python.home("pytest"), python.home("harness")]
    body = f"""
import sys
sys.path[:0] = {places!r}
import pytest
before = set(sys.modules)
import harness.plugin
print(*sorted(set(sys.modules) - before))
"""
    command = [python.interpreter(), "-I", "-c", body]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    light = (
        "collector",
        "errors",
        "guards",
        "guests",
        "live",
        "parallel",
        "platform",
        "platform.linux",
        "plugin",
        "settings",
        "sharding",
        "stories",
        "table",
    )
    assert found == ["harness", *(f"harness.{name}" for name in light)]


def test_figures_stand_under_their_scenario_and_in_the_report() -> None:
    table = Table()
    cell: dict[str, object] = {
        "node": "x.py::test_y",
        "scenario": "y",
        "groups": ["c4"],
        "backend": "fake",
        "cases": [],
        "clauses": [],
        "figures": {"bytes read": 7, "never": "text"},
    }
    table.take([(PROPERTY, cell)], "passed", "")
    assert [line.strip() for line in table.lines()[2:3]] == ["bytes read 7"]
    report = of_scenarios(table, Settings(), Slice())
    assert report.cells[0].figures == {"bytes read": 7}


ONE = """
import threading, pytest
pytestmark = pytest.mark.lifecycle

@pytest.mark.skipif(SKIP, reason="not here")
def test_it():
    WHAT

@pytest.mark.skip(reason="nowhere")
def test_other():
    pass
"""


def one(pytester: pytest.Pytester, *, skip: bool = False, what: str = "pass") -> None:
    pytester.makepyfile(ONE.replace("SKIP", str(skip)).replace("WHAT", what))


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_run_that_skips_everything_is_an_error_that_says_so(pytester: pytest.Pytester, workers: list[str]) -> None:
    one(pytester, skip=True)
    result = pytester.runpytest_subprocess("--nvx-report", "report.json", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["error: every test was skipped, so nothing was judged; the table says why"])
    assert [cell["outcome"] for cell in json.loads((pytester.path / "report.json").read_text())["cells"]] == [
        "skip"
    ] * 2


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["-k", "absent"], pytest.ExitCode.NO_TESTS_COLLECTED),
        (["-k", "other"], pytest.ExitCode.TESTS_FAILED),
        (["--collect-only"], pytest.ExitCode.OK),
        (["--shard", "1/2"], pytest.ExitCode.OK),
        (["--shard", "2/2"], pytest.ExitCode.OK),
        ([], pytest.ExitCode.OK),
    ],
)
def test_only_a_whole_run_in_which_nothing_was_judged_is_one(
    pytester: pytest.Pytester, options: list[str], status: int
) -> None:
    one(pytester)
    assert pytester.runpytest_subprocess(*options).ret == status


BESIDE = """
def test_beside():
    pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], ""),
        (["--backend", "fake"], "error: every scenario on fake was skipped, so nothing was judged; the table says why"),
    ],
)
def test_other_tests_beside_say_nothing_of_what_was_asked_for_by_name(
    pytester: pytest.Pytester, options: list[str], error: str, workers: list[str]
) -> None:
    pytester.makepyfile(ONE.replace("SKIP", "True").replace("WHAT", "pass"), test_beside=BESIDE)
    result = pytester.runpytest_subprocess(*options, *workers)
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if error else pytest.ExitCode.OK)
    assert [line for line in result.stdout.lines if line.startswith("error: ")] == [error] * bool(error)


def test_a_part_of_a_run_that_was_skipped_says_so(pytester: pytest.Pytester) -> None:
    one(pytester, skip=True)
    parts = [pytester.runpytest_subprocess("--shard", f"{number}/2", "--backend", "fake") for number in (1, 2)]
    assert [part.ret for part in parts] == [pytest.ExitCode.OK] * 2
    text = "note: every scenario of this part was skipped: it has judged nothing"
    told = [part.stdout.lines.count(text) for part in parts]
    assert told == [("scenarios on fake" in part.stdout.str()) for part in parts]
    assert any(told)


def test_a_test_that_is_expected_to_fail_was_judged(pytester: pytest.Pytester) -> None:
    one(pytester, what="pytest.xfail('known')")
    assert pytester.runpytest_subprocess().ret == pytest.ExitCode.OK


@pytest.mark.parametrize(("scale", "dumps"), [("1", True), ("30", False)])
def test_stacks_are_dumped_later_where_a_test_is_given_longer(
    pytester: pytest.Pytester, scale: str, *, dumps: bool
) -> None:
    one(pytester, what="threading.Event().wait(3)")
    result = pytester.runpytest_subprocess("-o", "faulthandler_timeout=2", "--timeout-scale", scale)
    result.assert_outcomes(passed=1, skipped=1)
    assert ("Timeout (0:00:02)!" in result.stderr.str()) == dumps


@pytest.mark.parametrize(("scale", "passed"), [("0.1", 0), ("30", 1)])
def test_the_limit_of_a_whole_test_is_stretched_and_never_cut(
    pytester: pytest.Pytester, scale: str, passed: int
) -> None:
    one(pytester, what="threading.Event().wait(1.5)")
    result = pytester.runpytest_subprocess("-o", "timeout=1", "--timeout-scale", scale)
    result.assert_outcomes(passed=passed, failed=1 - passed, skipped=1)


def test_a_test_of_real_guests_is_given_longer() -> None:
    assert [guards.patience(slow=slow, scale=2.0) for slow in (False, True)] == [2.0, 15.0]


def test_steps_are_shown_as_they_happen_with_the_worker_and_the_test(pytester: pytest.Pytester) -> None:
    steps = """
    from harness.sandbox import RAMFS, Sandbox
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    box.succeed(program, "deprovision")
"""
    pytester.makepyfile(ONE.replace("SKIP", "False").replace("test_it()", "test_it(world)").replace("    WHAT", steps))
    result = pytester.runpytest_subprocess("-v", "-n", "1", "--junitxml", "junit.xml", "-p", "no:randomly")
    result.assert_outcomes(passed=1, skipped=1)
    shown = [
        "    gw0 test_it: harness: asks for provision",
        "    gw0 test_it: orchestrator *: provision.directory#1",
        "    gw0 test_it: orchestrator *: removal.directory#1",
        "*gw0* PASSED *test_it*",
    ]
    result.stdout.fnmatch_lines(shown)
    assert 'tests="2"' in (pytester.path / "junit.xml").read_text()
    quiet = pytester.runpytest_subprocess("-n", "1", "-p", "no:randomly")
    assert "provision.directory" not in quiet.stdout.str()


INTERRUPTED = """
import pathlib, signal, pytest

pytestmark = pytest.mark.c3

def test_first(world):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

def test_second(world):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        pathlib.Path("tidied").touch()
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_one_that_insists_cuts_no_test_s_own_tidying_short(pytester: pytest.Pytester, workers: list[str]) -> None:
    pytester.makepyfile(INTERRUPTED)
    result = pytester.runpytest_subprocess("-p", "no:randomly", *workers)
    assert (result.ret, result.stderr.str()) == (pytest.ExitCode.INTERRUPTED, "")
    assert (pytester.path / "tidied").exists()
    result.stdout.fnmatch_lines(["c3 *first *fake *pass", "the run was cut short: what isn't listed was not run"])
