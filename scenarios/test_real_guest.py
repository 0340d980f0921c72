"""What a guest of its own shows: a kernel that dies without a word, a dirty disk, a machine that panics or hangs.

What a model can show too runs on every backend.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess

import pytest

from harness.backends.contract import EVIDENCE, KNOB, LINUX, PROGRAMS, UNSEEN, WORKER
from harness.sandbox import EXT4, RAMFS, Sandbox
from harness.sut.program import Program
from harness.sut.protocol import called
from harness.witness import ext4
from harness.witness.processes import claim_is_held
from harness.world import World
from scenarios.boots import end

LIMIT = 2048
SHORT = 1.0
"""Seconds that an operation gets that must not succeed, beyond what a boot takes."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"
LEFT = ["config.json", "lifecycle.lock", "openvmm.log"]


def with_line(world: World, box: Sandbox, size: int, used: int) -> str:
    """Have a VMM get so long an effective line, past the launcher, which would refuse it; return what is added."""
    pad = "x" * (size - used - 1)
    box.extra["openvmm"] = [*world.vmm.command, "--cmdline", pad]
    return pad


def plain_line(world: World, program: Program) -> tuple[str, str]:
    """Boot a sandbox as it is; return its effective line, and the launcher's part of that."""
    box = Sandbox(world, "first", upper=RAMFS)
    box.provision(program)
    box.succeed(program, "start")
    vm = world.runs.last("start")
    line, argv = world.vmm.guest_facts(vm, box.look(program)).command_line, vm.argv()
    end(world, box, program)
    if line is None:
        pytest.skip(f"the effective line: {UNSEEN}")
    return line, argv[argv.index("--cmdline") + 1]


@pytest.mark.case("T50")
@pytest.mark.spec("622.scope6.a", "622.scope6.d", "622.acc.19")
def test_the_longest_line_reaches_the_guest_and_a_longer_one_is_refused(world: World) -> None:
    world.need(LINUX)
    program = world.orchestrator()
    plain, own = plain_line(world, program)
    for size in (LIMIT - 2, LIMIT - 1):
        box = Sandbox(world, f"b{size}", upper=RAMFS)
        pad = with_line(world, box, size, len(plain.encode()))
        box.provision(program)
        box.succeed(program, "start")
        shown = box.output(program, "/bin/cat", "/proc/cmdline")
        line = world.vmm.guest_facts(world.runs.last("start")).command_line
        end(world, box, program)
        world.expect(f"bytes of {size} in the guest", expected=size, found=len(shown.encode()) - 1)
        whole = plain.replace(own, f"{pad} {own}", 1)
        world.expect(f"the line of {size} in the guest", expected=f"{whole}\n", found=shown)
        if line is not None:
            world.expect(f"the line of {size} that the VMM made", expected=whole, found=line)
    box = Sandbox(world, "refused", upper=RAMFS)
    with_line(world, box, LIMIT, len(plain.encode()))
    box.provision(program)
    answer = box.fail(program, "start", "LaunchFailed")
    found = (answer.details.get("category"), answer.details.get("status"))
    world.expect(f"a line of {LIMIT}", expected=("vmm-failure", 1), found=found)
    world.processes.none(f"a line of {LIMIT}", world.soon())
    box.succeed(program, "deprovision")


@pytest.mark.case("T50")
@pytest.mark.spec("622.scope6.a", "622.acc.19")
def test_a_line_that_is_too_long_for_linux_is_a_silent_guest(world: World) -> None:
    """With its limit off, the VMM boots a guest that dies without a word: only the deadline of the start sees it."""
    world.need(LINUX, f"{KNOB}old_limit")
    program = world.orchestrator()
    plain, _ = plain_line(world, program)
    world.vmm.configure(knobs={"old_limit": True})
    box = Sandbox(world, "silent", upper=RAMFS)
    with_line(world, box, LIMIT, len(plain.encode()))
    box.provision(program)
    box.fail(program, "start", "LaunchFailed", {**box.named(), "timeout": world.patience(SHORT, up=False)})
    world.processes.none("the start of a silent guest", world.soon())
    world.expect("what stays of a silent guest", expected=LEFT, found=box.names())
    vm = world.runs.last("start")
    world.expect("sessions with a silent guest", expected=[], found=vm.attachments())
    world.expect("words of a silent guest", expected=None, found=world.vmm.guest_facts(vm).kernel)
    box.succeed(program, "deprovision")


