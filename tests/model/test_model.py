"""The protocol as a model: nothing goes wrong with every guard in force, and something does without each of them."""

from __future__ import annotations

from functools import cache

import pytest

from nvx_ref.steps import Step
from tests.model import properties as promises
from tests.model.guards import Fault, Guard
from tests.model.moves import HANDLERS, World
from tests.model.search import Counterexample, Result, search
from tests.model.worlds import (
    ALL,
    FULL,
    MISSED,
    QUICK,
    SPARED,
    Missed,
    world,
)

ABSTRACTED = {
    Step.PROVISION_BINDING: "reads images and decides; the directory is as after the step before",
    Step.START_INPUTS_CHECKED: "opens inputs and decides; a crash there is one after start.recovered",
    Step.START_POLICY_AUTHORISED: "as start.inputs_checked",
    Step.START_SESSION_READY: "between the caller and the guest; a failure there is one to serve the endpoint",
    Step.START_MAPS_APPLIED: "as start.session_ready",
}
"""The steps that change nothing which another orchestrator, or the same one after a crash, could see."""

UNGUARDED = {"recover.tidy", "clear.tidy"}
"""Where an orchestrator gets to only with a guard taken out."""

EXCUSES = {
    "an unidentified VMM serves nothing",
    "the log that could prove the launch's end was taken away",
    "the log that could prove the end of another namespace's VMM was taken away",
    "processes can't be examined",
    "a stranger has the VMM's number and start tick, and the log that could tell was taken away",
    "the VMM runs in another PID namespace",
    "a descendant of the VMM has the log",
    "the VMM of the directory of which this one is a copy runs",
    "a foreign entry is in the directory",
}
"""Every reason for which a sandbox may be stuck until the world changes."""

HAPPENS = {
    Fault.FORK: "another thread of it forks a child",
    Fault.ROTATE: "the log is moved away",
    Fault.REUSE: "a stranger gets the VMM's number within the same start tick",
    Fault.HIDDEN: "processes can't be examined any more",
    Fault.NAMESPACE: "the orchestrators restart in another PID namespace",
    Fault.REBOOT: "the host restarts, and the log's device has another number",
    Fault.WORKER: "the VMM exits, a descendant keeps the log",
    Fault.STRANGER_SERVES: "a stranger serves the endpoint",
    Fault.DISK: "can't ",
    Fault.FOREIGN: "somebody puts a file into the directory",
    Fault.COPY: "the directory is copied",
    Fault.LINGER: "gives up: deleted files that are still open keep the directory",
}
"""By what a world's fault is seen to happen; missing inodes are a property of the host, and happen nowhere."""


def require_sound(result: Result) -> None:
    assert result.found is None, f"\n{result.found}"
    assert set(result.wedged) <= EXCUSES


@cache
def sound(it: World) -> Result:
    """Explore a world, once for all tests that look at it."""
    return search(it)


def explored(name: str) -> Result:
    """Explore a quick world."""
    return sound(QUICK[name])


together = pytest.mark.xdist_group("model")

pytestmark = pytest.mark.timeout(400)
"""Whichever test comes first explores the worlds for all."""


@pytest.mark.spec("620.scope6.a")
@together
@pytest.mark.case("T10")
@pytest.mark.case("T12")
@pytest.mark.case("T18")
@pytest.mark.case("T19")
@pytest.mark.spec("620.today.1")
@pytest.mark.spec("620.acc.12")
@pytest.mark.parametrize("name", QUICK)
def test_nothing_goes_wrong_with_every_guard_in_force(name: str) -> None:
    require_sound(explored(name))


