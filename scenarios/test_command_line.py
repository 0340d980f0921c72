"""The kernel command line: what the VMM adds must fit too, and no token is guessed at."""

from __future__ import annotations

import json
import os

import pytest

from harness.backends.contract import ENDS, UNSEEN
from harness.completed import Completed
from harness.goldens import Goldens
from harness.sandbox import EROFS, EXT4, GPT, RAMFS, Sandbox
from harness.sut.protocol import mapping
from harness.world import World
from scenarios.boots import end

LIMIT = 2048
BUDGET = 1024
DISTRO = "nvx_layer=distro,0xd0003000"
UPPER = "nvx_overlay_upper=ramfs"
SCRATCH = "nvx_scratch=0xd0006000,ext4"
OTHER = "99999999-9999-9999-9999-999999999999"
RUN = "nvx_entrypoint=/bin/true nvx_hostname=box"


class Vmm:
    """Runs the VMM by hand, as a caller that ignores the launcher's budget would."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._runs = 0

    def run(self, text: str, *options: str) -> tuple[Completed, dict[str, object]]:
        """Run it to its end with a caller's text; return how it ended and the outcome of its report."""
        self._runs += 1
        world = self._world
        report = os.path.join(world.root, "out", f"report-{self._runs}.json")
        machine = ["--machine", "microvm", "--single-process", "--memory", "256M", "--microvm-lifecycle", "one-shot"]
        files = ["--kernel", world.artifacts.kernel, "--initrd", world.artifacts.initrd, "--microvm-report", report]
        hypervisor = ["--hypervisor", world.backend.hypervisor]
        done = world.run([*world.vmm.command, *machine, *hypervisor, *files, *options, "--cmdline", text])
        world.processes.none("a VMM run by hand", world.soon())
        with open(report, encoding="utf-8") as file:
            return done, mapping(json.load(file)["outcome"])


@pytest.mark.case("T50")
@pytest.mark.spec("622.scope6.a", "622.scope6.d", "622.acc.19")
def test_the_vmm_refuses_a_line_that_the_guest_would_cut(world: World) -> None:
    """2,046 and 2,047 bytes boot, 2,048 don't, each plus its NUL; the VMM's own tokens and all bytes count."""
    world.need(ENDS)
    vmm = Vmm(world)
    vmm.run("quiet")
    line = world.vmm.guest_facts(world.runs.last("start")).command_line
    if line is None:
        pytest.skip(f"the effective line: {UNSEEN}")
    added = len(line.encode()) - len("quiet")
    for letter in ("x", "é"):
        for size in (LIMIT - 2, LIMIT - 1, LIMIT):
            pad = size - added
            text = letter * (pad // len(letter.encode()))
            text += "x" * (pad - len(text.encode()))
            done, outcome = vmm.run(text)
            where = f"a line of {size} bytes of {letter}"
            if size < LIMIT:
                world.expect(where, expected=("success", 0, 0), found=_ended(done, outcome))
                seen = world.vmm.guest_facts(world.runs.last(where)).command_line or ""
                world.expect(f"{where} in the guest", expected=size, found=len(seen.encode()))
                continue
            world.expect(where, expected=("vmm-failure", 1, 1), found=_ended(done, outcome))
            world.expect(
                f"{where}: both lengths are named",
                expected=(True, True),
                found=(str(size) in done.stderr.replace(",", ""), str(LIMIT - 1) in done.stderr.replace(",", "")),
            )


@pytest.mark.case("T51")
@pytest.mark.spec("622.scope6.c", "622.acc.19")
def test_the_launcher_refuses_over_its_budget_before_it_makes_anything(world: World) -> None:
    program = world.orchestrator()
    box = Sandbox(world, upper=RAMFS)
    box.provision(program)
    box.succeed(program, "start")
    argv = world.runs.last("start").argv()
    own = len(argv[argv.index("--cmdline") + 1].encode())
    end(world, box, program)
    for letter in ("x", "é"):
        for used in (BUDGET - 1, BUDGET, BUDGET + 1):
            # The caller's text, a space, the launcher's own, a NUL.
            pad = used - own - 2
            text = letter * (pad // len(letter.encode()))
            text += "x" * (pad - len(text.encode()))
            box.extra["cmdline"] = text
            if used <= BUDGET:
                box.provision(program)
                if used == BUDGET:
                    box.succeed(program, "start")
                    box.succeed(program, "stop")
                    world.processes.none("stop", world.soon())
                box.succeed(program, "deprovision")
                continue
            answer = box.fail(program, "provision", "Refused", box.request())
            world.expect(f"{used} bytes of {letter}", expected="budget", found=answer.details.get("detail"))
            world.expect(f"{used} bytes of {letter}", expected=[], found=os.listdir(world.state))
    texts = {"a\0b": "nul", "a\nb": "control", "a\tb": "control", 'a"b': "quote", "a -- b": "dashes"}
    texts |= dict.fromkeys(("nvx_layer=x", "a virtfs_dir=/", "console=ttyS0", "nr-cpus=2", "à\xa0nvx_a"), "reserved")
    for text, detail in texts.items():
        box.extra["cmdline"] = text
        answer = box.fail(program, "provision", "Refused", box.request())
        world.expect(f"caller text {text!r}", expected=detail, found=answer.details.get("detail"))
        world.expect(f"caller text {text!r}", expected=[], found=os.listdir(world.state))


@pytest.mark.case("T51")
@pytest.mark.spec("622.scope6.c")
def test_the_share_s_tokens_count_in_the_budget(world: World) -> None:
    place = os.path.join(world.root, "images", "shared")
    os.makedirs(place)
    program = world.orchestrator()
    box = Sandbox(world, upper=RAMFS)
    box.extra["shares"] = [{"target": f"/in/{number}", "host": _made(place, number)} for number in range(40)]
    answer = box.fail(program, "provision", "Refused", box.request())
    world.expect("40 shares", expected="budget", found=answer.details.get("detail"))
    box.extra["shares"] = [{"target": f"/in/{number}", "host": _made(place, number)} for number in range(10)]
    box.provision(program)
    box.succeed(program, "start")
    line = world.vmm.guest_facts(world.runs.last("start"), box.look(program)).command_line
    if world.saw("command line", line):
        # The last token is the one that a cut would lose first.
        world.expect("the last token", expected="virtfs_aggregate=1", found=str(line).split(" ")[-1])
    end(world, box, program)


@pytest.mark.spec("622.scope6.c")
def test_a_process_line_too_long_for_windows_is_refused_before_anything_is_made(world: World) -> None:
    places = [os.path.join(world.root, "images", f"d{number}") for number in range(3)]
    names = [os.path.join(place, f"{number:03}" + "x" * 60) for place in places for number in range(128)]
    for name in names:
        os.makedirs(name)
    program = world.orchestrator()
    box = Sandbox(world, guest="direct")
    box.extra["mappings"] = {"readonlyPaths": places, "deniedPaths": names}
    answer = box.fail(program, "provision", "Refused", box.request())
    world.expect("a long process line", expected="process-line", found=answer.details.get("detail"))
    world.expect("what was made", expected=[], found=os.listdir(world.state))
    # Half as much is taken, and boots.
    box.extra["mappings"] = {"readonlyPaths": places, "deniedPaths": names[::2]}
    box.provision(program)
    box.succeed(program, "start")
    end(world, box, program)


WRONG: dict[str, tuple[str, str, str, bool]] = {
    "gpt token over an EROFS": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},gpt {UPPER} {RUN}", True),
    "erofs token over a GPT": (GPT, RAMFS, f"nvx_sandbox=1 {DISTRO},erofs {UPPER} {RUN}", True),
    "another identity": (
        EROFS,
        RAMFS,
        f"nvx_sandbox=1 {DISTRO},erofs:{OTHER} {UPPER} {RUN}",
        True,
    ),
    "the old form": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},11111111-1111-1111-1111-111111111111 {UPPER} {RUN}", True),
    "a malformed token": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},erofs: {UPPER} {RUN}", True),
    "a duplicate layer": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},erofs {DISTRO},erofs {UPPER} {RUN}", True),
    "conflicting layers": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},erofs {DISTRO},gpt {UPPER} {RUN}", True),
    "no upper's token": (EROFS, EXT4, f"nvx_sandbox=1 {DISTRO},erofs {RUN}", True),
    "two scratch tokens": (EROFS, EXT4, f"nvx_sandbox=1 {DISTRO},erofs {SCRATCH} {SCRATCH} {RUN}", True),
    "a RAM upper with a scratch": (EROFS, EXT4, f"nvx_sandbox=1 {DISTRO},erofs {SCRATCH} {UPPER} {RUN}", False),
    "a RAM upper twice": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},erofs {UPPER} {UPPER} {RUN}", False),
    "another upper": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},erofs nvx_overlay_upper=tmpfs {RUN}", False),
    "neither upper": (EROFS, RAMFS, f"nvx_sandbox=1 {DISTRO},erofs {RUN}", False),
    "a reserved token": (EROFS, RAMFS, f"nvx_sandbox=1 nr_cpus=2 {DISTRO},erofs {UPPER} {RUN}", False),
}


