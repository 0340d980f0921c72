"""What a sandbox sees of the host: planned once, refused where it would reach too far, rechecked at every start."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from harness.faults.swap import BIND_MOUNT, can_mount
from harness.goldens import Goldens
from harness.sandbox import ADAPTER, DIRECT, LAYERED, RAMFS, Sandbox
from harness.sut.program import Program
from harness.world import World
from scenarios.boots import end, in_the_guest, options_as_lines

pytestmark = pytest.mark.spec("card.3", "622.acc.21")

Tree = Callable[[str], str]


@pytest.fixture
def tree(world: World) -> Tree:
    """Return a function from a name to a path of the test; a name that ends with a slash is made as a directory."""
    root = os.path.join(world.root, "images", "h")
    os.makedirs(root)

    def path(name: str) -> str:
        full = os.path.join(root, *name.rstrip("/").split("/"))
        if not os.path.lexists(full):
            os.makedirs(full if name.endswith("/") else os.path.dirname(full), exist_ok=True)
            if not name.endswith("/"):
                with open(full, "wb"):
                    pass
        return full

    return path


@pytest.mark.spec("622.scope4.a", "622.scope1.e")
def test_shares_and_mappings_are_lowered_by_one_planner(world: World, goldens: Goldens, tree: Tree) -> None:
    """A root, a file whose parent stays hidden, what is denied, allowed in it, and writable: one boot a guest."""
    goldens.name(in_the_guest(world.root), "<ROOT>")
    file, ro, rw = tree("file/one"), tree("ro/"), tree("rw/")
    policy = {"denied": [tree("rw/no/")], "allowed": [tree("rw/no/yes/")], "writable": [tree("rw/w/")]}
    shares = [
        {"target": "/in/ro", "host": ro},
        {"target": "/in/rw", "host": rw, "access": "rw", **policy},
        {"target": "/in/file", "host": file},
    ]
    mappings = {
        "readonlyPaths": [ro, file],
        "readwritePaths": [rw, tree("ro/inner/")],
        "deniedPaths": [tree("rw/no/")],
    }
    tree("file/hidden")
    guests = [LAYERED, DIRECT] + ([ADAPTER] if world.artifacts.adapter else [])
    for guest in guests:
        box = Sandbox(world, guest, upper=RAMFS, guest=guest)
        box.extra["shares" if guest == LAYERED else "mappings"] = shares if guest == LAYERED else mappings
        program = world.orchestrator(world.adapter()) if guest == ADAPTER else world.orchestrator()
        box.provision(program)
        box.succeed(program, "start")
        vm = world.runs.last("start")
        lines = [line for line in options_as_lines(vm.argv()) if line.startswith("--mount")]
        text, mapped = world.vmm.guest_facts(vm, box.look(program)).command_line, vm.mappings()
        unseen = [] if world.saw("command line", text) else ["nvx_share=|nvx_maps=|virtfs_"]
        unseen += [] if world.saw("mappings", mapped) else [r"\S+ at "]
        lines += [word for word in (text or "").split(" ") if word.startswith(("nvx_share=", "nvx_maps=", "virtfs_"))]
        lines += [f"{source} at {target}{' ro' if ro else ''}" for source, target, ro in mapped or []]
        # One planner: what the adapter's guest maps is what NVX's own does.
        goldens.check(f"exports/{LAYERED if guest == LAYERED else DIRECT}.txt", lines, unseen="|".join(unseen))
        end(world, box, program)


Refusals = dict[str, tuple[dict[str, object], str]]


def _expect_refused(world: World, program: Program, guest: str, refusals: Refusals) -> None:
    for number, (what, (extra, detail)) in enumerate(refusals.items()):
        box = Sandbox(world, f"{guest}{number}", guest=guest)
        box.extra.update(extra)
        answer = box.fail(program, "provision", "Refused", box.request())
        world.expect(what, expected=detail, found=answer.details.get("detail"))
        world.expect(f"{what}: the state directory", expected=[], found=box.names())


@pytest.mark.spec("622.goal.1", "622.scope4.a")
def test_nothing_shared_reaches_the_sandbox_s_own_files(world: World, tree: Tree) -> None:
    program = world.orchestrator()
    box = Sandbox(world, "other")
    artifacts = world.artifacts
    places = {
        "the state root": world.state,
        "above all": world.root,
        "a scratch's directory": os.path.dirname(str(box.scratch)),
        "a distro's directory": os.path.dirname(box.distro),
        "the kernel": artifacts.kernel,
        "the initramfs": artifacts.initrd,
        "the kernel's directory": os.path.dirname(artifacts.kernel),
    }
    refusals: Refusals = {
        what: ({"shares": [{"target": "/in", "host": path}]}, "protected") for what, path in places.items()
    }
    if can_mount():
        alias = tree("alias/")
        undo = BIND_MOUNT.apply(alias, world.state)
        try:
            aliased: Refusals = {"a mount of it": ({"shares": [{"target": "/in", "host": alias}]}, "protected")}
            _expect_refused(world, program, LAYERED, aliased)
        finally:
            undo()
    _expect_refused(world, program, LAYERED, refusals)
    direct: Refusals = {
        what: ({"mappings": {"readonlyPaths": [path]}}, "protected")
        for what, path in places.items()
        if what not in {"a scratch's directory", "a distro's directory"}
    }
    _expect_refused(world, program, DIRECT, direct)


@pytest.mark.spec("622.scope4.a")
def test_a_share_that_reaches_the_state_directory_later_is_refused_at_the_start(world: World, tree: Tree) -> None:
    if not can_mount():
        pytest.skip("a mount needs privileges")
    program = world.orchestrator()
    box = Sandbox(world, upper=RAMFS)
    host = tree("late/")
    box.extra["shares"] = [{"target": "/in", "host": host}]
    box.provision(program)
    undo = BIND_MOUNT.apply(host, box.directory)
    try:
        answer = box.fail(program, "start", "Refused")
    finally:
        undo()
    world.expect("the start", expected="protected", found=answer.details.get("detail"))
    box.succeed(program, "start")
    end(world, box, program)


@pytest.mark.spec("622.scope4.d", "622.scope4.e", "622.acc.18")
def test_read_only_inside_read_write_is_refused_by_every_name(world: World, tree: Tree) -> None:
    outer, inner = tree("outer/"), tree("outer/inner/")
    link, alias = os.path.join(tree("."), "link"), tree("alias/")
    os.symlink(outer, link)
    detail = "read-only-inside-read-write"

    def nested(rw: str, ro: str) -> dict[str, object]:
        return {"mappings": {"readonlyPaths": [ro], "readwritePaths": [rw]}}

    refusals: Refusals = {
        "plainly": (nested(outer, inner), detail),
        "a file": (nested(outer, tree("outer/file")), detail),
    }
    if os.path.isdir(link):
        # Under Wine a link to a directory leads nowhere.
        refusals["through a link"] = (nested(link, inner), detail)
    program = world.orchestrator()
    _expect_refused(world, program, DIRECT, refusals)
    if can_mount():
        undo = BIND_MOUNT.apply(alias, outer)
        try:
            mounted: Refusals = {"through a mount": (nested(alias, inner), detail)}
            _expect_refused(world, program, DIRECT, mounted)
        finally:
            undo()
    # The inverse is valid: what is written lies in what is only read.
    box = Sandbox(world, "inverse", guest=DIRECT)
    box.extra.update(nested(inner, outer))
    box.provision(program)
    box.succeed(program, "start")
    end(world, box, program)


@pytest.mark.spec("622.scope4.c", "622.acc.11")
def test_what_was_pinned_inside_a_writable_mapping_is_rechecked_at_the_start(world: World, tree: Tree) -> None:
    outer, denied = tree("outer/"), tree("outer/denied/")
    program = world.orchestrator()
    box = Sandbox(world, guest=DIRECT)
    box.extra["mappings"] = {"readwritePaths": [outer], "deniedPaths": [denied]}
    box.provision(program)
    kept = os.path.join(outer, "kept")

    def rename() -> None:
        os.rename(denied, kept)

    def recreate() -> None:
        os.mkdir(denied)

    def replace() -> None:
        os.rmdir(denied)
        with open(denied, "wb"):
            pass

    for what, change, code in (("renamed", rename, "NotFound"), ("re-created", recreate, "Refused")):
        change()
        box.fail(program, "start", code)
        box.expect_names(f"a {what} object", ["config.json", "lifecycle.lock"])
    replace()
    answer = box.fail(program, "start", "Refused")
    world.expect("a replaced object", expected="pin", found=answer.details.get("detail"))
    os.unlink(denied)
    os.rename(kept, denied)
    box.succeed(program, "start")
    end(world, box, program)


@pytest.mark.spec("622.scope4.d", "622.acc.18")
def test_read_only_inside_read_write_is_refused_in_any_letter_case(world: World, tree: Tree) -> None:
    outer, inner = tree("outer/"), tree("outer/inner/")
    other = os.path.join(tree("."), "OUTER")
    if not os.path.isdir(other):
        pytest.skip("names that differ in letter case are different files here")
    program = world.orchestrator()
    inside = os.path.join(other, "INNER")
    aliased: Refusals = {
        f"{ro} in {rw}": (
            {"mappings": {"readonlyPaths": [ro], "readwritePaths": [rw]}},
            "read-only-inside-read-write",
        )
        for rw, ro in ((outer, inside), (other, inner))
    }
    _expect_refused(world, program, DIRECT, aliased)


Paths = dict[str, list[str]]


def _denied(tree: Tree, name: str, *, count: int, size: int) -> list[str]:
    """Make directories whose names below their share have so many bytes each."""
    return [tree(f"{name}/{number:03}{'x' * (size - 3)}/") for number in range(count)]


def _limits(tree: Tree) -> dict[str, tuple[Paths, Paths]]:
    """What is at a limit, and what is one over it."""
    children = [tree(f"c/{number}/") for number in range(257)]
    denied = [tree(f"d/{number}/") for number in range(129)]
    outer = tree("m/")
    mapped = [outer, *(tree(f"m/{number}/") for number in range(4096))]
    # 16 KiB a list, and 128 KiB over all of an export's.
    long = _denied(tree, "l", count=127, size=128)
    full, more = tree(f"l/{'y' * 128}/"), tree(f"l/{'y' * 129}/")
    lists = [_denied(tree, f"t{number}", count=128, size=128) for number in range(8)]
    whole = {
        "readonlyPaths": [os.path.dirname(one[0]) for one in lists],
        "deniedPaths": [path for one in lists for path in one],
    }
    shown, little = os.path.dirname(denied[0]), tree("t8/x/")
    return {
        "children": ({"readonlyPaths": children[:256]}, {"readonlyPaths": children}),
        "mappings": ({"readonlyPaths": mapped[:4096]}, {"readonlyPaths": mapped}),
        "policy paths": (
            {"readonlyPaths": [shown], "deniedPaths": denied[:128]},
            {"readonlyPaths": [shown], "deniedPaths": denied},
        ),
        "bytes of a list": (
            {"readonlyPaths": [os.path.dirname(full)], "deniedPaths": [*long, full]},
            {"readonlyPaths": [os.path.dirname(full)], "deniedPaths": [*long, more]},
        ),
        "bytes of all lists": (
            whole,
            {
                "readonlyPaths": [*whole["readonlyPaths"], os.path.dirname(little)],
                "deniedPaths": [*whole["deniedPaths"], little],
            },
        ),
    }


@pytest.mark.spec("622.scope4.a")
def test_every_limit_holds_at_its_value_and_is_refused_one_over(world: World, tree: Tree) -> None:
    program = world.orchestrator()
    for name, (most, over) in _limits(tree).items():
        _expect_refused(world, program, DIRECT, {f"{name}, one over": ({"mappings": over}, "limit")})
        box = Sandbox(world, name.replace(" ", "-"), guest=DIRECT)
        box.extra["mappings"] = most
        answer = program.call("provision", box.request(), world.soon())
        if not answer.ok and answer.details.get("detail") == "process-line":
            # So many bytes of paths are more than a process takes on Windows, and on every host.
            world.expect(f"{name}: what was made", expected=[], found=box.names())
            continue
        world.expect(name, expected="provisioned", found="provisioned" if answer.ok else str(answer))
        box.succeed(program, "start")
        made = world.runs.last("start").mappings()
        if world.saw("mappings", made):
            world.expect(f"mappings at the limit of {name}", expected=len(most["readonlyPaths"]), found=len(made or ()))
        end(world, box, program)
