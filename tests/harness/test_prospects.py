"""Whoever waits for a VMM that is dead learns so at once, with its status and the last of its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from harness import prospects, python, runs
from harness.deadline import Clock, Deadline
from harness.errors import Finding, Gone
from harness.sandbox import RAMFS, Sandbox
from harness.sut.process import Started
from harness.world import World
from tests.harness.stubs import SOON, host

# An orchestrator that starts a VMM, says so, and never looks at it again.
BLIND = """
import json, os, subprocess, sys

def say(**message):
    print(json.dumps(message), flush=True)

say(hello={"protocol": 1, "operations": ["provision", "start", "stop"], "steps": ["start.spawned"],
           "needs": ["ram-upper"], "ways": []})
for line in sys.stdin:
    request = json.loads(line)
    box = os.path.join(request["args"]["root"], request["args"]["name"])
    if request["op"] == "provision":
        os.mkdir(box, 0o700)
        command = request["args"]["openvmm"]
        say(id=request["id"], ok=True, result={})
        continue
    if request["op"] == "start":
        with open(os.path.join(box, "any.txt"), "ab") as log:
            child = subprocess.Popen([*command, *REFUSED], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if REAPS:
            child.wait()
        say(id=request["id"], step="start.spawned", hit=1)
    sys.stdin.read()
"""
FOREVER = 3600
signals = pytest.mark.skipif(sys.platform == "win32", reason="no process is ended by a signal there")


def blind(world: World, *words: str, reaps: bool) -> Started:
    body = f"REFUSED = {[*words]!r}\nREAPS = {reaps!r}\n{BLIND}"
    script = os.path.join(world.root, "images", "blind.py")
    os.makedirs(os.path.dirname(script), exist_ok=True)
    return Started(python.write_script(script, packages=(), body=body), environment=world.environment())


@pytest.mark.parametrize("reaps", [False, True], ids=["a zombie", "reaped"])
def test_a_vmm_that_nobody_minds_is_told_with_its_status_and_its_log(world: World, *, reaps: bool) -> None:
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator(blind(world, "--no-such-option", reaps=reaps))
    box.provision(program)
    program.begin("start", box.named())
    with pytest.raises(
        Gone, match=r"found VMM pid \d+ ended with status 2; its log ends with .error: .*--no-such-option"
    ):
        world.channel.wait_paused("before_bind", world.soon(FOREVER))
    (told,) = world.runs.told()
    assert (told.state, told.status, told.silent) == ("ended", 2, False)
    program.kill(world.soon())


def test_one_that_dies_on_its_way_to_its_first_word_is_known_as_well(world: World) -> None:
    with open(world.vmm.needle, encoding="utf-8") as file:
        text = file.read()
    with open(world.vmm.needle, "w", encoding="utf-8") as file:
        file.write(text.replace("from fake_openvmm", "from no_such_package"))
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator(blind(world, reaps=True))
    box.provision(program)
    program.begin("start", box.named())
    with pytest.raises(Gone, match=r"ended with status 1, before it said hello; its log ends with \"ModuleNotFound"):
        world.channel.wait_paused("before_bind", world.soon(FOREVER))
    program.kill(world.soon())


@pytest.mark.case("T65")
def test_the_moments_for_an_end_and_for_a_beginning_are_stretched_as_every_deadline_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def until(_: object, deadline: Deadline) -> None:
        seen.append(deadline.seconds)

    for module in (prospects, runs):
        monkeypatch.setattr(module, "until", until)
    world.runs.clock = Clock(7)
    prospects.Prospects(world.vmm, world.processes, world.runs, []).told([])
    with pytest.raises(Finding, match="found none"):
        world.runs.last("nothing")
    assert seen == [7 * prospects.ENDING, 7 * runs.BEGINNING]


def test_a_start_that_fails_before_its_spawn_is_not_waited_for(world: World) -> None:
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    program.begin("start", box.named())
    with pytest.raises(Gone, match="found that no VMM was started"):
        world.channel.wait_paused("before_bind", world.soon(FOREVER))


@signals
def test_a_vmm_that_dies_during_its_stop_is_not_waited_for(world: World) -> None:
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    world.vmm.configure(knobs={"crash_at": {"before_stopped": signal.SIGABRT}})
    box.provision(program)
    box.succeed(program, "start")
    running_stop = program.begin("stop", box.named())
    with pytest.raises(Gone, match="was ended by signal 6; its log "):
        world.channel.wait_paused("before_exit", world.soon(FOREVER))
    running_stop.answer(world.soon())
    program.call("stop", box.named(), world.soon())
    box.succeed(program, "deprovision")


def test_a_vmm_of_an_earlier_start_that_has_died_says_nothing_of_the_next(world: World) -> None:
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    world.vmm.configure(knobs={"exit_at": {"before_bind": 3}})
    box.fail(program, "start", "LaunchFailed")
    world.vmm.configure(pauses=["after_bind"])
    running_start = program.begin("start", box.named())
    world.channel.resume(world.channel.wait_paused("after_bind", world.soon()))
    assert running_start.answer(world.soon()).ok
    with pytest.raises(Finding, match=r"expected exactly one VMM started so far, found 2: VMM pid \d+ ended with s"):
        world.runs.one("start")
    assert world.runs.last("start").pid == world.processes.one("start").pin.pid
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    box.succeed(program, "deprovision")


def test_none_where_one_must_be_is_a_finding(world: World) -> None:
    for look in (world.runs.one, world.runs.last):
        with pytest.raises(Finding, match=r"^start: expected (exactly one|a) VMM.*, found none$"):
            look("start")
    with pytest.raises(Finding, match="expected exactly one child of a VMM alive, found none"):
        world.processes.worker("start")


@signals
@pytest.mark.parametrize(("ending", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_the_status_of_a_child_is_told_while_nobody_has_taken_it(ending: str, status: int) -> None:
    code = f"import os, sys\nsys.stdin.read()\n{ending}"
    child = subprocess.Popen([python.interpreter(), "-I", "-c", code], stdin=subprocess.PIPE)
    pin = host().pin(child.pid)
    assert pin is not None
    before = pin.status()
    assert child.stdin is not None
    child.stdin.close()
    assert pin.wait(SOON(60))
    found = pin.status()
    child.wait()
    pin.close()
    assert (before, found) == (None, status)
