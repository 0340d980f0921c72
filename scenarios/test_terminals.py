"""Commands in a terminal: Ctrl-C ends what was begun and nothing else, and a VM outlives every window."""

from __future__ import annotations

import signal

import pytest

from harness.platform import KERNEL, open_terminal
from harness.platform.contract import Terminal
from harness.sandbox import RAMFS, Sandbox
from harness.world import World

pytestmark = [
    pytest.mark.case("T36"),
    pytest.mark.spec("620.scope3.a"),
    pytest.mark.skipif(KERNEL == "win32", reason="Windows has consoles instead: test_consoles.py"),
]

INTERRUPTED = 130
WORKS = ("--", "/bin/sh", "-c", "echo up; sleep 60")


def typed(world: World, box: Sandbox, op: str, *after: str) -> Terminal:
    """Type a command on a sandbox in a terminal of its own."""
    return open_terminal(world, [*world.nvx_ref_command(), op, "--state-dir", box.directory, *after])


def running(world: World) -> tuple[Sandbox, int]:
    """Start a sandbox and end its orchestrator; return the VMM's number."""
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    program.kill(world.soon())
    return box, world.processes.one("start").pin.pid


def lives_on(world: World, box: Sandbox, pid: int, where: str) -> None:
    """The same VM runs, serves, and is stopped."""
    program = world.orchestrator()
    world.expect(f"{where}: the VMM", expected=pid, found=world.processes.one(where).pin.pid)
    world.expect(f"{where}, exec", expected="here\n", found=box.output(program, "/bin/echo", "here"))
    box.succeed(program, "stop")
    world.processes.none(f"{where}, stop", world.soon())
    box.succeed(program, "deprovision")


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_an_exec_ends_in_the_guest_too_and_the_vm_goes_on(world: World, how: str) -> None:
    box, pid = running(world)
    shown = typed(world, box, "exec", *WORKS)
    shown.wait("up", world.soon())
    shown.interrupt() if how == "interrupt" else shown.close()
    status, said = shown.end(world.soon())
    expected = (INTERRUPTED, True) if how == "interrupt" else (-signal.SIGHUP, False)
    world.expect(f"exec, {how}", expected=expected, found=(status, "Interrupted\n" in said))
    asked = world.runs.one("start").requests()
    if world.saw("requests", asked):
        # A session that ends cancels by itself.
        world.expect(f"exec, {how}: the guest", expected=how == "interrupt", found="CANCEL" in (asked or ()))
    lives_on(world, box, pid, f"exec, {how}")


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_a_start_is_undone_or_recovered(world: World, how: str) -> None:
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    world.vmm.configure(pauses=["before_ready"])
    shown = typed(world, box, "start")
    peer = world.channel.wait_paused("before_ready", world.soon())
    if how == "interrupt":
        shown.interrupt()
        status, said = shown.end(world.soon())
        world.expect("start, Ctrl-C", expected=(INTERRUPTED, True), found=(status, said.endswith("Interrupted\n")))
        world.processes.none("start, Ctrl-C", world.soon())
        box.expect_names("start, Ctrl-C", ["config.json", "lifecycle.lock", "openvmm.log"])
    else:
        shown.close()
        world.expect("start, closed", expected=-signal.SIGHUP, found=shown.end(world.soon())[0])
        world.expect("start, closed: the VMM", expected=peer.pid, found=world.processes.one("start, closed").pin.pid)
        found = box.verdict(program, "status").partition(":")[0]
        world.expect("start, closed, status", expected="indeterminate", found=found)
    world.vmm.configure()
    box.succeed(program, "start")
    world.processes.one(f"start, {how}, start")
    box.succeed(program, "stop")
    box.succeed(program, "deprovision")


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_a_stop_that_was_given_up_keeps_the_record_until_the_vm_has_ended(world: World, how: str) -> None:
    world.vmm.configure(pauses=["before_stopped"])
    box, pid = running(world)
    shown = typed(world, box, "stop")
    peer = world.channel.wait_paused("before_stopped", world.soon())
    shown.interrupt() if how == "interrupt" else shown.close()
    expected = INTERRUPTED if how == "interrupt" else -signal.SIGHUP
    world.expect(f"stop, {how}", expected=expected, found=shown.end(world.soon())[0])
    world.expect(f"stop, {how}: the VMM", expected=pid, found=world.processes.one(f"stop, {how}").pin.pid)
    box.expect_kept(f"stop, {how}", "runtime.json", there=True)
    world.channel.resume(peer)
    world.processes.none(f"stop, {how}, let go", world.soon())
    program = world.orchestrator()
    world.expect("then status", expected="exited", found=box.verdict(program, "status").partition(":")[0])
    box.succeed(program, "stop")
    box.succeed(program, "deprovision")
