"""Sequences that went wrong elsewhere, as public reports of other runtimes tell them, played on this one.

None is about a single step: each is what several parties do to one sandbox, one after the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat

import pytest

from harness.sandbox import RAMFS, Sandbox
from harness.sut.program import Program
from harness.world import World
from scenarios.boots import ample

pytestmark = pytest.mark.spec("620.acc.3", "620.scope3.p")

SHORTLY = {"timeout": 1.0}
BY_FORCE = {"timeout": 1.0, "forceWithin": 20.0}


def started(world: World, box: Sandbox) -> Program:
    """Provision and start a sandbox, and return the orchestrator that did."""
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    return program


def end(world: World, where: str) -> None:
    """End the VMM as the kernel does when it runs out of memory."""
    world.processes.one(where).pin.end()
    world.processes.none(where, world.soon())


@pytest.mark.case("T12", "T23")
def test_a_stop_that_was_killed_and_whose_vmm_died_then_leaves_nothing_stuck(world: World) -> None:
    """An orchestrator is killed while it waits for a guest that was asked; then the VMM is killed as well."""
    world.vmm.configure(pauses=["before_stopped"])
    box = Sandbox(world, upper=RAMFS)
    first = started(world, box)
    first.begin("stop", box.named())
    world.channel.wait_paused("before_stopped", world.soon())
    first.kill(world.soon())
    second = world.orchestrator()
    world.expect("stop killed, status", expected="live", found=box.verdict(second, "status"))
    end(world, "the VMM is killed")
    world.expect("both killed, status", expected="exited", found=box.verdict(second, "status").partition(":")[0])
    box.succeed(second, "stop")
    world.expect("both killed, stop", expected=set(), found={"runtime.json", "control.sock"} & set(box.names()))
    world.vmm.configure()
    box.succeed(second, "start")
    box.succeed(second, "stop")
    box.succeed(second, "deprovision")


@pytest.mark.case("T18")
def test_a_vmm_that_is_slow_to_go_is_neither_used_again_nor_joined_by_another(world: World) -> None:
    """Its guest has stopped, its report is out, and the process is still there."""
    world.vmm.configure(pauses=["before_exit"])
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    late = ample(world, 1.0, lambda: box.succeed(program, "start"))
    box.fail(program, "stop", "TimedOut", {**box.named(), "timeout": late})
    peer = world.channel.wait_paused("before_exit", world.soon())
    world.expect("on its way out, status", expected="live", found=box.verdict(program, "status"))
    box.fail(program, "start", "AlreadyExists")
    box.fail(program, "deprovision", "AlreadyExists")
    world.processes.one("on its way out")
    world.channel.resume(peer)
    world.processes.none("let go", world.soon())
    world.vmm.configure()
    box.succeed(program, "start")
    world.expect("the next one, exec", expected="here\n", found=box.output(program, "/bin/echo", "here"))
    box.succeed(program, "stop")
    box.succeed(program, "deprovision")


@pytest.mark.case("T07a")
def test_a_cleaner_of_old_files_takes_all_but_the_configuration_and_no_second_vmm_gets_the_disk(world: World) -> None:
    """Record, log, socket and capability of a running VM are gone: only the disk still says that somebody has it."""
    if world.host.guards_files:
        pytest.skip("a log that is written to can't be removed here: it still says that somebody has it")
    box = Sandbox(world)
    program = started(world, box)
    vmm = world.processes.one("start")
    for name in box.names():
        if name not in {"config.json", "lifecycle.lock"}:
            os.unlink(box.path(name))
    answer = program.call("start", box.named(), world.soon())
    world.expect("cleaned, start", expected=False, found=answer.ok)
    world.expect("cleaned, what is said", expected=True, found=str(box.scratch) in str(answer))
    world.expect("cleaned, the VMM", expected=vmm.pin.pid, found=world.processes.one("cleaned, start").pin.pid)
    end(world, "the VMM is ended by hand")
    box.succeed(program, "start")
    box.succeed(program, "stop")
    box.succeed(program, "deprovision")


@pytest.mark.spec("620.scope3.h", "620.scope3.i")
def test_a_frozen_vmm_is_waited_for_as_long_as_was_said_and_ended_by_force_alone(world: World) -> None:
    """It can be connected to and answers nothing: each operation keeps to its deadline, and nobody thaws it."""
    if not hasattr(signal, "pidfd_send_signal"):
        pytest.skip("no signal freezes a process here")
    box = Sandbox(world, upper=RAMFS)
    program = started(world, box)
    vmm = world.processes.one("start")
    signal.pidfd_send_signal(vmm.pin.fileno(), signal.SIGSTOP)
    world.until(lambda: frozen(world, vmm.pin.pid))
    world.expect("frozen, status", expected="live", found=box.verdict(program, "status"))
    box.fail(program, "stop", "TimedOut", {**box.named(), **SHORTLY})
    box.fail(program, "start", "AlreadyExists", {**box.named(), **SHORTLY})
    world.expect("frozen, still", expected=True, found=frozen(world, vmm.pin.pid))
    answer = box.succeed(program, "stop", {**box.named(), **BY_FORCE})
    world.expect("frozen, stop by force", expected="forced", found=answer.result["outcome"])
    world.processes.none("frozen, stop by force", world.soon())
    box.succeed(program, "start")
    box.succeed(program, "stop")
    box.succeed(program, "deprovision")


def frozen(world: World, pid: int) -> bool:
    """Tell whether a process is stopped by a signal."""
    stat = world.host.stat(pid)
    return stat is not None and stat.state == "T"


def no_files(place: str, names: list[str]) -> list[str]:
    """Return what a backup leaves out: endpoints and the like."""
    kinds = {name: os.lstat(os.path.join(place, name)).st_mode for name in names}
    return [name for name, mode in kinds.items() if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)]


@pytest.mark.case("T01")
@pytest.mark.parametrize("at", [None, "start.spawned", "start.identity_recorded"])
def test_a_copy_of_a_sandbox_never_touches_the_vmm_of_the_original(world: World, at: str | None) -> None:
    """A backup that was taken while it ran, or while it was starting, is put beside it and used."""
    box, copy = Sandbox(world, upper=RAMFS), Sandbox(world, "copy", upper=RAMFS)
    program = world.orchestrator()
    box.provision(program)
    if at is None:
        box.succeed(program, "start")
    else:
        world.vmm.configure(pauses=["after_bind"])
        program.crash("start", box.named(), (at, 1), "exit", world.soon())
        world.channel.wait_paused("after_bind", world.soon())
        program = world.orchestrator()
    vmm = world.processes.one("the original")
    shutil.copytree(box.directory, copy.directory, ignore=no_files)
    before = copy.names()
    world.expect("the copy, status", expected="indeterminate", found=copy.verdict(program, "status").partition(":")[0])
    for op in ("start", "stop", "deprovision"):
        copy.fail(program, op, "Indeterminate", {**copy.named(), **BY_FORCE} if op == "stop" else None)
        world.expect(f"the copy, {op}: what is there", expected=before, found=copy.names())
    world.expect("the original's VMM", expected=vmm.pin.pid, found=world.processes.one("the copy used").pin.pid)
    for name in {"launch.json", "runtime.json"} & set(before):
        os.unlink(copy.path(name))
    copy.succeed(program, "deprovision")
    world.expect("the original's VMM", expected=vmm.pin.pid, found=world.processes.one("the copy removed").pin.pid)
    if at is None:
        box.succeed(program, "stop")
    else:
        world.expect("the original", expected="exited", found=box.verdict(program).partition(":")[0])
    world.processes.none("the original", world.soon())
    box.succeed(program, "deprovision")
