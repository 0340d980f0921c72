"""What a launch checks is handed over by metadata alone: nothing is read, nothing else is inherited or kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable

import pytest

from harness import python
from harness.errors import HarnessError
from harness.faults import reads
from harness.goldens import Goldens
from harness.sandbox import GPT, RAMFS, Sandbox
from harness.sut.process import Started
from harness.sut.program import Program
from harness.witness.evidence import listing
from harness.world import World
from scenarios.boots import end, expect_allowlist
from scenarios.private import Files
from scenarios.shell import Shell, options, replaced

pytestmark = pytest.mark.spec("card.3", "622.acc.21")


def _with_manifest(files: Files, **changes: object) -> str:
    """Put a manifest beside the distro, and return the path of the image that it describes."""
    image = files.paths["distro"]
    with open(image, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    manifest: dict[str, object] = {"format": 1, "artifact": "distro", "artifact_sha256": digest, "packages": []}
    path = f"{image}.manifest.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**manifest, **changes}, file)
    return path


@pytest.mark.case("T57")
@pytest.mark.spec("622.acc.8", "622.acc.9", "622p1.acc.2", "622p1.acc.3", "622p1.goal.1", "622p1.scope5")
def test_a_staged_start_reads_nothing_and_verification_reads_everything(world: World) -> None:
    if reason := reads.missing():
        pytest.skip(reason)
    box = Sandbox(world, image_format=GPT)
    files = Files(world, box, ("distro", "scratch"))
    manifest = _with_manifest(files)
    watched, log = [files.paths["distro"], files.paths["scratch"], manifest], os.path.join(world.root, "out", "reads")
    command = world.nvx_ref_command()
    arguments = [*options(box, world)]
    for role in files.paths:
        arguments = replaced(arguments, f"--{role}", files.paths[role])
    verify = ["image", "verify", files.paths["distro"], "--format", GPT]
    start = ["start", "--state-dir", box.directory]

    def run(words: list[str], *, fail: bool) -> tuple[int, int]:
        done = world.run(reads.watched([*command, *words], watched, log, fail=fail))
        return done.status, reads.injected(log) if fail else reads.count(log)

    # The positive control: verification reads every byte of image and manifest, and fails where it can't.
    status, verified = run(verify, fail=False)
    size = sum(os.path.getsize(path) for path in (files.paths["distro"], manifest))
    world.expect("verification", expected=(0, True), found=(status, verified >= size))
    for words in (verify, ["provision", "--state-dir", box.directory, *arguments]):
        status, refused = run(words, fail=True)
        world.expect(f"{words[0]} without reads", expected=(1, True), found=(status, refused > 0))
    world.expect("provision", expected=0, found=world.nvx_ref(*["provision", *start[1:], *arguments]).status)

    world.expect("a start without reads", expected=(0, 0), found=run(start, fail=True))
    world.processes.one("a start without reads")
    world.expect("stop", expected=0, found=world.nvx_ref("stop", *start[1:]).status)
    program = world.orchestrator()
    read = _vmm_reads(world, box, program, watched)
    launcher = run(["status", "--state-dir", box.directory], fail=False)
    world.expect("status", expected=(0, 0), found=launcher)
    # Read apart: what a launch costs, what the guest's disk costs, and what somebody asked for.
    world.figures |= {"bytes read by the launcher": 0, "by verification": verified}
    world.figures |= {"by the VMM": read} if read is not None else {}
    end(world, box, program)
    if read is None:
        world.saw("what the VMM reads", None)
        return
    world.expect("the VMM reads the image itself", expected=True, found=read > 0)


def _vmm_reads(world: World, box: Sandbox, program: Program, watched: list[str]) -> int | None:
    """Start with the VMM under watch from before its first open on; None where that isn't possible."""
    try:
        world.vmm.configure(pauses=["before_open:distro"])
    except HarnessError:
        box.succeed(program, "start")
        return None
    log = os.path.join(world.root, "out", "vmm-reads")
    running = program.begin("start", box.named())
    peer = world.channel.wait_paused("before_open:distro", world.soon())
    with reads.attach(peer.pid, watched, log, world.soon()) as attached:
        world.channel.resume(peer)
        answer = running.answer(world.soon())
        world.expect("start under watch", expected="success", found="success" if answer.ok else str(answer))
    return reads.count(log) if attached else None


