"""An orchestrator ends after a committed start; another of the same runtime identity goes on with the live VM."""

from __future__ import annotations

import pytest

from harness.sandbox import ADAPTER, RAMFS, Sandbox
from harness.world import World
from scenarios.boots import end, require_adapter
from scenarios.builds import other

pytestmark = pytest.mark.spec("card.3")

COMMITTED = ("start.runtime_written", 1)
DONE = ("start.journal_removed", 1)


@pytest.mark.case("T11")
@pytest.mark.spec("620.scope3.k", "620.acc.5", "622.acc.15", "656.tests.e")
@pytest.mark.parametrize("way", ["exit", "kill"])
@pytest.mark.parametrize("step", [COMMITTED, DONE], ids=["runtime_written", "journal_removed"])
def test_a_vm_outlives_its_orchestrator_and_the_next_one_goes_on(world: World, step: tuple[str, int], way: str) -> None:
    box = Sandbox(world)
    first = world.orchestrator()
    box.provision(first)
    first.crash("start", box.named(), step, way, world.soon())
    where = f"start crashed at {step[0]} by {way}"
    vmm = world.processes.one(where)

    # The next one is another build of the same runtime identity.
    second = world.orchestrator(other(world).orchestrator(world) if world.bundled else None)
    world.expect(f"{where}, then reattach", expected="live", found=box.verdict(second))
    world.expect(f"{where}, then exec", expected="hello\n", found=box.output(second, "/bin/echo", "hello"))
    world.expect(f"{where}, then exec", expected=vmm.pin.pid, found=world.processes.one(where).pin.pid)
    box.succeed(second, "stop")
    world.processes.none(f"{where}, then stop", world.soon())
    box.expect_kept(f"{where}, then stop", "runtime.json", there=False)
    box.succeed(second, "deprovision")
    world.expect(f"{where}, then deprovision", expected=[], found=box.names())
    vm = world.runs.one(where)
    world.expect("the VMM", expected=vmm.pin.pid, found=vm.pid)
    _expect_new_sessions(world)


def _expect_new_sessions(world: World) -> None:
    """The same broker, one more session for each operation, and Start isn't replayed."""
    vm = world.runs.one("start")
    attached, requests, signals = vm.attachments(), vm.requests(), vm.signals()
    if attached is None or requests is None or signals is None:
        world.saw("sessions, requests and signals", None)
        return
    world.expect("broker instances", expected=1, found=len({one.instance for one in attached}))
    epochs = [one.epoch for one in attached]
    world.expect("epochs of sessions", expected=list(range(1, len(epochs) + 1)), found=epochs)
    world.expect(
        "requests after the restart",
        expected=["EXEC", "STOP"],
        found=[r for r in requests if r in {"EXEC", "STOP", "MAPS"}],
    )
    world.expect("signals to the VMM", expected=[], found=signals)


@pytest.mark.case("T11")
@pytest.mark.spec("620.scope3.k", "622.acc.15")
def test_an_adapter_s_vm_outlives_its_orchestrators_one_after_the_other(world: World) -> None:
    require_adapter(world)
    box = Sandbox(world, upper=RAMFS, guest=ADAPTER)
    first = world.orchestrator(world.adapter())
    box.provision(first)
    first.crash("start", box.named(), DONE, "kill", world.soon())
    vmm = world.processes.one("an adapter's VM")
    program = first
    for number in range(3):
        program = world.orchestrator(world.adapter())
        where = f"orchestrator {number + 2}"
        world.expect(f"{where}: reattach", expected="live", found=box.verdict(program))
        world.expect(f"{where}: exec", expected="hello\n", found=box.output(program, "/bin/echo", "hello"))
        world.expect(f"{where}: the VMM", expected=vmm.pin.pid, found=world.processes.one(where).pin.pid)
        if number < 2:
            program.kill(world.soon())
    end(world, box, program)
    vm = world.runs.one(where)
    attached = vm.attachments()
    if attached is None:
        world.saw("sessions", None)
        return
    epochs = [one.epoch for one in attached]
    world.expect("sessions of one broker", expected=1, found=len({one.instance for one in attached}))
    world.expect("epochs", expected=list(range(1, len(epochs) + 1)), found=epochs)
