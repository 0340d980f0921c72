"""The disk runs full, or fails for good, in the middle of a launch (T17).

The launch fails, ends its own VMM through its handle and leaves whole records; the VM of another sandbox in the same
store doesn't notice; and once there is room again the sandbox starts.
"""

from __future__ import annotations

import pytest

from harness.backends.contract import is_bundled
from harness.crash.cells import Cell, Point, failing
from harness.crash.sweep import Sweep, Tally
from harness.errors import Unavailable
from harness.faults.disk import SmallDisk
from harness.sandbox import Sandbox
from harness.witness.processes import claim_is_held
from harness.world import World

pytestmark = [pytest.mark.case("T17"), pytest.mark.spec("620.scope2.b")]

BEFORE = ("start.policy_authorised", "start.stale_removed", "start.capability_written", "start.log_claimed")
HAS_BEGUN = "start.identity_recorded"
"""The step after which it is the VMM's turn."""

ENDED = frozenset({"before-endpoint", "closed", "authentication-or-gone", "connection-closed", "session-reset"})
"""What a start says whose VMM has ended by itself."""

AFTER = ("start.marker_written", "start.spawned", HAS_BEGUN, "start.maps_applied")


@pytest.mark.parametrize("step", [*BEFORE, *AFTER])
def test_a_disk_that_runs_full_fails_the_launch_and_nothing_else(world: World, step: str) -> None:
    program = world.orchestrator()
    try:
        disk = SmallDisk(world)
    except Unavailable as missing:
        pytest.skip(str(missing))
    with disk:
        other, box = Sandbox(world, "other"), Sandbox(world)
        for one in (other, box):
            one.provision(program)
        box.succeed(program, "start")
        box.succeed(program, "stop")
        other.succeed(program, "start")
        live = world.processes.one("the other sandbox").pin.pid

        running = program.begin("start", box.named(), pause=(step, 1))
        running.wait_paused(world.soon())
        disk.fill()
        running.resume()
        answer = running.answer(world.soon())
        where = f"start, the disk full after {step}"
        detail = answer.details.get("detail")
        # A real VMM may not survive that it can't write its log.
        may_have_ended = not is_bundled(world.backend) and step == HAS_BEGUN
        expected = detail if may_have_ended and detail in ENDED else "ENOSPC"
        world.expect(f"{where}: its answer", expected=(False, expected), found=(answer.ok, detail))
        # What a VMM ran its guest in may need a moment more than the VMM itself.
        held = claim_is_held(world.host, box.path("openvmm.log"), world.soon())
        world.expect(f"{where}: the claim on its log is held", expected=False, found=held)
        world.expect(f"{where}: the VMM alive", expected=live, found=world.processes.one(where).pin.pid)
        names = set(box.names())
        world.expect(
            f"{where}: records", expected=set(), found=names & {"launch.json", "runtime.json", "control.capability"}
        )
        world.expect(f"{where}: the other sandbox", expected="live", found=other.verdict(program, "status"))

        disk.drain()
        box.succeed(program, "start")
        world.expect(f"{where}, then room, then start", expected="live", found=box.verdict(program))
        for one in (box, other):
            one.succeed(program, "stop")
            one.succeed(program, "deprovision")
        world.processes.none(f"{where}, then both stopped", world.soon())


@pytest.mark.parametrize("error", ["EIO", "EROFS"])
@pytest.mark.parametrize("call", ["fsync", "renameat"])
def test_a_disk_that_fails_for_good_fails_the_launch_at_each_record(
    sweep: Sweep, call: str, error: str, request: pytest.FixtureRequest
) -> None:
    if not sweep.bundled:
        pytest.skip("its cells are named after files and calls of the bundled reference")
    tally = Tally()
    for record, hit in (("launch", 1), ("launch", 2), ("runtime", 1)):
        target = f",{record}.json" if call == "renameat" else ""
        point = Point(f"{call}:.{record}.json.ID.tmp{target}", hit)
        try:
            tally.take(sweep.replay(Cell("start", failing(error, persistent=True), point)))
        except Unavailable as missing:
            pytest.skip(str(missing))
    request.node.user_properties += sweep.told(tally)
    if tally.failures:
        pytest.fail(sweep.text(tally), pytrace=False)
