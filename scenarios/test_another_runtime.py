"""A VM that another runtime started: it is named, it isn't spoken to, and it goes only by a force that says so."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace

import pytest

from harness.builds import Build
from harness.errors import Unavailable
from harness.platform import held_exit, require_held_exit
from harness.sandbox import ADAPTER, LAYERED, RAMFS, Sandbox
from harness.sut.program import Program
from harness.sut.protocol import mapping
from harness.witness.contract import Pin
from harness.world import World
from scenarios.boots import require_adapter
from scenarios.builds import BOOT, CONTROL, other

pytestmark = pytest.mark.spec("card.3", "622.acc.21")

FILES = {"openvmm": "bin/openvmm", "kernel": "guest/vmlinux", "initramfs": "guest/initramfs.cpio.gz"}
"""The parts of the runtime identity that a release states, by its line."""

CONTRACTS: dict[str, tuple[str, dict[str, object]]] = {
    "bootContract": ("3.0", dict(BOOT)),
    "controlContract": ("4.0", dict(CONTROL)),
}
"""The parts that are a build's own."""


@dataclass
class Meeting:
    """A VM that build A started and ended over, and build B."""

    box: Sandbox
    vmm: Pin
    build: Build
    program: Program
    heard: list[str]


def meet(world: World, part: str, guest: str = LAYERED) -> Meeting:
    """Have build A start a sandbox, and build B, whose runtime differs in a part, come after it."""
    box = Sandbox(world, upper=RAMFS, guest=guest)
    sums = own_release(world)
    build = other(world, *CONTRACTS.get(part, ()))
    first = world.orchestrator(Build().orchestrator(world, guest))
    box.provision(first)
    box.succeed(first, "start")
    first.kill(world.soon())
    vmm = world.processes.one("start").pin
    if part in FILES:
        upgrade(sums, FILES[part])
    # What build A's session leaves is noted once the VMM has read its end.
    if heard(world):
        world.until(lambda: heard(world)[-2:] == ["host_gone", "reset"])
    return Meeting(box, vmm, build, world.orchestrator(build.orchestrator(world, guest)), heard(world))


def own_release(world: World) -> str:
    """Give the test a statement of its release that is its own, to be upgraded in place; return its digests."""
    place = os.path.join(world.root, "images", "release")
    os.makedirs(place)
    beside, manifest = os.path.split(world.artifacts.manifest)
    sums = shutil.copy(os.path.join(beside, "SHA256SUMS"), place)
    world.artifacts = replace(world.artifacts, manifest=shutil.copy(os.path.join(beside, manifest), place))
    return sums


def upgrade(sums: str, name: str) -> None:
    """Have a release state another digest of a file."""
    with open(sums, encoding="utf-8") as file:
        lines = file.read().splitlines()
    changed = [f"{'0' * 64}  {name}" if line.endswith(f"  {name}") else line for line in lines]
    assert changed != lines
    with open(sums, "w", encoding="utf-8") as file:
        file.write("\n".join(changed) + "\n")


def heard(world: World) -> list[str]:
    """Return everything that has come to the endpoint of the test's one VM, nothing where that can't be seen."""
    vm = world.runs.one("start")
    contacts = vm.contacts()
    return contacts or [] if world.saw("what comes to an endpoint", contacts) else []


def untouched(world: World, where: str, meeting: Meeting) -> None:
    """The VM lives, its record is there, and nothing has come to its endpoint since build A."""
    found = world.processes.one(where)
    world.expect(f"{where}: the VMM", expected=meeting.vmm.pid, found=found.pin.pid)
    meeting.box.expect_kept(f"{where}: the record", "runtime.json", there=True)
    world.expect(f"{where}: what came to the endpoint", expected=meeting.heard, found=heard(world))


