"""An orchestrator crashes anywhere; whatever it leaves, the next one explains it, and the sandbox lives on.

Three independent ways lead to a crash: the orchestrator's own steps, what Python reports of its writes and locks, and
its system calls, killed or failed one by one. Each cell starts from an empty directory and ends with a sandbox that was
started, stopped and removed once more; `goldens/allowed_states.json` says what may be found in between.
"""

from __future__ import annotations

from functools import partial

import pytest

from harness.backends.contract import SWEEP, Backend
from harness.crash.cells import parse
from harness.crash.plan import Part, parts
from harness.crash.sweep import Sweep, Tally
from harness.errors import Unavailable

pytestmark = [pytest.mark.spec("620.acc.3", "620.scope2.a", "620.scope2.b", "620.scope2.e"), pytest.mark.timeout(900)]

STARTED = (
    "provision/exit/provision.directory#1",
    "start/kill/start.marker_written#1",
    "start/exit/start.spawned#1",
    "start/audit-kill/rename:.runtime.json.ID.tmp,runtime.json#1",
    "start/syscall-kill/renameat:.launch.json.ID.tmp,launch.json#2",
    "stop/syscall-EIO/unlinkat:runtime.json#1",
    "recover/pair/recover.verified#1,recover.probed#1",
    "deprovision/syscall-kill/unlinkat:config.json#1",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "part" in metafunc.fixturenames:
        whole = parts(str(metafunc.config.getoption("sweep")))
        metafunc.parametrize("part", [pytest.param(part, id=str(part)) for part in whole])


OTHERS_CALLS = "its cells are named after files and calls of the bundled reference"


def judge(sweep: Sweep, tally: Tally, request: pytest.FixtureRequest) -> None:
    if tally.left and not tally.points:
        pytest.skip("; ".join(sorted(tally.left)))
    request.node.user_properties += sweep.told(tally)
    if tally.failures:
        pytest.fail(sweep.text(tally), pytrace=False)


@pytest.mark.case("T10", "T11", "T12", "T17", "T19", "T45")
@pytest.mark.spec("card.1")
def test_a_crash_anywhere_leaves_what_its_step_allows(sweep: Sweep, part: Part, request: pytest.FixtureRequest) -> None:
    try:
        tally = sweep.run(part)
    except Unavailable as missing:
        pytest.skip(str(missing))
    judge(sweep, tally, request)


def test_every_step_has_a_crash_case(sweep: Sweep, backend: Backend) -> None:
    if reason := backend.lacks(SWEEP):
        pytest.skip(f"{backend.name}: {reason}")
    try:
        sweep.require_every_step()
    except Unavailable as missing:
        pytest.skip(str(missing))


def test_cells_are_the_same_in_processes_that_were_really_started(sweep: Sweep, request: pytest.FixtureRequest) -> None:
    if not sweep.bundled:
        pytest.skip(OTHERS_CALLS)
    tally = Tally()
    with sweep.started() as really:
        for cell in STARTED:
            tally.try_cell(partial(really.replay, parse(cell)))
    judge(sweep, tally, request)
