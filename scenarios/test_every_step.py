"""An orchestrator crashes at every step of every operation; the next one finds at most one VMM and goes on."""

from __future__ import annotations

import pytest

from harness.errors import Finding
from harness.sandbox import RAMFS, Sandbox
from harness.sut.program import Program
from harness.world import World

STEPS: dict[str, list[str]] = {
    "provision": [
        "provision.directory#1",
        "provision.locked#1",
        "provision.binding#1",
        "provision.configuration#1",
    ],
    "start": [
        "start.locked#1",
        "start.recovered#1",
        "start.inputs_checked#1",
        "start.policy_authorised#1",
        "start.stale_removed#1",
        "start.capability_written#1",
        "start.log_created#1",
        "start.log_claimed#1",
        "start.marker_written#1",
        "start.spawned#1",
        "start.identity_recorded#1",
        "start.endpoint_up#1",
        "start.session_ready#1",
        "start.maps_applied#1",
        "start.runtime_written#1",
        "start.journal_removed#1",
    ],
    "stop": [
        "stop.locked#1",
        "stop.requested#1",
        "stop.exited#1",
        "stop.record_cleared#1",
    ],
    "deprovision": [
        "removal.locked#1",
        "removal.checked#1",
        "removal.file#1",
        "removal.file#2",
        "removal.file#3",
        "removal.lock_unlinked#1",
        "removal.directory#1",
    ],
}
"""The steps that a clean life of a sandbox passes, by operation, with their hits."""

BEFORE = {"provision": [], "start": ["provision"], "stop": ["provision", "start"]}
BEFORE["deprovision"] = ["provision", "start", "stop"]

CELLS = [
    pytest.param(op, step, way, id=f"{op}-{step}-{way}")
    for op, steps in STEPS.items()
    for step in steps
    for way in ("exit", "kill")
]


def arguments(box: Sandbox, op: str) -> dict[str, object]:
    """Return what an operation takes."""
    return box.request() if op == "provision" else box.named()


def bring(box: Sandbox, program: Program, op: str, *also: str) -> str:
    """Run an operation that must succeed, or fail with one of some codes; return the code."""
    answer = program.call(op, arguments(box, op), box.world.soon())
    if not answer.ok and answer.code not in also:
        raise Finding(op, expected=" or ".join(["success", *also]), found=str(answer))
    return answer.code


@pytest.mark.case("T10")
def test_a_clean_life_passes_the_steps_that_crashes_are_tried_at(world: World) -> None:
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator()
    for op, expected in STEPS.items():
        answer = box.succeed(program, op, arguments(box, op))
        world.expect(f"steps of {op}", expected=expected, found=[str(step) for step in answer.steps])


@pytest.mark.spec("card.1")
@pytest.mark.case("T10", "T11", "T19")
@pytest.mark.parametrize(("op", "step", "way"), CELLS)
def test_after_a_crash_at_a_step_the_sandbox_is_usable_and_removable(
    world: World, op: str, step: str, way: str
) -> None:
    box = Sandbox(world, upper=RAMFS)
    first = world.orchestrator()
    for earlier in BEFORE[op]:
        box.succeed(first, earlier, arguments(box, earlier))
    name, _, hit = step.partition("#")
    first.crash(op, arguments(box, op), (name, int(hit)), way, world.soon())
    where = f"{op} crashed at {step} by {way}"
    world.expect(f"{where}: VMMs", expected=True, found=len(world.processes.vmms()) <= 1)

    second = world.orchestrator()
    bring(box, second, "provision", "AlreadyExists")
    if bring(box, second, "start", "AlreadyExists"):
        world.expect(f"{where}, then start", expected="live", found=box.verdict(second, "status"))
    world.processes.one(f"{where}, then start")
    world.expect(f"{where}, then exec", expected="up\n", found=box.output(second, "/bin/echo", "up"))
    box.succeed(second, "stop")
    world.processes.none(f"{where}, then stop", world.soon())
    box.succeed(second, "deprovision")
    world.expect(f"{where}, then deprovision", expected=[], found=box.names())
