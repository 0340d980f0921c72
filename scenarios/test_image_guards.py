"""Where an open file keeps its name and content, whoever would swap a checked image before Ready is turned away.

The test itself is the attacker: a process beside launcher and VMM. On other systems the VMM gets the checked object
itself, and `test_image_swap.py` swaps names under it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from harness.errors import HarnessError
from harness.sandbox import Sandbox
from harness.sut.program import Program
from harness.world import World
from scenarios.boots import end
from scenarios.private import ROLES, Files

pytestmark = [pytest.mark.case("T55"), pytest.mark.windows, pytest.mark.spec("card.3", "622.acc.21")]

DENIED = "denied"
DONE = "done"


def _write(path: str, decoy: str) -> None:
    del decoy
    with open(path, "r+b"):
        pass


def _rename(path: str, decoy: str) -> None:
    del decoy
    os.rename(path, f"{path}.away")
    os.rename(f"{path}.away", path)


def _replace(path: str, decoy: str) -> None:
    os.replace(decoy, path)


def _remove(path: str, decoy: str) -> None:
    del decoy
    os.unlink(path)


ATTACKS: dict[str, Callable[[str, str], None]] = {
    "write": _write,
    "rename": _rename,
    "replace": _replace,
    "remove": _remove,
}


def attack(files: Files, role: str, names: tuple[str, ...]) -> dict[str, str]:
    """Try this and that on a file, and return how each ended."""
    ended: dict[str, str] = {}
    decoy = files.copy(role, "decoy")
    os.chmod(decoy, 0o600)
    # A link on the way to it is nobody's to guard: the VMM gets the path at its end.
    path = os.path.realpath(files.paths[role])
    for name in names:
        try:
            ATTACKS[name](path, decoy)
        except PermissionError:
            ended[name] = DENIED
        else:
            ended[name] = DONE
    return ended


def expect_each(world: World, files: Files, role: str, how: str, when: str, *, but: str = "") -> None:
    """Every attack on a file ends in the same way; a scratch is there to be written, so nobody is kept from that."""
    names = tuple(name for name in ATTACKS if name != but and (role, name) != ("scratch", "write"))
    world.expect(f"{role} {when}", expected=dict.fromkeys(names, how), found=attack(files, role, names))


def prepare(world: World, pauses: list[str]) -> tuple[Program, Sandbox, Files]:
    """Provision a sandbox with files of its own, which nothing but a guard protects."""
    if not world.host.guards_files:
        pytest.skip("an open file guards nothing here: the VMM gets the checked object itself")
    try:
        world.vmm.configure(pauses=pauses)
    except HarnessError as error:
        pytest.skip(str(error))
    box = Sandbox(world)
    files = Files(world, box)
    for path in files.paths.values():
        os.chmod(path, 0o600)
    program = world.orchestrator()
    box.provision(program)
    return program, box, files


@pytest.mark.spec("622.acc.3", "622.acc.5", "622.scope3.c", "622.scope3.d")
def test_nobody_changes_a_checked_file_before_ready_and_anybody_may_after_it(world: World) -> None:
    pauses = [*(f"before_open:{role}" for role in ROLES), "before_ready#1"]
    program, box, files = prepare(world, pauses)
    checked = {role: files.object(role) for role in ROLES}
    running = program.begin("start", box.named())
    for point in pauses:
        peer = world.channel.wait_paused(point.partition("#")[0], world.soon())
        for role in ROLES:
            expect_each(world, files, role, DENIED, f"at {point}")
        world.channel.resume(peer)
    answer = running.answer(world.soon())
    world.expect("start", expected="success", found="success" if answer.ok else str(answer))

    facts = world.vmm.guest_facts(world.runs.last("start"))
    opened = (facts.distro_file, facts.scratch_file, facts.kernel_file, facts.initrd_file)
    for role, found in zip(ROLES, opened, strict=True):
        if found is not None:
            world.expect(f"{role}: what the VMM opened", expected=checked[role], found=found)
    for role in ROLES:
        # The scratch is the VMM's for as long as it lives. What else it has open can't be replaced on every Windows.
        expect_each(world, files, role, DENIED if role == "scratch" else DONE, "after Ready", but="replace")
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    expect_each(world, files, "scratch", DONE, "after stop")
    box.fail(program, "start", "NotFound")
    box.succeed(program, "deprovision")


@pytest.mark.spec("622.acc.3", "622.scope3.c", "622.scope3.d")
@pytest.mark.parametrize("step", ["start.inputs_checked", "start.identity_recorded"])
def test_nobody_changes_a_checked_file_while_its_launcher_is_at_work(world: World, step: str) -> None:
    """A VMM that can't be held shows it as well: its launcher is, before the VMM is there and while it boots."""
    program, box, files = prepare(world, [])
    if step not in program.ready(world.soon()).steps:
        pytest.skip(f"the orchestrator can't be held at {step}")
    running = program.begin("start", box.named(), pause=(step, 1))
    running.wait_paused(world.soon())
    for role in ROLES:
        expect_each(world, files, role, DENIED, f"at {step}")
    running.resume()
    answer = running.answer(world.soon())
    world.expect("start", expected="success", found="success" if answer.ok else str(answer))
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    end(world, box, program)


@pytest.mark.spec("622.acc.5", "622.scope3.c")
def test_a_start_that_fails_lets_go_of_its_files(world: World) -> None:
    program, box, files = prepare(world, [])
    world.vmm.configure(knobs={"guest_exit_at": {"guest_boot": 125}})
    box.fail(program, "start", "LaunchFailed")
    world.processes.none("a failed start", world.soon())
    for role in ROLES:
        expect_each(world, files, role, DONE, "after the teardown")
    box.succeed(program, "deprovision")


@pytest.mark.spec("622.acc.7")
def test_a_launcher_that_ends_before_the_vmm_opens_takes_its_guards_along(world: World) -> None:
    """A known gap: the guards are the launcher's. Its VMM opens what took the name, and recovery ends that VMM."""
    point = "before_open:distro"
    program, box, files = prepare(world, [point])
    before = files.object("distro")
    program.crash("start", box.named(), ("start.identity_recorded", 1), "kill", world.soon())
    peer = world.channel.wait_paused(point, world.soon())
    os.replace(files.copy("distro", "decoy"), os.path.realpath(files.paths["distro"]))
    after = files.object("distro")
    world.expect("the name still means the checked object", expected=False, found=after == before)
    world.channel.resume(peer)
    vm = world.runs.one("start")
    if world.until(lambda: world.vmm.guest_facts(vm).distro_file is not None):
        world.expect("what the VMM opened", expected=after, found=world.vmm.guest_facts(vm).distro_file)
    second = world.orchestrator()
    world.expect("reattach", expected="exited", found=box.verdict(second).partition(":")[0])
    world.processes.none("reattach", world.soon())
    world.vmm.configure()
    answer = box.fail(second, "start", "Refused")
    world.expect("the next start", expected="stale", found=answer.details.get("detail"))
    box.succeed(second, "deprovision")