@pytest.mark.parametrize("name", FULL)
def test_nothing_goes_wrong_in_the_larger_worlds(name: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--sweep", "quick") != "full":
        pytest.skip("the larger worlds of the model take some 15 s: run with --sweep full")
    require_sound(search(FULL[name]))


@together
@pytest.mark.parametrize("name", QUICK)
def test_every_fault_of_a_world_happens_in_it(name: str) -> None:
    happened = explored(name).texts
    silent = [fault for fault in QUICK[name].faults if not any(HAPPENS.get(fault, "") in text for text in happened)]
    assert silent == []


@together
def test_every_fault_is_in_some_world() -> None:
    assert {fault for it in QUICK.values() for fault in it.faults} == set(Fault)


@together
def test_every_place_of_the_protocol_is_reached() -> None:
    places = {place for name in QUICK for place in explored(name).places}
    assert places == set(HANDLERS) - UNGUARDED


@together
def test_the_model_speaks_of_every_step_or_says_why_not() -> None:
    spoken = {step for name in QUICK for step in explored(name).steps}
    assert spoken & set(ABSTRACTED) == set()
    assert spoken | set(ABSTRACTED) == set(Step)


@together
def test_a_sandbox_is_stuck_only_for_a_reason_that_is_known() -> None:
    assert {reason for name in QUICK for reason in explored(name).wedged} | {
        reason for reason in EXCUSES if "namespace's" in reason or "start tick" in reason
    } == EXCUSES


def require_shown(found: Counterexample | None, shows: tuple[str, ...]) -> None:
    """Require the parts in the scenario's text, in their order, and the last one in its last line."""
    assert found is not None
    rest = "\n".join(str(line) for line in found.lines)
    for part in shows:
        _, here, rest = rest.partition(part)
        assert here, f"{part!r} is missing, or too late, in\n{found}"
    assert shows[-1] in str(found.lines[-1]), f"\n{found}"


@pytest.mark.spec("656.valid.d")
@pytest.mark.parametrize(
    "missed",
    [
        pytest.param(it, id=f"{it.guard.name}-{number}", marks=pytest.mark.spec(it.spec))
        for number, it in enumerate(MISSED)
    ],
)
def test_without_a_guard_the_shortest_way_into_trouble_is_found(missed: Missed) -> None:
    require_sound(sound(missed.world))
    result = search(missed.world.without(missed.guard), missed.promise)
    print(result.found)
    require_shown(result.found, missed.shows)
    assert result.found is not None
    assert result.found.broken is missed.promise


def test_every_guard_is_missed_or_is_known_not_to_be() -> None:
    missed, spared = {it.guard for it in MISSED}, {it.guard for it in SPARED}
    assert missed | spared == ALL
    assert missed & spared == set()


@pytest.mark.parametrize(
    ("guard", "name"),
    [pytest.param(it.guard, name, id=f"{it.guard.name}-{name}") for it in SPARED for name in it.worlds],
)
def test_a_guard_that_is_not_needed_is_not_missed(guard: Guard, name: str) -> None:
    require_sound(search(QUICK[name].without(guard)))


RESIDUES = {
    "a descendant of the VMM whose log was moved": (
        world(Fault.WORKER, Fault.ROTATE),
        promises.DESCENDANTS,
        ("a descendant keeps the log", "the log is moved away", "start.log_created", "forks the VMM's process"),
    ),
}
"""What the protocol can't tell with the evidence that it asks for: documented, and it must not grow unseen."""


@pytest.mark.parametrize("name", RESIDUES)
def test_the_documented_residue_is_what_it_is_said_to_be(name: str) -> None:
    within, promise, shows = RESIDUES[name]
    result = search(within)
    require_shown(result.found, shows)
    assert result.found is not None
    assert result.found.broken is promise


@pytest.mark.case("T02")
@pytest.mark.parametrize("fault", [Fault.ROTATE, Fault.WORKER, Fault.FORK])
def test_a_process_that_has_the_launchs_log_leaves_no_residue(fault: Fault) -> None:
    within = world(Fault.REUSE, Fault.NO_PIDFS, fault)
    require_sound(search(within))


def test_a_search_that_finds_no_end_says_so() -> None:
    with pytest.raises(RuntimeError, match="over 10 states"):
        search(world(), limit=10)


def test_who_is_called_a_stays_a() -> None:
    """States don't tell the orchestrators apart, scenarios do: A's crash is followed by nothing of A's operation."""
    found = search(world().without(Guard.LAUNCH_ID), promises.COMMITTED).found
    assert found is not None
    crash = next(number for number, line in enumerate(found.lines) if line.text == "crashes")
    assert {line.who for line in found.lines[:crash] if line.step} == {"A"}
    assert {line.who for line in found.lines[crash + 1 :] if line.step} == {"B"}
