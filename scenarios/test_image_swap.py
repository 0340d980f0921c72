"""An image replaced between the launcher's check and the VMM's open: the checked object boots, or nothing does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from harness.backends.contract import UNSEEN
from harness.errors import HarnessError
from harness.faults.swap import BIND_MOUNT, CHANGES, HARD_LINK, RENAME, SWAPS, Swap, can_mount
from harness.sandbox import Sandbox
from harness.sut.operation import Operation
from harness.world import World
from scenarios.boots import end
from scenarios.private import ROLES, Files

pytestmark = [pytest.mark.case("T54"), pytest.mark.c4]


def _require_names(world: World) -> None:
    if world.host.guards_files:
        pytest.skip("an open file keeps its name here: scenarios/test_image_guards.py tries to take it")


def _hold(world: World, roles: tuple[str, ...]) -> None:
    _require_names(world)
    try:
        world.vmm.configure(pauses=[f"before_open:{role}" for role in roles])
    except HarnessError as error:
        pytest.skip(str(error))


def _swap_each(world: World, files: Files, running: Operation, plan: dict[str, Swap], undo: ExitStack) -> None:
    """Hold the VMM before each open, swap there, and let it go on."""
    for role, swap in plan.items():
        peer = world.channel.wait_paused(f"before_open:{role}", world.soon())
        undo.callback(swap.apply(files.paths[role], files.copy(role, "decoy")))
        world.channel.resume(peer)
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
    plan = {role: SWAPS[(place + turn) % len(SWAPS)] for place, role in enumerate(ROLES)}
    if not can_mount():
        plan = {role: RENAME if swap is BIND_MOUNT else swap for role, swap in plan.items()}
    _hold(world, ROLES)
    box = Sandbox(world)
    files = Files(world, box)
    program = world.orchestrator()
    box.provision(program)
    checked = {role: files.object(role) for role in ROLES}
    _swap_each(world, files, program.begin("start", box.named()), plan, undo)

    vm = world.runs.one("start")
    facts = world.vmm.guest_facts(vm)
    opened = {
        "distro": facts.distro_file,
        "scratch": facts.scratch_file,
        "kernel": facts.kernel_file,
        "initrd": facts.initrd_file,
    }
    if None in opened.values():
        pytest.skip(f"which objects the VMM opened: {UNSEEN}")
    for role, swap in plan.items():
        world.expect(f"{role} after {swap.name}", expected=checked[role], found=opened[role])
        world.expect(f"{role}: the swap", expected=True, found=files.object(role) != checked[role])
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    # The next start looks the names up again, and finds what it wasn't provisioned with.
    world.vmm.configure()
    answer = box.fail(program, "start", "Refused")
    world.expect("the next start", expected="stale", found=answer.details.get("detail"))
    world.expect("the next start", expected=[], found=world.processes.vmms())
    box.succeed(program, "deprovision")


@pytest.mark.spec("622.acc.3", "622p1.scope7.a", "622p1.acc.4")
def test_a_change_in_place_is_refused_by_the_next_start(world: World) -> None:
    _hold(world, ("distro",))
    box = Sandbox(world)
    files = Files(world, box)
    program = world.orchestrator()
    for swap in CHANGES:
        box.provision(program)
        checked = files.object("distro")
        with ExitStack() as undo:
            _swap_each(world, files, program.begin("start", box.named()), {"distro": swap}, undo)
        vm = world.runs.last("start")
        world.expect(f"the distro after {swap.name}", expected=checked, found=world.vmm.guest_facts(vm).distro_file)
        box.succeed(program, "stop")
        world.processes.none("stop", world.soon())
        answer = box.fail(program, "start", "Refused")
        world.expect(f"the start after {swap.name}", expected="stale", found=answer.details.get("detail"))
        box.succeed(program, "deprovision")


@pytest.mark.spec("622.acc.3", "622p1.acc.7")
def test_a_file_that_vanishes_after_the_check_boots_all_the_same(world: World) -> None:
    """The positive control of all of them is the name: a VMM that opened that would find the decoy, or nothing."""
    _hold(world, ("kernel",))
    box = Sandbox(world, upper="ramfs")
    files = Files(world, box, ("distro", "kernel", "initrd"))
    program = world.orchestrator()
    box.provision(program)
    checked = files.object("kernel")
    gone = Swap("vanish", lambda path, decoy: _vanish(world, path, decoy), replaces=True)
    with ExitStack() as undo:
        _swap_each(world, files, program.begin("start", box.named()), {"kernel": gone}, undo)
    vm = world.runs.one("start")
    world.expect("the kernel", expected=checked, found=world.vmm.guest_facts(vm).kernel_file)
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
