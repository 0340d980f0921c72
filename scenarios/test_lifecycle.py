"""A sandbox's whole life on the command line, with the exact entries of its directory in each state."""

from __future__ import annotations

import os

import pytest

from harness.backends.contract import is_bundled
from harness.completed import Completed
from harness.goldens import Goldens
from harness.sandbox import EROFS, EXT4, RAMFS, Sandbox
from harness.world import World
from scenarios.boots import ample
from scenarios.shell import Shell, options

NO_DIRECTORY = "nvx-container-enter: /none: No such file or directory"

pytestmark = pytest.mark.spec("620.acc.1", "620.scope5.a")

QUIET = Completed(0, "", "")


@pytest.mark.parametrize("upper", [EXT4, RAMFS])
def test_every_command_says_what_it_should_and_leaves_what_it_should(
    world: World, goldens: Goldens, upper: str
) -> None:
    box = Sandbox(world, image_format=EROFS, upper=upper)
    shell = Shell(world, box)
    world.expect("provision", expected=QUIET, found=shell.type("provision", *options(box, world)))
    shell.type("status")
    world.expect("start", expected=QUIET, found=shell.type("start"))
    vmm = world.processes.one("start")
    shell.type("status")
    shell.type("status", "--json")
    shell.type("start")
    shell.type("deprovision")
    shell.type("exec", after=("--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7"))
    world.expect("the VMM after exec", expected=vmm.pin.pid, found=world.processes.one("exec").pin.pid)
    world.expect("stop", expected=QUIET, found=shell.type("stop"))
    world.processes.none("stop", world.soon())
    shell.type("status")
    shell.type("stop")
    shell.type("exec", after=("--", "/bin/true"))
    world.expect("deprovision", expected=QUIET, found=shell.type("deprovision"))
    shell.type("status")
    goldens.check(f"lifecycle/{upper}.txt", shell.notes)


@pytest.mark.case("T23")
def test_a_vmm_that_was_killed_has_exited_and_the_sandbox_starts_again(world: World, goldens: Goldens) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    shell.type("start")
    vmm = world.processes.one("start")
    vmm.pin.end()
    world.processes.none("the kill of the VMM", world.soon())
    shell.list()
    shell.type("status")
    shell.type("exec", after=("--", "/bin/true"))
    shell.type("stop")
    shell.type("start")
    shell.type("stop")
    world.processes.none("stop", world.soon())
    shell.type("deprovision")
    goldens.check("lifecycle/killed.txt", shell.notes)


@pytest.mark.case("T20")
@pytest.mark.spec("620.acc.15", "622.acc.14")
def test_a_start_whose_guest_refuses_says_so_and_leaves_log_and_report(world: World, goldens: Goldens) -> None:
    world.vmm.configure(knobs={"guest_exit_at": {"guest_attach": 125}, "attach_delay_ms": 1000})
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    shell.type("start")
    world.processes.none("the refused start", world.soon())
    shell.type("status")
    shell.type("deprovision")
    goldens.check("lifecycle/refused.txt", shell.notes)


@pytest.mark.spec("620.scope6.i")
def test_a_foreign_file_stops_the_removal_before_anything_goes(world: World, goldens: Goldens) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    descriptor = os.open(box.path("notes.txt"), os.O_WRONLY | os.O_CREAT, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("mine\n")
    shell.type("deprovision")
    world.remove(box.path("notes.txt"))
    shell.type("deprovision")
    goldens.check("lifecycle/foreign.txt", shell.notes)


@pytest.mark.spec("622.scope5.d")
@pytest.mark.spec("620.scope5.b", "620.scope3.j", "656.stop.c")
def test_a_stop_that_the_guest_ignores_reports_the_timeout_and_forces_only_on_request(
    world: World, goldens: Goldens
) -> None:
    world.vmm.configure(knobs={"ignore_stop": True})
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    late = ample(world, world.soon(0.5).remaining(), lambda: shell.type("start"), times=3)
    vmm = world.processes.one("start")
    soon = f"{late:.3f}"
    shell.type("stop", "--timeout", soon)
    world.expect("the VMM after the timeout", expected=vmm.pin.pid, found=world.processes.one("stop").pin.pid)
    shell.type("stop", "--timeout", soon, "--force-within", "10")
    world.processes.none("the forced stop", world.soon())
    shell.type("deprovision")
    goldens.check("lifecycle/ignored_stop.txt", shell.notes)


@pytest.mark.spec("620.scope3.l")
def test_a_damaged_runtime_record_names_a_way_out_that_works(world: World, goldens: Goldens) -> None:
    """Taken while the VM runs, the way out starts no second one; once it has ended, it makes the sandbox usable."""
    box = Sandbox(world, upper=RAMFS)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    shell.type("start")
    vmm = world.processes.one("start")
    for op in ("status", "start", "stop", "deprovision"):
        with open(box.path("runtime.json"), "w", encoding="utf-8") as file:
            file.write("{")
        shell.type(op)
    world.remove(box.path("runtime.json"))
    shell.type("start", "--timeout", "5")
    world.expect("the VMM", expected=vmm.pin.pid, found=world.processes.one("a second start").pin.pid)
    vmm.pin.end()
    world.processes.none("the kill of the VMM", world.soon())
    world.expect("start", expected=QUIET, found=shell.type("start"))
    world.expect("stop", expected=QUIET, found=shell.type("stop"))
    world.processes.none("stop", world.soon())
    world.expect("deprovision", expected=QUIET, found=shell.type("deprovision"))
    goldens.check("lifecycle/damaged_record.txt", shell.notes)


def test_a_program_that_was_ended_or_refused_is_told_from_one_that_exited(world: World, goldens: Goldens) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    shell.type("start")
    shell.notes.clear()
    shell.type("exec", after=("--exec-timeout-ms", "50", "--", "/bin/sleep", "60"))
    said = shell.type("exec", after=("--cwd", "/none", "--", "/bin/true")).stderr.strip()
    world.expect("the directory is named", expected=True, found="/none" in said)
    if not is_bundled(world.backend):
        # In which words is a real guest's business.
        goldens.name(said, NO_DIRECTORY)
    shell.type("exec", after=("--cwd", "none", "--", "/bin/true"))
    shell.type("exec", after=("--", "/bin/sh", "-c", "exit 124"))
    shell.type("stop")
    world.processes.none("stop", world.soon())
    goldens.check("lifecycle/ended.txt", shell.notes)
