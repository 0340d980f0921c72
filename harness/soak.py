"""Many launches and stops by one orchestrator, after which nothing may be left that wasn't there before.

Descriptors of the orchestrator, processes, files of the sandbox and memory are counted after a few cycles, which fill
every cache, and again at the end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import Finding, HarnessError
from harness.sandbox import Sandbox
from harness.witness.evidence import listing

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.sut.program import Program
    from harness.world import World

WARM = 3
"""Cycles before the first count."""


@dataclass(frozen=True, slots=True)
class Count:
    """What there is at one moment.

    Attributes:
        descriptors: What the orchestrator has open, by what it means.
        threads: How many threads the orchestrator has.
        processes: What else is alive of the test.
        files: The entries of the sandbox's directory.
        sockets: Sockets below the state root.
    """

    descriptors: tuple[str, ...]
    threads: int
    processes: tuple[str, ...]
    files: tuple[str, ...]
    sockets: tuple[str, ...]


def soak(world: World, cycles: int, *, told: Callable[[int], None] = lambda _: None) -> None:
    """Start and stop a sandbox again and again.

    Args:
        world: The world of it.
        cycles: How many times.
        told: Called with the number of cycles done.

    Raises:
        Finding: Something is left that wasn't there after the first cycles.
        HarnessError: There are fewer cycles than the first count needs.
    """
    if cycles <= WARM:
        raise HarnessError(f"a soak takes more than {WARM} cycles, not {cycles}")
    box = Sandbox(world)
    program = world.orchestrator()
    box.provision(program)
    before: Count | None = None
    for number in range(cycles):
        box.succeed(program, "start")
        if number == WARM:
            world.processes.one(f"soak, cycle {number}")
        box.succeed(program, "stop")
        world.processes.none(f"soak, cycle {number}", world.soon())
        # A fake waits for the harness to take its call, of which there is only room for so many.
        world.channel.forget()
        world.processes.forget()
        told(number + 1)
        if number + 1 == WARM:
            before = count(world, box, program)
    after = count(world, box, program)
    if before is not None:
        compare(before, after, cycles)
    box.succeed(program, "deprovision")
    world.expect("soak: what is left of the sandbox", expected=[], found=box.names())


def count(world: World, box: Sandbox, program: Program) -> Count:
    """Count what there is now."""
    open_now = world.host.descriptors(program.pid) or []
    return Count(
        descriptors=tuple(sorted(one.target for one in open_now)),
        threads=len(os.listdir(f"/proc/{program.pid}/task")) if os.path.isdir("/proc/self/task") else 1,
        processes=tuple(str(one) for one in world.processes.look()),
        files=tuple(_without_size(line) for line in listing(box.directory)),
        sockets=tuple(world.host.sockets(world.state)),
    )


def compare(before: Count, after: Count, cycles: int) -> None:
    """Hold one count against another.

    Raises:
        Finding: There is more of anything.
    """
    for what in Count.__slots__:
        had, has = getattr(before, what), getattr(after, what)
        if had != has:
            raise Finding(f"{what} after {cycles} cycles", expected=repr(had), found=repr(has))


def _without_size(line: str) -> str:
    mode, links, _, name = line.split(None, 3)
    return f"{mode} {links} {name}"
