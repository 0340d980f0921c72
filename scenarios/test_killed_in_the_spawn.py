"""An orchestrator is killed after it has forked the VMM's process and before that has become the VMM.

The child is on its own then: it holds copies of the lifecycle lock and of the log's claim, and becomes a VMM that no
record names. The next orchestrator has to wait for it, and must neither start a second VMM nor lose this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import Unavailable
from harness.platform import KERNEL
from harness.sandbox import Sandbox
from harness.sut.program import Program
from harness.witness.processes import claim_is_held
from harness.world import World

if TYPE_CHECKING:
    from harness.faults.spawning import HeldSpawn

pytestmark = [
    pytest.mark.case("T11", "T13", "T14"),
    pytest.mark.spec("620.scope2.a", "620.scope2.c", "620.acc.3"),
    pytest.mark.skipif(KERNEL == "win32", reason="a process is created whole here: there is no fork before its exec"),
]

SHORTLY = {"timeout": 0.2}


def test_the_child_holds_lock_and_claim_until_its_exec_and_is_found_after_it(world: World) -> None:
    from harness.faults.spawning import HeldSpawn  # noqa: PLC0415 - it is Linux's alone

    box = Sandbox(world)
    first = world.orchestrator()
    # Whoever keeps other files may well spawn in another way, too.
    log = box.path("openvmm.log")
    box.provision(first)
    try:
        held = HeldSpawn(world, first)
    except Unavailable as missing:
        pytest.skip(str(missing))
    with held:
        found_after_its_exec(world, box, first, held, log)


def found_after_its_exec(world: World, box: Sandbox, first: Program, spawn: HeldSpawn, log: str) -> None:
    """Kill the orchestrator inside its spawn, and have the next one deal with what that left."""
    first.begin("start", box.named())
    child = spawn.child(world.soon())
    first.kill(world.soon())

    second = world.orchestrator()
    where = "start killed inside the spawn"
    world.expect(
        f"{where}: the log's claim",
        expected=True,
        found=claim_is_held(world.host, log, world.soon(0.1)),
    )
    world.expect(f"{where}: the journal", expected=True, found="launch.json" in box.names())
    for op in ("reattach", "start", "stop", "deprovision"):
        box.fail(second, op, "Busy", {**box.named(), **SHORTLY})
    world.expect(f"{where}: VMMs so far", expected=[], found=world.vmm.vms())

    spawn.release(child)
    spawn.close(world.soon())
    world.until(lambda: bool(world.vmm.vms()))
    # Until it has an endpoint nothing tells what it is, and it is left alone; it may take its time to make one.
    world.until(lambda: "control.sock" in box.names())
    world.expect(
        f"{where}, then its exec, then reattach", expected="exited", found=box.verdict(second).partition(":")[0]
    )
    world.processes.none(f"{where}, then reattach", world.soon())
    box.succeed(second, "start")
    world.processes.one(f"{where}, then start")
    box.succeed(second, "stop")
    world.processes.none(f"{where}, then stop", world.soon())
    box.succeed(second, "deprovision")
