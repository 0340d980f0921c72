"""Image-backed sandboxes boot cold: each image format with each upper, to a guest that says what it found."""

from __future__ import annotations

import json

import pytest

from harness.backends.contract import SECTORS
from harness.goldens import Goldens
from harness.sandbox import EROFS, EXT4, GPT, RAMFS, Sandbox
from harness.sut.needs import STORE
from harness.witness import ext4
from harness.witness.evidence import listing
from harness.world import World
from scenarios.boots import COMBINATIONS, end, entry, expect_allowlist, expect_found, options_as_lines

pytestmark = pytest.mark.spec("card.3", "622.acc.21")

LARGE = 4096
"""Bytes of a large sector."""


@pytest.mark.spec("622.goal.1")
@pytest.mark.spec(
    "622.acc.2", "622.scope2.a", "622.scope2.c", "622.scope2.f", "622.scope2.g", "622.scope3.b", "622.acc.20"
)
@pytest.mark.parametrize(("image_format", "upper"), COMBINATIONS)
def test_an_image_boots_and_the_guest_finds_what_the_plan_says(
    world: World, goldens: Goldens, image_format: str, upper: str
) -> None:
    box = Sandbox(world, image_format=image_format, upper=upper)
    where = f"{image_format} with {upper}"
    golden = f"cold_boot/{image_format}-{upper}"
    program = world.orchestrator()
    box.provision(program)
    if world.declares(STORE):
        goldens.check(f"{golden}/config.json", box.read("config.json"))
    box.succeed(program, "start")
    vmm = world.processes.one(f"start of {where}")

    vm = world.runs.one(where)
    world.expect(f"{where}: the VMM", expected=vmm.pin.pid, found=vm.pid)
    if world.declares(STORE):
        goldens.check(f"{golden}/runtime.json", box.read("runtime.json"))
        goldens.check(f"{golden}/running.txt", [entry(line) for line in listing(box.directory)])
        goldens.check(f"{golden}/argv.txt", options_as_lines(vm.argv()))
    expect_found(world, box, world.vmm.guest_facts(vm, box.look(program)), goldens, golden)
    expect_allowlist(world, box, vm)
    if box.scratch is not None:
        world.expect(f"{where}: scratch in use", expected=True, found=ext4.needs_recovery(box.scratch))
    world.expect(f"{where}: exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))

    box.succeed(program, "stop")
    world.processes.none(f"stop of {where}", world.soon())
    if world.declares(STORE):
        report = json.loads(box.read("outcome.json"))
        world.expect(
            f"{where}: the report",
            expected={"operation": "managed", "category": "success", "status_code": 0},
            found=report["outcome"],
        )
        world.expect(f"{where}: teardown", expected=True, found=all(report["teardown"].values()))
        goldens.check(f"{golden}/stopped.txt", [entry(line) for line in listing(box.directory)])
    if box.scratch is not None:
        world.expect(f"{where}: scratch after stop", expected=False, found=ext4.needs_recovery(box.scratch))
    box.succeed(program, "deprovision")
    world.expect(f"{where}: deprovision", expected=[], found=box.names())


@pytest.mark.spec("620.acc.15", "622.acc.14")
@pytest.mark.parametrize(("image_format", "upper"), COMBINATIONS)
def test_a_guest_that_refuses_fails_the_start_with_its_reason_and_nothing_stays(
    world: World, image_format: str, upper: str
) -> None:
    world.vmm.configure(knobs={"guest_exit_at": {"guest_boot": 125}})
    box = Sandbox(world, image_format=image_format, upper=upper)
    program = world.orchestrator()
    box.provision(program)
    answer = box.fail(program, "start", "LaunchFailed")
    said = (answer.details.get("category"), answer.details.get("status"))
    world.expect("the refused start's error", expected=("guest-exit", 125), found=said)
    world.processes.none("the refused start", world.soon())
    box.expect_names("names", ["config.json", "lifecycle.lock", "openvmm.log", "outcome.json"])
    box.succeed(program, "deprovision")


@pytest.mark.spec("622.scope2.c")
@pytest.mark.parametrize("image_format", [EROFS, GPT])
def test_an_image_boots_without_an_identity_too(world: World, image_format: str) -> None:
    box = Sandbox(world, image_format=image_format, upper=RAMFS)
    program = world.orchestrator()
    request = {name: value for name, value in box.request().items() if name != "identity"}
    box.succeed(program, "provision", request)
    box.succeed(program, "start")
    vm = world.runs.one("start")
    tokens = vm.argv()[vm.argv().index("--cmdline") + 1].split()
    found = [token for token in tokens if token.startswith(("nvx_layer=", "nvx_overlay_upper=", "nvx_scratch="))]
    world.expect(
        "tokens", expected=[f"nvx_layer=distro,0xd0003000,{image_format}", "nvx_overlay_upper=ramfs"], found=found
    )
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    box.succeed(program, "deprovision")


@pytest.mark.spec("622.acc.2")
@pytest.mark.parametrize(("image_format", "upper"), COMBINATIONS)
def test_a_disk_of_large_sectors_shows_its_block_size(world: World, image_format: str, upper: str) -> None:
    world.need(f"{SECTORS}{LARGE}")
    if image_format == EROFS:
        # Its file says nothing of sectors: the VMM is told (contract openvmm 10.3).
        world.vmm.configure(knobs={"blockSize": LARGE})
    box = Sandbox(world, image_format=image_format, upper=upper, sectors=LARGE)
    where = f"{image_format} in large sectors with {upper}"
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    found = world.vmm.guest_facts(world.runs.one("start"), box.look(program))
    for fact, expected, seen in (
        ("block size", LARGE, found.block_size),
        ("format", image_format, found.image_format),
        ("identity", box.identity, found.identity),
        ("upper", upper, found.upper),
    ):
        if world.saw(fact, seen):
            world.expect(f"{where}: the guest's {fact}", expected=expected, found=seen)
    world.expect(f"{where}: exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    end(world, box, program)


@pytest.mark.parametrize("upper", [EXT4, RAMFS])
def test_data_survives_a_stop_where_the_upper_is_a_disk(world: World, upper: str) -> None:
    box = Sandbox(world, upper=upper)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    box.output(program, "/bin/sh", "-c", 'echo kept > "$HOME/note"')
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    box.succeed(program, "start")
    found = box.output(program, "/bin/sh", "-c", 'cat "$HOME/note" 2>/dev/null || echo gone')
    world.expect(
        f"a note on {upper} after stop and start", expected="kept\n" if upper == EXT4 else "gone\n", found=found
    )
    box.succeed(program, "stop")
    world.processes.none("the second stop", world.soon())
    box.succeed(program, "deprovision")