def checked(scratch: str) -> int:
    """Return the status of a check that repairs nothing: 0 for a file system that is clean and whole."""
    tool = shutil.which("e2fsck", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if tool is None:
        pytest.skip("e2fsck is missing (Debian: e2fsprogs)")
    return subprocess.run([tool, "-f", "-n", scratch], capture_output=True, check=False).returncode


@pytest.mark.spec("622.scope2.f")
def test_a_scratch_is_clean_after_a_stop_and_is_recovered_after_a_kill(world: World) -> None:
    box = Sandbox(world, upper=EXT4)
    scratch = str(box.scratch)
    program = world.orchestrator()
    box.provision(program)
    world.expect("a new scratch", expected=(False, 0), found=(ext4.needs_recovery(scratch), checked(scratch)))
    box.succeed(program, "start")
    write(box, program, "one")
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    found = (ext4.needs_recovery(scratch), checked(scratch))
    world.expect("the scratch after a stop", expected=(False, 0), found=found)

    box.succeed(program, "start")
    write(box, program, "two")
    world.processes.one("the second start").pin.end()
    world.processes.none("the kill", world.soon())
    world.expect("the scratch after a kill: dirty", expected=True, found=ext4.needs_recovery(scratch))

    box.succeed(program, "start")
    kept = box.output(program, "/bin/sh", "-c", 'cat "$HOME/one"; test -d "$HOME"')
    world.expect("what was written before the stop", expected="one\n", found=kept)
    end(world, box, program)
    found = (ext4.needs_recovery(scratch), checked(scratch))
    world.expect("the scratch after its recovery and a stop", expected=(False, 0), found=found)


def write(box: Sandbox, program: Program, name: str) -> None:
    box.output(program, "/bin/sh", "-c", f'echo {name} > "$HOME/{name}" && sync')


GUESTS = pytest.mark.parametrize("knob", ["guest_dead_at", "guest_hangs_at"])


@GUESTS
@pytest.mark.spec("622.acc.14")
def test_a_guest_that_dies_or_hangs_before_it_attaches_fails_the_start(world: World, knob: str) -> None:
    world.vmm.configure(knobs={knob: ["guest_attach"]})
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator()
    box.provision(program)
    box.fail(program, "start", "LaunchFailed", {**box.named(), "timeout": world.patience(SHORT, up=False)})
    world.processes.none(f"a start with {knob}", world.soon())
    world.expect(f"what stays of a start with {knob}", expected=LEFT, found=box.names())
    world.vmm.configure()
    box.succeed(program, "start")
    end(world, box, program)


@GUESTS
@pytest.mark.spec("620.scope5.b", "656.stop.c")
def test_a_guest_that_dies_or_hangs_when_it_is_to_stop_is_ended_by_force_alone(world: World, knob: str) -> None:
    world.vmm.configure(knobs={knob: ["before_stopped"]})
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    vmm = world.processes.one("start").pin.pid
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    box.fail(program, "stop", "TimedOut", {**box.named(), "timeout": SHORT})
    world.expect("the VMM after the stop", expected=vmm, found=world.processes.one("stop").pin.pid)
    world.expect("the verdict after the stop", expected="live", found=box.verdict(program))
    forced = box.succeed(program, "stop", {**box.named(), "timeout": 0.5, "forceWithin": 10})
    world.expect("the forced stop", expected="forced", found=forced.result.get("outcome"))
    world.processes.none("the forced stop", world.soon())
    box.succeed(program, "deprovision")


@GUESTS
@pytest.mark.spec("620.scope5.b", "656.stop.c")
def test_a_guest_that_dies_or_hangs_under_a_program_is_ended_by_force_alone(world: World, knob: str) -> None:
    """Nobody hears of it but by waiting, so the one who waits must be let go with the VMM, whoever ends that."""
    world.need(f"{EVIDENCE}requests")
    world.vmm.configure(knobs={knob: ["before_exec"]})
    box = Sandbox(world, upper=RAMFS)
    one, two = world.orchestrator(), world.orchestrator()
    box.provision(one)
    box.succeed(one, "start")
    vmm = world.processes.one("start").pin.pid
    running = one.begin("exec", {**box.named(), "argv": ["/bin/true"]})
    asked = world.until(lambda: "EXEC" in (world.runs.last("start").requests() or []))
    world.expect("the guest was asked", expected=True, found=asked)
    answer = box.fail(two, "stop", "TimedOut", {**box.named(), "timeout": SHORT})
    world.expect("the reason", expected=True, found="in use" in answer.message)
    world.expect("the VMM after the stop", expected=vmm, found=world.processes.one("stop").pin.pid)
    world.expect("the verdict after the stop", expected="live", found=box.verdict(two))
    forced = box.succeed(two, "stop", {**box.named(), "timeout": 0.5, "forceWithin": 10})
    world.expect("the forced stop", expected="forced", found=forced.result.get("outcome"))
    world.processes.none("the forced stop", world.soon())
    world.expect(
        "the program of a forced VM", expected="SessionFailed", found=called(running.answer(world.soon()).code)
    )
    world.vmm.configure()
    box.succeed(one, "start")
    world.expect("a program after another start", expected="up\n", found=box.output(one, "/bin/echo", "up"))
    end(world, box, one)


@pytest.mark.spec("620.scope2.d")
def test_the_worker_of_a_vmm_never_outlives_it_and_holds_the_log_s_claim(world: World) -> None:
    world.need(WORKER)
    box = Sandbox(world)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    vmm = world.processes.one("start").pin
    log = os.stat(box.path("openvmm.log"))
    worker = world.processes.worker("start").pin
    held = world.host.holders(log.st_dev, log.st_ino, [vmm.pid, worker.pid])
    world.expect("holders of the log", expected={vmm.pid, worker.pid}, found=set(held))
    vmm.end()
    world.expect("the worker's end after its VMM's", expected=True, found=worker.wait(world.soon()))
    held_on = claim_is_held(world.host, box.path("openvmm.log"), world.soon())
    world.expect("the claim after both", expected=False, found=held_on)
    world.expect("the verdict", expected="exited", found=box.verdict(program).partition(":")[0])

    box.succeed(program, "start")
    world.processes.worker("the next start").pin.end()
    world.processes.none("the end of a worker", world.soon())
    with open(box.path("outcome.json"), encoding="utf-8") as file:
        outcome = json.load(file)["outcome"]
    found = (outcome["category"], outcome["status_code"])
    world.expect("the report of a VMM without a worker", expected=("guest-exit", 1), found=found)
    world.expect("its verdict", expected="exited", found=box.verdict(program).partition(":")[0])
    box.succeed(program, "deprovision")


def test_the_guest_is_linux_with_an_overlay_of_what_the_plan_says(world: World) -> None:
    world.need(LINUX)
    box = Sandbox(world, upper=EXT4)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    look = box.look(program)
    facts = world.vmm.guest_facts(world.runs.last("start"), look)
    if world.saw("what is mounted around the workload", facts.mounts):
        mounts = [line.split() for line in (facts.mounts or "").splitlines()]
        kinds = {one[1]: (one[2], one[3].split(",")[0]) for one in mounts}
        world.expect("the distro's mount", expected=("erofs", "ro"), found=kinds.get("/nvx/layer/distro"))
        world.expect("the upper's mount", expected=("ext4", "rw"), found=kinds.get("/nvx/upper"))
        world.expect("the root's mount", expected=("overlay", "rw"), found=kinds.get("/nvx/root"))
    if world.saw("the kernel's release", facts.kernel):
        world.expect("the release", expected=f"{facts.kernel}\n", found=box.output(program, "/bin/uname", "-r"))
    if os.path.exists(BOOT_ID) and world.saw("the guest's boot", here := look("/bin/cat", BOOT_ID)):
        with open(BOOT_ID, encoding="ascii") as file:
            world.expect("another machine than this one", expected=True, found=here != file.read())
    who = box.output(program, "/bin/sh", "-c", "id -u; id -g; id -G; echo $$; hostname")
    world.expect("the workload", expected="65534\n65534\n65534\n1\nnvx-sandbox\n", found=who)
    answer = program.call("exec", {**box.named(), "argv": ["/bin/touch", "/proof"]}, world.soon())
    world.expect("a workload without rights", expected=1, found=answer.result.get("status"))
    end(world, box, program)


def run(box: Sandbox, program: Program, *argv: str, **more: object) -> tuple[object, object, str, str]:
    """Run a program in the guest; return category, status, output and errors."""
    answer = box.succeed(program, "exec", {**box.named(), "argv": list(argv), **more})
    texts = [base64.b64decode(str(answer.result[name])).decode() for name in ("stdout", "stderr")]
    return answer.result.get("category"), answer.result.get("status"), texts[0], texts[1]


def test_a_workload_gets_exactly_what_was_asked_for(world: World) -> None:
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    words = ("/bin/sh", "-c", 'echo "$A-$B-$HOME-"; pwd')
    shown = run(box, program, *words, environment=["A=1", "B=x=y"], cwd="/tmp")
    world.expect("variables and directory", expected=("exit", 0, "1-x=y--\n/tmp\n", ""), found=shown)
    world.expect("a status", expected=("exit", 37, "", ""), found=run(box, program, "/bin/sh", "-c", "exit 37"))
    category, status, _, told = run(box, program, "/bin/true", cwd="/nowhere/at/all")
    world.expect("a directory that isn't there", expected=("exit", 125), found=(category, status))
    world.expect("it is told", expected=True, found="/nowhere/at/all" in told)
    category, status, _, told = run(box, program, "/bin/no-such-program")
    world.expect("a program that isn't there", expected=("exit", 125, True), found=(category, status, bool(told)))
    late = run(box, program, "/bin/sh", "-c", "echo begun; sleep 600", timeoutMs=1500)
    world.expect("a workload that is late", expected=("timeout", 124, "begun\n", ""), found=late)
    end(world, box, program)


def test_a_workload_may_say_so_much_and_no_more(world: World) -> None:
    world.need(PROGRAMS)
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    big = run(box, program, "/bin/sh", "-c", "dd if=/dev/zero bs=1024 count=1024 2>/dev/null | tr '\\0' x")
    world.expect("as much as may be said", expected=("exit", 0, 1 << 20), found=(big[0], big[1], len(big[2])))
    more = run(box, program, "/bin/sh", "-c", "dd if=/dev/zero bs=1024 count=1025 2>/dev/null")
    world.expect("more than may be said", expected=("output-limit", 125), found=more[:2])
    end(world, box, program)
