"""A run in one go, images verified, reports of programs: what a user types besides a sandbox's life."""

from __future__ import annotations

import glob
import hashlib
import json
import os

import pytest

from harness.goldens import Goldens
from harness.images import EROFS_UUID
from harness.platform import KERNEL, open_terminal
from harness.sandbox import GPT, RAMFS, Sandbox
from harness.world import TEMPORARY, World
from scenarios.private import Files
from scenarios.shell import Shell, options

SHELL = ["--entrypoint", "/bin/sh", "--arg", "-c", "--arg"]
INTERRUPTED, HUNG_UP = 130, 129


def test_a_run_exits_with_the_entrypoint_s_status_and_leaves_nothing(world: World) -> None:
    box = Sandbox(world)
    report = os.path.join(world.root, "out", "report.json")
    arguments = ["run", *options(box, world), "--outcome-report", report]
    done = world.nvx_ref(*arguments, *SHELL, "exit${IFS}7")
    world.expect("run", expected=7, found=done.status)
    first = done.stdout.splitlines()[0]
    world.expect("the first line", expected=True, found=first.startswith(">> ") and first.endswith(report))
    with open(report, encoding="utf-8") as file:
        outcome = json.load(file)["outcome"]
    world.expect("report", expected={"operation": "run", "category": "guest-exit", "status_code": 7}, found=outcome)
    world.processes.none("run", world.soon())
    world.expect("what a run leaves", expected=[], found=os.listdir(world.state))
    again = world.nvx_ref(*arguments)
    world.expect("run over a report", expected=(1, True), found=(again.status, "it exists already" in again.stderr))
    world.remove(report)


def test_a_run_that_cannot_boot_exits_with_the_vmm_s_status(world: World) -> None:
    box = Sandbox(world, upper=RAMFS)
    files = Files(world, box, ("kernel",))
    world.remove(files.paths["kernel"])
    with open(files.paths["kernel"], "wb") as file:
        file.write(b"no kernel\n" * 100)
    arguments = options(box, world)
    arguments[arguments.index("--kernel") + 1] = files.paths["kernel"]
    done = world.nvx_ref("run", *arguments)
    told = any("fatal error:" in line for line in done.stdout.splitlines()[1:])
    world.expect("run of no kernel", expected=(1, True), found=(done.status, told))
    world.processes.none("run of no kernel", world.soon())


def waits_for_its_vmm(world: World) -> bool:
    """Whether a run has launched its VMM and recorded it."""
    place = os.path.join(world.root, TEMPORARY)
    for name in glob.iglob("nvx-run-*/*/launch.json", root_dir=place):
        with open(os.path.join(place, name), encoding="utf-8") as file:
            return "process" in json.load(file)
    return False


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_an_interrupted_run_ends_its_vm(world: World, how: str) -> None:
    if KERNEL == "win32":
        pytest.skip("consoles are what Windows has: test_consoles.py")
    box = Sandbox(world, upper=RAMFS)
    words = [*SHELL, "sleep${IFS}60"]
    shown = open_terminal(world, [*world.nvx_ref_command(), "run", *options(box, world), *words])
    world.expect("run", expected=True, found=world.until(lambda: waits_for_its_vmm(world)))
    shown.interrupt() if how == "interrupt" else shown.close()
    status, said = shown.end(world.soon())
    expected = (INTERRUPTED, True) if how == "interrupt" else (HUNG_UP, False)
    found = (status, said.endswith("Interrupted\n"), "Traceback" in said)
    world.expect(f"run, {how}", expected=(*expected, False), found=found)
    world.processes.none(f"run, {how}", world.soon())
    world.expect(f"run, {how}: what is left", expected=[], found=os.listdir(os.path.join(world.root, TEMPORARY)))


def test_an_exec_takes_variables_from_a_file_and_reports_how_it_ended(world: World) -> None:
    box = Sandbox(world, upper=RAMFS)
    place = ["--state-dir", box.directory]
    for op in ("provision", "start"):
        done = world.nvx_ref(op, *place, *(options(box, world) if op == "provision" else ()))
        world.expect(op, expected=(0, ""), found=(done.status, done.stderr))
    variables, report = os.path.join(world.root, "out", "env.json"), os.path.join(world.root, "out", "exec.json")
    with open(variables, "w", encoding="utf-8") as file:
        json.dump(["A=one two", "B="], file)
    program = ["--", "/bin/sh", "-c", 'echo "$A|$B|$HOME"; exit 3']
    done = world.nvx_ref("exec", *place, "--environment-file", variables, "--outcome-report", report, *program)
    world.expect("exec", expected=(3, "one two||\n", ""), found=(done.status, done.stdout, done.stderr))
    with open(report, encoding="utf-8") as file:
        outcome = json.load(file)["outcome"]
    world.expect("report", expected={"operation": "exec", "category": "exit", "status_code": 3}, found=outcome)
    again = world.nvx_ref("exec", *place, "--outcome-report", report, *program)
    world.expect("exec over a report", expected=(1, ""), found=(again.status, again.stdout))
    both = world.nvx_ref("exec", *place, "--environment-file", variables, "--environment", "A=1", *program)
    world.expect("both forms", expected=(1, ""), found=(both.status, both.stdout))
    for path in (variables, report):
        world.remove(path)
    for op in ("stop", "deprovision"):
        world.expect(op, expected=0, found=world.nvx_ref(op, *place).status)
    world.processes.none("stop", world.soon())


def test_images_are_inspected_verified_and_bound(world: World, goldens: Goldens) -> None:
    box = Sandbox(world, image_format=GPT, upper=RAMFS)
    files = Files(world, box, ("distro",))
    image = files.paths["distro"]
    with open(image, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    with open(f"{image}.manifest.json", "w", encoding="utf-8") as file:
        json.dump(
            {"format": 1, "artifact": "distro", "artifact_sha256": digest, "packages": [{"name": "busybox"}]}, file
        )
    shell = Shell(world, box)
    for words in (
        ["inspect", image, "--format", "gpt"],
        ["inspect", image, "--format", "erofs"],
        ["verify", image, "--format", "gpt"],
        ["verify", image, "--format", "gpt", "--identity", EROFS_UUID],
        ["verify", f"{image}.none", "--format", "gpt"],
    ):
        shell.notes.append(f"$ nvx-ref image {' '.join(words)}")
        shell.note(world.nvx_ref("image", *words))
    goldens.check("image/looked_at.txt", shell.notes)
    writable = world.nvx_ref("image", "bind", image, "--format", "gpt", "--staged")
    world.expect("a manifest that isn't staged", expected=(1, ""), found=(writable.status, writable.stdout))
    os.chmod(f"{image}.manifest.json", 0o444)
    bound = [world.nvx_ref("image", "bind", image, "--format", "gpt", *more) for more in ([], ["--staged"])]
    world.expect("a binding by verification and by word", expected=bound[0], found=bound[1])
    binding = json.loads(bound[0].stdout)
    world.expect("the binding", expected=(True, "accepted"), found=("manifest" in binding, binding["policyResult"]))
