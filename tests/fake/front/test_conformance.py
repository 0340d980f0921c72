"""What any OpenVMM-compatible program lets be seen without booting: run it with `--openvmm CMD`.

Every command line of the rule tables that is refused is given to the program; the status, the report and what is left
behind are compared with the contract. Differences are listed together, so that the day a real binary is at hand its
list says where this stand-in, or the contract, is wrong. Without the option a sample runs on the bundled stand-in.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.fake.front.test_rules import ROWS
from tests.support.openvmm_rows import Row
from tests.support.openvmm_stand import ROOT, Outcome, Stand, made

SAMPLE = 40
SECONDS = 60


class Program(Stand):
    """A state directory in which another program than the launcher's is started."""

    def use(self, command: list[str]) -> None:
        self.chosen = command

    def command(self, side: object = None) -> list[str]:
        assert side is None
        return self.chosen


def command_of(pytestconfig: pytest.Config) -> list[str]:
    given = pytestconfig.getoption("--openvmm", default=None)
    bundled = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from fake_openvmm import main; main()"
    return shlex.split(given) if given else [sys.executable, "-I", "-c", bundled]


def difference(row: Row, stand: Program) -> str | None:
    """Run one row; say what differs from the contract."""
    if row.prepare:
        row.prepare(stand)
    stale = (stand.path / "outcome.json").exists()
    process = stand.start(stand.argv(row.changes))
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        stand.finish()
        return f"still running after {SECONDS} s, status {row.status} expected"
    outcome: Outcome = stand.finish()
    if outcome.status != row.status:
        return f"status {outcome.status}, {row.status} expected: {outcome.log.strip().splitlines()[-1:]}"
    if not stale and (outcome.category == "vmm-failure") != row.report:
        return f"report {outcome.report}, {'one' if row.report else 'none'} expected"
    return "the socket is left behind" if outcome.socket_left else None


@pytest.fixture
def program(pytestconfig: pytest.Config) -> Iterator[Callable[[], Program]]:
    made_programs: list[Iterator[Stand]] = []

    def fresh() -> Program:
        made_programs.append(made(kind=Program))
        stand = next(made_programs[-1])
        assert isinstance(stand, Program)
        stand.use(command_of(pytestconfig))
        return stand

    yield fresh
    for generator in made_programs:
        generator.close()


@pytest.mark.timeout(3600)
def test_refusals_are_those_of_the_contract(program: Callable[[], Program], pytestconfig: pytest.Config) -> None:
    refusals = [row for row in ROWS if row.status]
    rows = refusals if pytestconfig.getoption("--openvmm", default=None) else refusals[::SAMPLE]
    found = {f"{row.rule} [{row.changes[:100]}]": difference(row, program()) for row in rows}
    differences = [f"{name}: {text}" for name, text in found.items() if text]
    assert not differences, f"{len(differences)} of {len(rows)} differ:\n" + "\n".join(differences)


def test_a_difference_is_found(program: Callable[[], Program]) -> None:
    stand = program()
    stand.use([sys.executable, "-c", "raise SystemExit(3)"])
    assert difference(Row("any", "", 2, report=False), stand) == "status 3, 2 expected: []"