@pytest.mark.spec("622.acc.16", "622.scope5.b")
@pytest.mark.spec("620.scope3.m", "620.scope3.h", "620.scope3.i", "620.acc.9", "656.tests.f", "656.reattach.c")
@pytest.mark.parametrize("part", [*FILES, *CONTRACTS])
def test_each_part_of_another_runtime_is_named_and_the_guest_hears_nothing(world: World, part: str) -> None:
    meeting = meet(world, part)
    box, program = meeting.box, meeting.program
    for op in ("status", "reattach"):
        result = mapping(box.succeed(program, op).result)
        world.expect(f"{op}", expected=("mismatched", [part]), found=(result["verdict"], result["parts"]))
    for op in ("exec", "start"):
        arguments = {**box.named(), "argv": ["/bin/true"]} if op == "exec" else box.named()
        answer = box.fail(program, op, "Mismatched", arguments)
        world.expect(f"{op}: parts", expected=[part], found=answer.details.get("parts"))
    world.expect("deprovision", expected=False, found=program.call("deprovision", box.named(), world.soon()).ok)
    box.fail(program, "stop", "TimedOut", {**box.named(), "timeout": 0.05})
    untouched(world, "an unforced stop", meeting)

    shell = [*meeting.build.shell(world), "stop", "--state-dir", box.directory, "--timeout"]
    done = world.run([*shell, "0.05"])
    world.expect("stop on the command line", expected=(1, ""), found=(done.status, done.stdout))
    world.expect("its error names the part", expected=True, found=f"({part} differ)" in done.stderr)
    untouched(world, "stop on the command line", meeting)

    done = world.run([*shell, "0.05", "--force-within", "10"])
    world.expect("a forced stop", expected=(0, "forced\n", ""), found=(done.status, done.stdout, done.stderr))
    world.processes.none("a forced stop", world.soon())
    box.expect_kept("a forced stop: the record", "runtime.json", there=False)
    world.expect("what came to the endpoint", expected=meeting.heard, found=heard(world))
    world.expect("status", expected="stopped", found=box.verdict(program, "status"))
    box.succeed(program, "deprovision")


@pytest.mark.spec("622.scope5.c")
def test_an_exit_that_is_not_confirmed_keeps_the_record(world: World) -> None:
    require_adapter(world)
    try:
        require_held_exit()
    except Unavailable as error:
        pytest.skip(str(error))
    meeting = meet(world, "kernel", ADAPTER)
    box, program = meeting.box, meeting.program
    forced = {**box.named(), "timeout": 0.05, "forceWithin": 0.3}
    try:
        with held_exit(meeting.vmm.pid):
            answer = box.fail(program, "stop", "TimedOut", forced)
            world.expect("the failure", expected="still-running", found=answer.details.get("detail"))
            box.expect_kept("the record", "runtime.json", there=True)
            for op in ("start", "deprovision"):
                answer = program.call(op, box.named(), world.soon())
                world.expect(f"{op} meanwhile", expected=False, found=answer.ok)
            box.expect_kept("the record", "runtime.json", there=True)
    except Unavailable as error:
        pytest.skip(str(error))
    world.processes.none("let go of", world.soon())
    world.expect("let go of", expected="exited", found=box.verdict(program).partition(":")[0])
    box.expect_kept("let go of: the record", "runtime.json", there=False)
    world.expect("what came to the endpoint", expected=meeting.heard, found=heard(world))
    box.succeed(program, "deprovision")


@pytest.mark.case("T11")
@pytest.mark.spec("656.reattach.b", "656.reattach.f", "620.scope2.b", "620.scope2.e")
@pytest.mark.parametrize("step", ["start.spawned", "start.runtime_written"])
def test_an_interrupted_launch_of_another_runtime_is_settled_without_a_word_to_its_guest(
    world: World, step: str
) -> None:
    """Whose launch it was makes no difference to recovery; once it is committed, it is another runtime's VM."""
    box = Sandbox(world, upper=RAMFS)
    build = other(world, *CONTRACTS["bootContract"])
    committed = step == "start.runtime_written"
    if not committed:
        world.vmm.configure(pauses=["after_bind"])
    first = world.orchestrator()
    box.provision(first)
    first.crash("start", box.named(), (step, 1), "kill", world.soon())
    if not committed:
        world.channel.wait_paused("after_bind", world.soon())
    before = heard(world)
    program = world.orchestrator(build.orchestrator(world))
    verdict = box.verdict(program).partition(":")[0]
    world.expect(f"{step}, reattach", expected="mismatched" if committed else "exited", found=verdict)
    box.expect_kept(f"{step}, the journal", "launch.json", there=False)
    if committed:
        box.succeed(program, "stop", {**box.named(), "timeout": 0.05, "forceWithin": 10})
    world.processes.none(f"{step}, afterwards", world.soon())
    # A probe asks the kernel who serves, by a connection over which nothing is said.
    said = [one for one in heard(world)[len(before) :] if one not in {"connection", "host_gone", "reset"}]
    world.expect(f"{step}: what was said to the guest", expected=[], found=said)