@pytest.mark.case("T30")
@pytest.mark.spec("622.acc.6", "622.scope3.g", "622.scope3.h")
def test_a_crowded_launcher_hands_over_the_allowlist_and_keeps_no_descriptor(world: World) -> None:
    box = Sandbox(world)
    program = world.orchestrator(_crowded(world))
    box.provision(program)
    box.succeed(program, "start")
    vm = world.runs.one("start")
    expect_allowlist(world, box, vm)
    for name in box.names():
        path = box.path(name)
        if os.path.isfile(path) and name != "openvmm.log":
            with open(path, "rb") as file:
                found = re.search(rb"/proc/[^\"]*|/dev/fd[^\"]*", file.read())
            world.expect(f"descriptor paths in {name}", expected=None, found=found)
    end(world, box, program)


def _crowded(world: World) -> Started:
    """The reference in a process with 1,000 other descriptors, some of them inheritable, and two threads that spawn."""
    body = (
        "import os, socket, subprocess, threading\n"
        "held = [os.pipe() for _ in range(300)]\n"
        "held += [os.open(os.devnull, os.O_RDONLY) for _ in range(300)]\n"
        "held += [socket.socketpair() for _ in range(50)]\n"
        "[os.set_inheritable(fd, True) for fd in held[300:400]]\n"
        "def spawn():\n"
        "    for _ in range(60):\n"
        "        subprocess.run(['/bin/true'], stdin=subprocess.DEVNULL)\n"
        "        threading.Event().wait(0.01)\n"
        "for _ in range(2):\n"
        "    threading.Thread(target=spawn, daemon=True).start()\n"
        "from harness.sut.reference import main\n\nsys.exit(main())\n"
    )
    script = os.path.join(world.root, "reference.py")
    command = python.write_script(script, packages=("harness", "nvx_ref", "msgspec"), body=body)
    return Started(command, environment=world.environment())


Change = Callable[[Files], None]


def _touch(files: Files) -> None:
    os.utime(files.paths["distro"], ns=(1, 1))


def _mode(files: Files) -> None:
    os.chmod(files.paths["distro"], 0o600)


def _grow(files: Files) -> None:
    path = files.paths["distro"]
    os.chmod(path, 0o600)
    os.truncate(path, os.path.getsize(path) + 512)


def _replace(files: Files) -> None:
    other = files.copy("distro", "other")
    files.world.remove(files.paths["distro"])
    os.rename(other, files.paths["distro"])


def _kind(files: Files) -> None:
    files.world.remove(files.paths["distro"])
    make = getattr(os, "mkfifo", os.mkdir)
    make(files.paths["distro"])


def _gone(files: Files) -> None:
    os.unlink(f"{files.paths['distro']}.manifest.json")


def _add(files: Files) -> None:
    _with_manifest(files)


def _rewrite(files: Files) -> None:
    os.unlink(f"{files.paths['distro']}.manifest.json")
    _with_manifest(files)


SEALS: dict[str, tuple[bool, Change, str]] = {
    "identity": (False, _replace, "stale"),
    "kind": (False, _kind, "kind"),
    "length": (False, _grow, "stale"),
    "modification time": (False, _touch, "stale"),
    "change time": (False, _mode, "stale"),
    "manifest added": (False, _add, "manifest"),
    "manifest removed": (True, _gone, "manifest"),
    "manifest replaced": (True, _rewrite, "stale"),
}


@pytest.mark.spec("622p1.acc.4", "622p1.acc.5", "622p1.scope6", "622.scope3.a", "622p1.scope2")
def test_a_changed_seal_fails_the_start_and_nothing_is_launched(world: World) -> None:
    program = world.orchestrator()
    for number, (what, (manifest, change, detail)) in enumerate(SEALS.items()):
        box = Sandbox(world, f"b{number}", upper=RAMFS)
        files = Files(world, box, ("distro",))
        if manifest:
            _with_manifest(files)
        box.provision(program)
        change(files)
        answer = box.fail(program, "start", "Refused")
        world.expect(f"a changed {what}", expected=detail, found=answer.details.get("detail"))
        box.expect_names(f"a changed {what}", ["config.json", "lifecycle.lock"])
        box.succeed(program, "deprovision")
    world.expect("VMMs", expected=[], found=world.processes.vmms())


