"""Bad input gets one line that names the file or option, the reason and what to do; nothing stays behind half-done."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest

from harness.goldens import Goldens
from harness.sandbox import Sandbox
from harness.world import World
from scenarios.shell import Shell, options, replaced

OTHER = "99999999-9999-9999-9999-999999999999"
Spoil = Callable[[World, Sandbox, list[str]], list[str]]


def _file(world: World, name: str, data: bytes = b"") -> str:
    path = os.path.join(world.root, "images", name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def _copy(world: World, source: str, name: str, size: int = -1) -> str:
    with open(source, "rb") as file:
        return _file(world, name, file.read(size))


def _fifo(world: World) -> str:
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no FIFOs with a path here")
    path = os.path.join(world.root, "images", "fifo")
    os.mkfifo(path)
    return path


PROVISION: dict[str, Spoil] = {
    "distro_missing": lambda w, _, o: replaced(o, "--distro", os.path.join(w.root, "images", "none")),
    "distro_empty": lambda w, _, o: replaced(o, "--distro", _file(w, "empty")),
    "distro_directory": lambda w, _, o: replaced(o, "--distro", w.state),
    "distro_fifo": lambda w, _, o: replaced(o, "--distro", _fifo(w)),
    "distro_text": lambda w, _, o: replaced(o, "--distro", _file(w, "text", b"no image\n" * 1000)),
    "distro_truncated": lambda w, b, o: replaced(o, "--distro", _copy(w, b.distro, "cut", 1100)),
    "distro_wrong_format": lambda _, __, o: replaced(o, "--format", "gpt"),
    "identity_wrong": lambda _, __, o: replaced(o, "--identity", OTHER),
    "identity_of_a_gpt": lambda _, b, o: replaced(replaced(o, "--distro", b.gpt), "--format", "gpt"),
    "identity_malformed": lambda _, __, o: replaced(o, "--identity", "1234"),
    "format_unknown": lambda _, __, o: replaced(o, "--format", "ext4"),
    "scratch_missing": lambda w, _, o: replaced(o, "--scratch", os.path.join(w.root, "images", "none")),
    "scratch_wrong_format": lambda w, b, o: replaced(o, "--scratch", _copy(w, b.distro, "scratch")),
    "no_upper": lambda _, __, o: replaced(o, "--scratch"),
    "both_uppers": lambda _, __, o: [*o, "--ram-upper"],
    "kernel_missing": lambda w, _, o: replaced(o, "--kernel", os.path.join(w.root, "none")),
    "no_kernel": lambda _, __, o: replaced(o, "--kernel"),
    "manifest_missing": lambda w, _, o: replaced(o, "--manifest", os.path.join(w.root, "none")),
    "openvmm_unbalanced": lambda _, __, o: replaced(o, "--openvmm", '"python'),
    "openvmm_empty": lambda _, __, o: replaced(o, "--openvmm", ""),
    "artifacts_and_parts": lambda w, _, o: [*o, "--artifacts", w.artifacts.directory],
    "hostname": lambda _, __, o: [*o, "--hostname", "Not A Name"],
    "workload_root": lambda _, __, o: [*o, "--workload-user", "0:0"],
    "memory_zero": lambda _, __, o: [*o, "--memory-mib", "0"],
    "entrypoint_systemd": lambda _, __, o: [*o, "--entrypoint", "/lib/systemd/systemd"],
    "entrypoint_relative": lambda _, __, o: [*o, "--entrypoint", "sh"],
    "entrypoint_space": lambda _, __, o: [*o, "--entrypoint", "/bin/a b"],
    "cmdline_reserved": lambda _, __, o: [*o, "--cmdline", "nvx_sandbox=1"],
    "cmdline_newline": lambda _, __, o: [*o, "--cmdline", "a\nb"],
    "cmdline_over_budget": lambda _, __, o: [*o, "--cmdline", "x" * 1024],
    "timeout_zero": lambda _, __, o: [*o, "--timeout", "0"],
    "timeout_nan": lambda _, __, o: [*o, "--timeout", "nan"],
    "unknown_option": lambda _, __, o: [*o, "--frobnicate"],
}


@pytest.mark.parametrize("case", PROVISION)
def test_a_provision_that_is_refused_leaves_nothing(world: World, goldens: Goldens, case: str) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    arguments = PROVISION[case](world, box, options(box, world))
    done = shell.type("provision", *arguments)
    world.expect(f"provision with {case}", expected=(True, ""), found=(done.status in {1, 2}, done.stdout))
    world.expect(case, expected=[], found=os.listdir(world.state))
    goldens.check(f"bad_input/{case}.txt", shell.notes)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may read every file, whatever its mode"
)
def test_an_unreadable_distro_is_named(world: World, goldens: Goldens) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    closed = _copy(world, box.distro, "closed")
    os.chmod(closed, 0)
    shell.type("provision", *replaced(options(box, world), "--distro", closed))
    world.expect("provision", expected=[], found=os.listdir(world.state))
    goldens.check("bad_input/distro_unreadable.txt", shell.notes)


LONG = "<long>"
NAMES = {
    "dots": os.path.join("s", "..", "s", "box"),
    "long": os.path.join("s", "n" * 300),
    "over_64": os.path.join("s", "n" * 65),
    "hidden": os.path.join("s", ".box"),
    "comma": os.path.join("s", "a,b"),
    "equals_above": os.path.join("s", "a=b", "box"),
    "comma_above": os.path.join("s", "a,b", "box"),
    "endpoint_too_long": os.path.join("s", LONG, "box"),
    "not_utf8": os.path.join("s", "b\udcff"),
    "empty": "",
}


OF_SOCKETS = frozenset({"equals_above", "comma_above", "endpoint_too_long"})
"""What is wrong with them is the path of the socket that would be in them."""


@pytest.mark.case("T07")
@pytest.mark.parametrize("case", NAMES)
def test_a_state_directory_that_cannot_be_one_is_refused(world: World, goldens: Goldens, case: str) -> None:
    if case in OF_SOCKETS and world.host.serves_pipes:
        pytest.skip("an endpoint is a pipe here, whatever the directory is called")
    box = Sandbox(world)
    shell = Shell(world, box)
    # The message counts bytes: the same number wherever the run keeps its files.
    long = "d" * (140 - len(world.root))
    place = os.path.join(world.root, NAMES[case].replace(LONG, long)) if NAMES[case] else ""
    shell.note(world.nvx_ref("provision", "--state-dir", place, *options(box, world)))
    shell.note(done := world.nvx_ref("start", "--state-dir", place))
    world.expect(f"start of {case}", expected=1, found=done.status)
    world.expect(f"start of {case}", expected=[], found=world.processes.vmms())
    shell.note(world.nvx_ref("deprovision", "--state-dir", place))
    goldens.check(f"bad_input/name_{case}.txt", [note.replace(long, LONG) for note in shell.notes])


def _directory(box: Sandbox, world: World) -> None:
    os.mkdir(box.directory)
    world.host.expose(box.directory)


def _symlink(box: Sandbox, world: World) -> None:
    target = os.path.join(world.root, "images", "elsewhere")
    os.mkdir(target, 0o700)
    with contextlib.suppress(OSError):
        os.symlink(target, box.directory)
    if not os.path.lexists(box.directory):
        pytest.skip("this user may not make links here")


def _regular(box: Sandbox, world: World) -> None:
    del world
    with open(box.directory, "wb"):
        pass


THERE: dict[str, Callable[[Sandbox, World], None]] = {
    "mode_0755": _directory,
    "symlink": _symlink,
    "file": _regular,
}


@pytest.mark.parametrize("case", THERE)
def test_what_is_there_already_is_neither_used_nor_changed(world: World, goldens: Goldens, case: str) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    THERE[case](box, world)
    before = os.lstat(box.directory)
    for op in ("provision", "start", "status", "deprovision"):
        done = shell.type(op, *(options(box, world) if op == "provision" else ()))
        world.expect(f"{op} on {case}", expected=1, found=done.status)
    after = os.lstat(box.directory)
    world.expect(case, expected=(before.st_mode, before.st_ino), found=(after.st_mode, after.st_ino))
    goldens.check(f"bad_input/there_{case}.txt", shell.notes)


@pytest.mark.parametrize("op", ["start", "exec", "stop", "status", "deprovision"])
def test_what_is_not_provisioned_is_not_found_and_not_made(world: World, goldens: Goldens, op: str) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    done = shell.type(op, after=("--", "/bin/true") if op == "exec" else ())
    world.expect(op, expected=(1, []), found=(done.status, os.listdir(world.state)))
    goldens.check(f"bad_input/absent_{op}.txt", shell.notes)


def _edit(box: Sandbox, change: Callable[[bytes], bytes]) -> None:
    with open(box.path("config.json"), "rb") as file:
        data = file.read()
    with open(box.path("config.json"), "wb") as file:
        file.write(change(data))


CONFIGURATIONS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "format_2": lambda data: data.replace(b'"format": 1', b'"format": 2', 1),
    "unknown_field": lambda data: data.replace(b"{", b'{"extra": 1,', 1),
    "duplicate_field": lambda data: data.replace(b"{", b'{"format": 1,', 1),
    "not_utf8": lambda _: b"\xff\xfe",
}


@pytest.mark.case("T44")
@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_a_spoilt_configuration_is_named_and_kept(world: World, goldens: Goldens, case: str) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    shell.notes.clear()
    _edit(box, CONFIGURATIONS[case])
    world.expect("start", expected=1, found=shell.type("start").status)
    world.expect("VMMs", expected=[], found=world.processes.vmms())
    world.expect("deprovision", expected=0, found=shell.type("deprovision").status)
    goldens.check(f"bad_input/configuration_{case}.txt", shell.notes)


def test_a_second_provision_changes_nothing(world: World, goldens: Goldens) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *options(box, world))
    with open(box.path("config.json"), "rb") as file:
        before = file.read()
    shell.type("provision", *options(box, world))
    with open(box.path("config.json"), "rb") as file:
        world.expect("the configuration", expected=before, found=file.read())
    shell.type("deprovision")
    goldens.check("bad_input/provisioned_twice.txt", shell.notes)


def test_a_vmm_that_cannot_be_started_fails_the_start_and_leaves_the_sandbox_stopped(
    world: World, goldens: Goldens
) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    shell.type("provision", *replaced(options(box, world), "--openvmm", os.path.join(world.root, "none")))
    world.expect("start", expected=1, found=shell.type("start").status)
    shell.type("status")
    shell.type("deprovision")
    goldens.check("bad_input/openvmm_missing.txt", shell.notes)


def test_a_dry_run_prints_the_command_and_where_its_bytes_go(world: World, goldens: Goldens) -> None:
    box = Sandbox(world)
    shell = Shell(world, box)
    for extra in (["--explain"], ["--dry-run", "--explain"]):
        shell.notes.append(f"$ nvx-ref run {' '.join(extra)}")
        shell.note(world.nvx_ref("run", *options(box, world), *extra))
    world.expect("run", expected=[], found=os.listdir(world.state))
    goldens.check("bad_input/run.txt", shell.notes)
