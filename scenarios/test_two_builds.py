"""Two builds of one runtime identity over one store: what one has started, the other goes on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.builds import Build
from harness.sandbox import ADAPTER, LAYERED, RAMFS, Sandbox
from harness.world import World
from scenarios.boots import require_adapter
from scenarios.builds import BOOT, other

pytestmark = pytest.mark.spec("card.3")

RECORDS = Path(__file__).resolve().parents[1] / "goldens" / "store" / "v1"

READ = """
import glob, json, os
from nvx_ref.store.records import Journal, RuntimeRecord, decode, encode

found = {}
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.json"))):
    name = os.path.basename(path)
    with open(path, "rb") as file:
        raw = file.read()
    record = decode(raw, RuntimeRecord if name.startswith("runtime") else Journal, name)
    assert encode(record, name) == raw, name
    found[name] = repr(record)
print(json.dumps(found))
"""


@pytest.mark.case("T11")
@pytest.mark.spec("620.scope3.k", "620.acc.5", "620.notscope.a", "656.tests.e")
@pytest.mark.parametrize("guest", [LAYERED, ADAPTER], ids=["nvxc", "adapter"])
def test_an_orchestrator_that_restarts_three_times_has_the_same_vm(world: World, guest: str) -> None:
    if guest == ADAPTER:
        require_adapter(world)
    box = Sandbox(world, upper=RAMFS, guest=guest)
    second = other(world)
    program = world.orchestrator(Build().orchestrator(world, guest))
    box.provision(program)
    box.succeed(program, "start")
    vmm = world.processes.one("start")
    for turn, build in enumerate([second, Build(), second], 1):
        program.kill(world.soon())
        program = world.orchestrator(build.orchestrator(world, guest))
        where = f"restart {turn}"
        world.expect(f"{where}, reattach", expected="live", found=box.verdict(program))
        world.expect(f"{where}, exec", expected=f"{turn}\n", found=box.output(program, "/bin/echo", str(turn)))
        world.expect(f"{where}: the VMM", expected=vmm.pin.pid, found=world.processes.one(where).pin.pid)
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
    box.expect_kept("after the stop", "runtime.json", there=False)
    vm = world.runs.one(where)
    attached, requests = vm.attachments(), vm.requests()
    if attached is None or requests is None:
        world.saw("sessions and requests", None)
        return
    world.expect("broker instances", expected=1, found=len({one.instance for one in attached}))
    world.expect("epochs", expected=[1, 2, 3, 4, 5], found=[one.epoch for one in attached])
    # The agents spell their requests differently. Nothing of the start is asked again.
    wanted = ["exec", "exec", "exec", "stop"]
    found = [one.lower() for one in requests]
    world.expect("requests", expected=wanted, found=found[-4:])
    world.expect(
        "requests of the start", expected=["hello"] if guest == ADAPTER else ["ping", "features"], found=found[:-4]
    )


@contextmanager
def out_of_reach(world: World, box: Sandbox) -> Iterator[None]:
    """Keep everybody from a VM that lives."""
    if world.host.serves_pipes:
        # The one instance of its pipe is somebody else's.
        with open(json.loads(box.read("runtime.json"))["endpoint"], "r+b", buffering=0):
            yield
        return
    # Its endpoint is gone, as a careless clean-up leaves it.
    endpoint = box.path("control.sock")
    os.rename(endpoint, f"{endpoint}.away")
    yield
    os.rename(f"{endpoint}.away", endpoint)


@pytest.mark.timeout(400)
@pytest.mark.spec("620.scope3.k", "620.acc.5", "620.acc.9")
def test_twenty_sandboxes_are_found_again_and_one_out_of_reach_delays_no_other(world: World) -> None:
    second = other(world)
    boxes = [Sandbox(world, f"box{number}", upper=RAMFS) for number in range(200 if world.is_full else 20)]
    first = world.orchestrator()
    for box in boxes:
        box.provision(first)
        box.succeed(first, "start")
        # Every VMM says hello on the channel, which holds only so many that nobody has taken.
        world.channel.pump()
    first.kill(world.soon())
    running = {vmm.pin.pid for vmm in world.processes.vmms()}
    world.expect("VMMs", expected=len(boxes), found=len(running))

    lost, *reached = boxes
    program = world.orchestrator(second.orchestrator(world))
    with out_of_reach(world, lost):
        # These come first: the VM parts with whoever has its pipe and doesn't say who they are (after five seconds).
        lost.fail(program, "exec", "TimedOut", {**lost.named(), "argv": ["/bin/true"], "timeout": 0.1})
        lost.fail(program, "stop", "TimedOut", {**lost.named(), "timeout": 0.1})
        for box in boxes:
            world.expect(f"{box.name}, reattach", expected="live", found=box.verdict(program))
    lost.expect_kept("out of reach: its record", "runtime.json", there=True)
    for box in reached:
        box.succeed(program, "stop")
        box.expect_kept(f"{box.name}, stop", "runtime.json", there=False)
    left = world.processes.one("after the stop of the others")
    world.expect("out of reach: its VMM", expected=True, found=left.pin.pid in running)
    lost.succeed(program, "stop")
    world.processes.none("the last stop", world.soon())


@pytest.mark.spec("620.acc.9", "620.scope1.k")
def test_every_record_of_the_store_is_read_by_both_builds(world: World) -> None:
    second = other(world)
    third = other(world, "3.0", BOOT)
    names = sorted(path.name for path in RECORDS.glob("*.json"))
    for build in (Build(), second, third):
        done = world.run([*build.script(world, READ), str(RECORDS)])
        world.expect(f"build {build.version or 'here'}: errors", expected="", found=done.stderr)
        world.expect(f"build {build.version or 'here'}: records", expected=names, found=sorted(json.loads(done.stdout)))