@pytest.mark.spec("622p1.acc.5", "622p1.scope6")
def test_another_policy_and_a_rejected_or_missing_binding_are_refused(world: World) -> None:
    program = world.orchestrator()
    edits = {
        "revision": ('"policyRevision": 1', '"policyRevision": 2', "Refused"),
        "result": ('"policyResult": "accepted"', '"policyResult": "rejected"', "Refused"),
        "binding": ('"distro": {', '"distra": {', "Malformed"),
    }
    for name, (old, new, code) in edits.items():
        box = Sandbox(world, name, upper=RAMFS)
        box.provision(program)
        text = box.read("config.json")
        with open(box.path("config.json"), "w", encoding="utf-8") as file:
            file.write(text.replace(old, new, 1))
        box.fail(program, "start", code)
        box.expect_names(f"another {name}", ["config.json", "lifecycle.lock"])
        box.succeed(program, "deprovision")


@pytest.mark.case("T56")
@pytest.mark.spec("622.scope3.d", "622.scope3.f", "622.acc.4")
def test_a_scratch_belongs_to_one_sandbox_at_a_time(world: World) -> None:
    one, two = Sandbox(world, "one"), Sandbox(world, "two")
    two.extra["scratch"] = one.scratch
    program = world.orchestrator()
    one.provision(program)
    two.provision(program)
    one.succeed(program, "start")
    answer = two.fail(program, "start", "Refused")
    world.expect("a start on another's scratch", expected="scratch-owned", found=answer.details.get("detail"))
    # The VMM writes it, and that is no change of what was bound.
    one.output(program, "/bin/sh", "-c", 'echo kept > "$HOME/note"')
    one.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    two.succeed(program, "start")
    world.processes.one("the second sandbox on the free scratch")
    end(world, two, program)
    one.succeed(program, "deprovision")


@pytest.mark.case("T56")
@pytest.mark.spec("622.scope3.d")
def test_a_replaced_resized_or_wrong_scratch_is_refused(world: World) -> None:
    def resize(files: Files) -> None:
        os.truncate(files.paths["scratch"], os.path.getsize(files.paths["scratch"]) + 4096)

    def replace(files: Files) -> None:
        os.replace(files.copy("scratch", "other"), files.paths["scratch"])

    def wrong(files: Files) -> None:
        os.unlink(files.paths["scratch"])
        os.mkdir(files.paths["scratch"])

    program = world.orchestrator()
    changes: dict[str, Change] = {"resized": resize, "replaced": replace, "wrong": wrong}
    for name, change in changes.items():
        box = Sandbox(world, name)
        files = Files(world, box, ("scratch",))
        box.provision(program)
        change(files)
        answer = box.fail(program, "start", "Refused")
        world.expect(f"a {name} scratch", expected=files.paths["scratch"], found=answer.details.get("subject"))
        box.expect_names(f"a {name} scratch", ["config.json", "lifecycle.lock"])
        box.succeed(program, "deprovision")
    world.expect("VMMs", expected=[], found=world.processes.vmms())


@pytest.mark.spec("622p1.acc.1", "622p1.acc.6", "622p1.scope8")
def test_the_preflight_names_the_first_of_many_faults(world: World, goldens: Goldens) -> None:
    """Entrypoint, digest, package list, systemd package, in this order; without a manifest the entrypoint alone."""
    box = Sandbox(world, upper=RAMFS)
    files = Files(world, box, ("distro",))
    shell = Shell(world, box)
    arguments = replaced(options(box, world), "--distro", files.paths["distro"])
    systemd = ["--entrypoint", "/usr/lib/systemd/systemd"]
    manifests: list[tuple[dict[str, object], list[str]]] = [
        ({"artifact_sha256": "0" * 64, "packages": 7}, systemd),
        ({"artifact_sha256": "0" * 64, "packages": 7}, []),
        ({"packages": 7}, []),
        ({"packages": [{"name": "systemd"}]}, []),
    ]
    for changes, more in manifests:
        _with_manifest(files, **changes)
        world.expect("provision", expected=1, found=shell.type("provision", *arguments, *more, after=()).status)
    _gone(files)
    shell.type("provision", *arguments, *systemd)
    world.expect("provision", expected=[], found=listing(world.state))
    goldens.check("bad_input/preflight_order.txt", shell.notes)