@pytest.mark.case("T53")
@pytest.mark.spec("622.scope2.d", "622.scope2.e", "622.scope2.g", "622.acc.19")
def test_wrong_tokens_are_refused_and_nothing_is_probed(world: World) -> None:
    vmm = Vmm(world)
    for what, (image_format, upper, text, by_guest) in WRONG.items():
        box = Sandbox(world, f"{image_format}-{upper}", image_format=image_format, upper=upper)
        blocks = ["--microvm-sandbox-block", f"distro:file:{box.distro},ro"]
        blocks += ["--microvm-sandbox-block", f"scratch:file:{box.scratch}"] if box.scratch else []
        done, outcome = vmm.run(text, *blocks, "--microvm-workload-identity", "65534:65534")
        expected = ("guest-exit", 125, 125) if by_guest else ("vmm-failure", 1, 1)
        world.expect(what, expected=expected, found=_ended(done, outcome))
    # The positive control: the same by hand, with the right tokens.
    box = Sandbox(world, "right", upper=RAMFS)
    blocks = ["--microvm-sandbox-block", f"distro:file:{box.distro},ro", "--microvm-workload-identity", "65534:65534"]
    done, outcome = vmm.run(f"nvx_sandbox=1 {DISTRO},erofs {UPPER} {RUN}", *blocks)
    world.expect("the right tokens", expected=("success", 0, 0), found=_ended(done, outcome))


@pytest.mark.case("T52")
@pytest.mark.spec("622.acc.19")
def test_the_guest_sees_the_line_to_its_last_token(world: World, goldens: Goldens) -> None:
    box = Sandbox(world)
    box.extra["network"] = {"mode": "allow"}
    box.extra["cmdline"] = "quiet é=1"
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    line = world.vmm.guest_facts(world.runs.last("start"), box.look(program)).command_line
    end(world, box, program)
    if line is None:
        pytest.skip(f"the command line: {UNSEEN}")
    goldens.check("command_line/everything.txt", line.split(" "))


def _ended(done: Completed, outcome: dict[str, object]) -> tuple[object, object, int]:
    return outcome.get("category"), outcome.get("status_code"), done.status


def _made(place: str, number: int) -> str:
    path = os.path.join(place, str(number))
    os.makedirs(path, exist_ok=True)
    return path
