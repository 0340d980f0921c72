"""What several scenarios look at in a VM that has booted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from harness.backends.contract import GuestFacts, Vm, is_bundled
from harness.goldens import Goldens
from harness.sandbox import EROFS, EXT4, GPT, RAMFS, SECTOR, Sandbox
from harness.sut.needs import STORE
from harness.sut.program import Program
from harness.world import World

COMBINATIONS = [
    pytest.param(image_format, upper, id=f"{image_format}-{upper}")
    for image_format in (EROFS, GPT)
    for upper in (EXT4, RAMFS)
]


def ample(world: World, least: float, work: Callable[[], object], *, times: int = 10) -> float:
    """Return the seconds of an operation that fails at its deadline, and must have come far by then on any machine.

    Args:
        world: The test's world.
        least: What they are on a machine that has nothing else to do, a real guest's boot included.
        work: Something that takes at least as long as that operation takes to come so far; how long it takes now tells
            how busy the machine is.
        times: How many times as long as that the operation gets.
    """
    deadline = world.soon()
    before = deadline.remaining()
    work()
    took = before - deadline.remaining()
    return max(least, times * took) if is_bundled(world.backend) else least


def require_adapter(world: World) -> None:
    """Skip where no guest runs the adapter's agent."""
    if world.artifacts.adapter is None:
        pytest.skip("no initramfs here runs the test adapter's agent")


def end(world: World, box: Sandbox, program: Program) -> None:
    """Stop a sandbox and remove it, with nothing left."""
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    box.succeed(program, "deprovision")
    world.expect("deprovision", expected=[], found=box.names())


def options_as_lines(argv: list[str]) -> list[str]:
    """Return arguments one option a line, its value beside it."""
    lines: list[str] = []
    for word in argv:
        if word.startswith("--") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def expect_found(world: World, box: Sandbox, facts: GuestFacts, goldens: Goldens, golden: str) -> None:
    """The guest selected what the plan says, and the VMM opened the very files that were checked."""
    where = f"{box.image_format} with {box.upper}: the guest's"

    def fact(name: str, expected: object, found: object) -> None:
        if world.saw(name, found):
            world.expect(f"{where} {name}", expected=expected, found=found)

    fact("format", box.image_format, facts.image_format)
    fact("upper", box.upper, facts.upper)
    fact("identity", box.identity, facts.identity)
    fact("block size", SECTOR, facts.block_size)
    fact("scratch device", box.scratch is not None, facts.scratch)
    fact("distro file", box.object(box.distro), facts.distro_file)
    if box.scratch is not None:
        fact("scratch file", box.object(box.scratch), facts.scratch_file)
    if facts.command_line is None:
        world.saw("command line", None)
    elif world.declares(STORE):
        goldens.check(f"{golden}/cmdline.txt", facts.command_line.split(" "))


def expect_allowlist(world: World, box: Sandbox, vm: Vm) -> None:
    """The VMM got 0, 1 and 2 and what its arguments name, under the same numbers, and nothing else."""
    table = vm.descriptors()
    if table is None:
        world.saw("the VMM's descriptors", None)
        return
    named = {int(number) for word in vm.argv() for number in re.findall(r"/proc/self/fd/(\d+)", word)}
    objects = {one.number: (one.device, one.inode) for one in table}
    if world.host.ownership_is_a_handle and box.scratch is not None:
        owning = [number for number, what in objects.items() if number > 2 and what == box.object(box.scratch)]
        world.expect("the VMM's handles that own the scratch", expected=1, found=len(owning))
        named |= set(owning)
    world.expect("the VMM's descriptors", expected=sorted({0, 1, 2} | named), found=sorted(objects))
    if not world.declares(STORE):
        world.expect("the VMM's output", expected=objects[1], found=objects[2])
        return
    log = box.object(box.path("openvmm.log"))
    world.expect("the VMM's output", expected=(log, log), found=(objects[1], objects[2]))


def entry(line: str) -> str:
    mode, links, _, name = line.split(None, 3)
    return f"{mode} {links} {name}"


def in_the_guest(path: str) -> str:
    """Return where a guest has what the host has at a path: drives are below /mnt."""
    drive, rest = os.path.splitdrive(path)
    return f"/mnt/{drive[0].lower()}{rest}".replace(os.sep, "/") if drive else path
