"""Commands in a console of Windows: whatever happens to the console, the VM goes on."""

from __future__ import annotations

import pytest

from harness.errors import Unavailable
from harness.platform import KERNEL, open_terminal
from harness.platform.contract import Terminal
from harness.sandbox import RAMFS, Sandbox
from harness.world import World

pytestmark = [
    pytest.mark.case("T37"),
    pytest.mark.windows,
    pytest.mark.spec("620.scope3.a"),
    pytest.mark.skipif(KERNEL != "win32", reason="consoles are Windows' own; test_terminals.py is the other systems'"),
]

INTERRUPTED = 130
CUT_OFF = 0xC000_013A
"""The status of a program that its console has ended."""
WORKS = ("--", "/bin/sh", "-c", "echo up; sleep 60")


def typed(world: World, box: Sandbox, op: str, *after: str) -> Terminal:
    """Type a command on a sandbox in a console of its own."""
    try:
        return open_terminal(world, [*world.nvx_ref_command(), op, "--state-dir", box.directory, *after])
    except Unavailable as error:
        pytest.skip(str(error))


def happen(shown: Terminal, how: str) -> None:
    """Do to a console what a user does."""
    {"interrupt": shown.interrupt, "break": shown.cut_off, "close": shown.close}[how]()


@pytest.mark.parametrize("how", ["interrupt", "break", "close"])
def test_an_exec_ends_and_the_vm_goes_on(world: World, how: str) -> None:
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    shown = typed(world, box, "start")
    world.expect("start, then its end", expected=0, found=shown.end(world.soon())[0])
    pid = world.processes.one("start").pin.pid
    shown = typed(world, box, "exec", *WORKS)
    shown.wait("up", world.soon())
    happen(shown, how)
    expected = INTERRUPTED if how == "interrupt" else CUT_OFF
    world.expect(f"exec, {how}", expected=expected, found=shown.end(world.soon())[0])
    world.expect(f"exec, {how}: the VMM", expected=pid, found=world.processes.one(f"exec, {how}").pin.pid)
    world.expect(f"exec, {how}, exec", expected="here\n", found=box.output(program, "/bin/echo", "here"))
    box.succeed(program, "stop")
    world.processes.none(f"exec, {how}, stop", world.soon())
    box.succeed(program, "deprovision")


@pytest.mark.parametrize("how", ["break", "close"])
def test_a_vm_outlives_the_console_of_its_unfinished_start(world: World, how: str) -> None:
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    world.vmm.configure(pauses=["before_ready"])
    shown = typed(world, box, "start")
    peer = world.channel.wait_paused("before_ready", world.soon())
    happen(shown, how)
    world.expect(f"start, {how}", expected=CUT_OFF, found=shown.end(world.soon())[0])
    world.expect(f"start, {how}: the VMM", expected=peer.pid, found=world.processes.one(f"start, {how}").pin.pid)
    found = box.verdict(program, "status").partition(":")[0]
    world.expect(f"start, {how}, status", expected="indeterminate", found=found)
    world.vmm.configure()
    box.succeed(program, "start")
    world.processes.one(f"start, {how}, start")
    box.succeed(program, "stop")
    box.succeed(program, "deprovision")
