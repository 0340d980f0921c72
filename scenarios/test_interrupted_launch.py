"""An orchestrator crashes in the three windows of a launch; the next one must neither lose a VMM nor kill a stranger.

Before the spawn nothing runs. Between the spawn and the recorded identity a VMM is ended only if its endpoint proves
what it is, and otherwise left alone until it exits. After that it is ended by its verified identity, endpoint or not.
"""

from __future__ import annotations

import pytest

from harness.sandbox import Sandbox
from harness.sut.program import Program
from harness.world import World

pytestmark = [
    pytest.mark.case("T10", "T11"),
    pytest.mark.spec("620.acc.3", "620.today.1", "622.acc.17"),
    pytest.mark.parametrize("way", ["exit", "kill"]),
]

MARKED = ("start.marker_written", 1)
SPAWNED = ("start.spawned", 1)
IDENTIFIED = ("start.identity_recorded", 1)


def interrupted(world: World, step: tuple[str, int], way: str) -> tuple[Sandbox, str]:
    """Provision a sandbox, and have an orchestrator crash at a step of its start."""
    box = Sandbox(world)
    first = world.orchestrator()
    box.provision(first)
    first.crash("start", box.named(), step, way, world.soon())
    return box, f"start crashed at {step[0]} by {way}"


def live_on(world: World, box: Sandbox, program: Program, where: str) -> None:
    """The sandbox is usable and removable again, as far as the orchestrator goes."""
    world.vmm.configure()
    box.succeed(program, "start")
    vmm = world.processes.one(f"{where}, then start")
    if box.can("exec", "a program in the next guest"):
        world.expect(f"{where}, then exec", expected="again\n", found=box.output(program, "/bin/echo", "again"))
    if box.can("stop", "a stop of the next VMM"):
        box.succeed(program, "stop")
    else:
        vmm.pin.end()
    world.processes.none(f"{where}, then stop", world.soon())
    box.succeed(program, "deprovision")
    world.expect(f"{where}, then deprovision", expected=[], found=box.names())


@pytest.mark.case("T15")
@pytest.mark.spec("656.tests.a", "620.scope2.a")
def test_before_the_spawn_nothing_runs_and_the_launch_has_exited(world: World, way: str) -> None:
    box, where = interrupted(world, MARKED, way)
    box.expect_kept(f"{where}: the journal", "launch.json", there=True)
    world.expect(f"{where}: VMMs", expected=[], found=world.processes.vmms())

    second = world.orchestrator()
    world.expect(f"{where}, then reattach", expected="exited", found=box.verdict(second).partition(":")[0])
    box.expect_names(f"{where}, then reattach: names", ["config.json", "lifecycle.lock", "openvmm.log"])
    live_on(world, box, second, where)


@pytest.mark.case("T13")
@pytest.mark.spec("656.tests.b", "620.scope2.c", "620.scope2.d", "620.scope3.p", "656.reattach.d", "656.reattach.e")
def test_a_spawned_vmm_without_an_endpoint_is_left_alone_until_it_exits(world: World, way: str) -> None:
    world.vmm.configure(pauses=["before_bind"], knobs={"exit_at": {"before_bind": 3}})
    box, where = interrupted(world, SPAWNED, way)
    peer = world.channel.wait_paused("before_bind", world.soon())
    vmm = world.processes.one(where)

    second = world.orchestrator()
    for op in ("status", "reattach"):
        world.expect(f"{where}, then {op}", expected="indeterminate", found=box.verdict(second, op).partition(":")[0])
    # Each of them looks at the held claim for a second; one way of crashing tries them all.
    for op in ("start", "stop", "deprovision") if way == "kill" else ("start",):
        if box.can(op, f"a refused {op}"):
            box.fail(second, op, "Indeterminate")
    found = world.processes.one(f"{where}, then start, stop and deprovision")
    world.expect(f"{where}: the VMM", expected=vmm.pin.pid, found=found.pin.pid)
    box.expect_kept(f"{where}: the journal", "launch.json", there=True)

    world.channel.resume(peer)
    world.processes.none(f"{where}, then its own exit", world.soon())
    world.expect(f"{where}, VMM gone, then reattach", expected="exited", found=box.verdict(second).partition(":")[0])
    vm = world.runs.one(where)
    world.expect(f"{where}: signals to the VMM", expected=([], 3), found=(vm.signals(), vm.status()))
    live_on(world, box, second, where)


@pytest.mark.case("T14")
@pytest.mark.spec("656.tests.c", "620.scope2.e")
def test_a_spawned_vmm_that_serves_its_endpoint_is_verified_and_ended(world: World, way: str) -> None:
    world.vmm.configure(pauses=["after_bind"])
    box, where = interrupted(world, SPAWNED, way)
    world.channel.wait_paused("after_bind", world.soon())
    vmm = world.processes.one(where)

    second = world.orchestrator()
    world.expect(f"{where}, then reattach", expected="exited", found=box.verdict(second).partition(":")[0])
    world.processes.none(f"{where}, then reattach", world.soon())
    world.expect(f"{where}: the VMM's end", expected=True, found=vmm.pin.has_exited())
    vm = world.runs.one(where)
    world.expect(f"{where}: sessions with its guest", expected=[], found=vm.attachments())
    live_on(world, box, second, where)


@pytest.mark.spec("656.tests.d", "620.scope2.b")
def test_a_recorded_vmm_is_ended_by_its_identity_before_it_has_an_endpoint(world: World, way: str) -> None:
    world.vmm.configure(pauses=["before_bind"])
    box, where = interrupted(world, IDENTIFIED, way)
    world.channel.wait_paused("before_bind", world.soon())
    vmm = world.processes.one(where)

    second = world.orchestrator()
    world.expect(
        f"{where}, then status", expected="indeterminate", found=box.verdict(second, "status").partition(":")[0]
    )
    world.expect(f"{where}, then reattach", expected="exited", found=box.verdict(second).partition(":")[0])
    world.processes.none(f"{where}, then reattach", world.soon())
    world.expect(f"{where}: the VMM's end", expected=True, found=vmm.pin.has_exited())
    live_on(world, box, second, where)
