"""An image replaced between the launcher's check and the VMM's open: the checked object boots, or nothing does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from harness.backends.contract import PAUSE
from harness.faults.swap import BIND_MOUNT, CHANGES, HARD_LINK, RENAME, SWAPS, Swap, can_mount
from harness.sandbox import Sandbox
from harness.sut.program import Program
from harness.world import World
from scenarios.boots import end
from scenarios.private import ROLES, Files

pytestmark = [pytest.mark.case("T54"), pytest.mark.c4]

CHECKED = ("start.inputs_checked", 1)


def _require_names(world: World) -> None:
    if world.host.guards_files:
        pytest.skip("an open file keeps its name here: scenarios/test_image_guards.py tries to take it")


def _start(world: World, box: Sandbox, files: Files, program: Program, plan: dict[str, Swap], undo: ExitStack) -> None:
    """Start a sandbox and swap its files between the launcher's check and the VMM's opens.

    A VMM that can be held stands right before each of its opens; any other isn't started yet.
    """

    def swap(role: str) -> None:
        # What takes the place of what was checked can't boot.
        decoy = files.decoy(role) if plan[role].replaces else files.copy(role, "decoy")
        undo.callback(plan[role].apply(files.paths[role], decoy))

    points = {role: f"before_open:{role}" for role in plan}
    if any(world.backend.lacks(f"{PAUSE}{point}") for point in points.values()):
        if CHECKED[0] not in program.ready(world.soon()).steps:
            pytest.skip(
                f"{world.backend.name}: neither the VMM nor the orchestrator can be held between check and open"
            )
        running = program.begin("start", box.named(), pause=CHECKED)
        running.wait_paused(world.soon())
        for role in plan:
            swap(role)
        running.resume()
    else:
        world.vmm.configure(pauses=[*points.values()])
        running = program.begin("start", box.named())
        for role, point in points.items():
            peer = world.channel.wait_paused(point, world.soon())
            swap(role)
            world.channel.resume(peer)
        world.vmm.configure()
    answer = running.answer(world.soon())
    world.expect("start", expected="success", found="success" if answer.ok else str(answer))


@pytest.mark.spec("card.5")
@pytest.mark.spec("622.acc.3", "622.acc.4", "622.scope3.a", "622.scope3.c", "622.scope3.d")
@pytest.mark.parametrize("turn", range(len(SWAPS)))
def test_what_was_checked_is_what_boots_whatever_takes_its_name(world: World, turn: int) -> None:
    # What is mounted goes before the test's own sweep: it would be found as left behind.
    with ExitStack() as undo:
        _boot_swapped(world, undo, turn)


def _boot_swapped(world: World, undo: ExitStack, turn: int) -> None:
    # Four boots show each of the four files under each of the four swaps.
    _require_names(world)
    plan = {role: SWAPS[(place + turn) % len(SWAPS)] for place, role in enumerate(ROLES)}
    if not can_mount():
        plan = {role: RENAME if swap is BIND_MOUNT else swap for role, swap in plan.items()}
    box = Sandbox(world)
    files = Files(world, box)
    program = world.orchestrator()
    box.provision(program)
    checked = {role: files.object(role) for role in ROLES}
    _start(world, box, files, program, plan, undo)

    vm = world.runs.one("start")
    facts = world.vmm.guest_facts(vm)
    opened = {
        "distro": facts.distro_file,
        "scratch": facts.scratch_file,
        "kernel": facts.kernel_file,
        "initrd": facts.initrd_file,
    }
    for role, swap in plan.items():
        if world.saw(f"the {role} that the VMM opened", opened[role]):
            world.expect(f"{role} after {swap.name}", expected=checked[role], found=opened[role])
        world.expect(f"{role}: the swap", expected=True, found=files.object(role) != checked[role])
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    # The next start looks the names up again, and finds what it wasn't provisioned with.
    answer = box.fail(program, "start", "Refused")
    world.expect("the next start", expected="stale", found=answer.details.get("detail"))
    world.expect("the next start", expected=[], found=world.processes.vmms())
    box.succeed(program, "deprovision")


@pytest.mark.spec("622.acc.3", "622p1.scope7.a", "622p1.acc.4")
def test_a_change_in_place_is_refused_by_the_next_start(world: World) -> None:
    _require_names(world)
    box = Sandbox(world)
    files = Files(world, box)
    program = world.orchestrator()
    for swap in CHANGES:
        box.provision(program)
        checked = files.object("distro")
        with ExitStack() as undo:
            _start(world, box, files, program, {"distro": swap}, undo)
        opened = world.vmm.guest_facts(world.runs.last("start")).distro_file
        if world.saw("the distro that the VMM opened", opened):
            world.expect(f"the distro after {swap.name}", expected=checked, found=opened)
        box.succeed(program, "stop")
        world.processes.none("stop", world.soon())
        answer = box.fail(program, "start", "Refused")
        world.expect(f"the start after {swap.name}", expected="stale", found=answer.details.get("detail"))
        box.succeed(program, "deprovision")


@pytest.mark.spec("622.acc.3", "622p1.acc.7")
def test_a_file_that_vanishes_after_the_check_boots_all_the_same(world: World) -> None:
    """The positive control of all of them is the name: a VMM that opened that would find the decoy, or nothing."""
    _require_names(world)
    box = Sandbox(world, upper="ramfs")
    files = Files(world, box, ("distro", "kernel", "initrd"))
    program = world.orchestrator()
    box.provision(program)
    checked = files.object("kernel")
    gone = Swap("vanish", lambda path, decoy: _vanish(world, path, decoy), replaces=True)
    with ExitStack() as undo:
        _start(world, box, files, program, {"kernel": gone}, undo)
    vm = world.runs.one("start")
    opened = world.vmm.guest_facts(vm).kernel_file
    if world.saw("the kernel that the VMM opened", opened):
        world.expect("the kernel", expected=checked, found=opened)
    end(world, box, program)


def _vanish(world: World, path: str, decoy: str) -> Callable[[], None]:
    world.remove(decoy)
    world.remove(path)
    return lambda: None


def test_the_swaps_do_what_they_say(world: World) -> None:
    _require_names(world)
    box = Sandbox(world)
    files = Files(world, box, ("distro",))
    before = files.object("distro")
    for swap in (HARD_LINK, RENAME):
        swap.apply(files.paths["distro"], files.copy("distro", swap.name))
        world.expect(swap.name, expected=False, found=files.object("distro") == before)
        before = files.object("distro")
    for swap in CHANGES:
        swap.apply(files.paths["distro"], files.copy("distro", "decoy"))
        world.expect(swap.name, expected=before, found=files.object("distro"))
