"""An external orchestrator with a framing of its own boots the same plans through the same session."""

from __future__ import annotations

import pytest

from harness.goldens import Goldens
from harness.sandbox import ADAPTER, RAMFS, Sandbox
from harness.world import World
from scenarios.boots import COMBINATIONS, end, expect_allowlist, expect_found, options_as_lines, require_adapter

pytestmark = pytest.mark.spec("card.3", "622.acc.21")


@pytest.mark.spec("620.goal.1", "622.goal.1", "622.pr7")
@pytest.mark.spec("622.acc.2", "622.scope1.i", "622.scope4.g", "622.acc.1", "620.scope5.a")
@pytest.mark.parametrize(("image_format", "upper"), COMBINATIONS)
def test_the_adapter_boots_what_nvx_boots(world: World, goldens: Goldens, image_format: str, upper: str) -> None:
    require_adapter(world)
    box = Sandbox(world, image_format=image_format, upper=upper, guest=ADAPTER)
    golden = f"cold_boot/{image_format}-{upper}"
    program = world.orchestrator(world.adapter())
    box.provision(program)
    box.succeed(program, "start")
    vmm = world.processes.one("start")
    vm = world.runs.one("start")
    world.expect("the VMM", expected=vmm.pin.pid, found=vm.pid)
    # One plan for every orchestrator: the same arguments and the same command line, to the byte. Only the agent in the
    # initramfs is another one, which shows where arguments name files.
    goldens.name(str(world.artifacts.adapter), "<ARTIFACTS>/guest/initramfs.cpio.gz")
    goldens.check(f"{golden}/argv.txt", options_as_lines(vm.argv()))
    expect_found(world, box, world.vmm.guest_facts(vm, box.look(program)), goldens, golden)
    expect_allowlist(world, box, vm)
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    end(world, box, program)


@pytest.mark.spec("622.scope1.i")
def test_each_orchestrator_refuses_the_other_s_sandbox_and_says_nothing_to_its_guest(world: World) -> None:
    require_adapter(world)
    box = Sandbox(world, upper=RAMFS, guest=ADAPTER)
    adapter, reference = world.orchestrator(world.adapter()), world.orchestrator()
    box.fail(reference, "provision", "Refused", box.request())
    world.expect("a refused provision", expected=[], found=box.names())
    box.provision(adapter)
    box.fail(reference, "start", "Refused")
    box.succeed(adapter, "start")
    answer = box.fail(reference, "exec", "Refused", {**box.named(), "argv": ["/bin/true"]})
    world.expect("exec by the other", expected="guest-kind", found=answer.details.get("detail"))
    box.fail(reference, "stop", "TimedOut", {**box.named(), "timeout": 1})
    # Whether it lives is nobody's agent's business.
    world.expect("status by the other", expected="live", found=box.verdict(reference, "status"))
    world.expect("exec", expected="up\n", found=box.output(adapter, "/bin/echo", "up"))
    end(world, box, adapter)
