"""Policy, boot, authenticated Ready, every mapping in order, and only then is a start complete; or nothing is left."""

from __future__ import annotations

import json
import os

import pytest

from harness.backends.contract import EVIDENCE
from harness.errors import HarnessError
from harness.sandbox import ADAPTER, DIRECT, RAMFS, Sandbox
from harness.sut.program import Program
from harness.sut.protocol import Answer
from harness.world import World
from scenarios.boots import ample, end, in_the_guest, require_adapter

pytestmark = pytest.mark.spec("card.3", "622.acc.21")

MANY = 800
ORDER = (
    "start.policy_authorised",
    "start.spawned",
    "start.session_ready",
    "start.maps_applied",
    "start.runtime_written",
)
FAILED = ["config.json", "lifecycle.lock", "openvmm.log"]
GUESTS = pytest.mark.parametrize("guest", [DIRECT, ADAPTER])


def mapped(world: World, box: Sandbox, count: int) -> list[tuple[str, str, bool]]:
    """Have a sandbox map a directory and what is in it, so many objects in all; return the table to come."""
    if not count:
        return []
    outer = os.path.join(world.root, "images", "shared")
    inner = [os.path.join(outer, f"{number:04}-{'x' * 40}") for number in range(count - 1)]
    for path in (outer, *inner):
        os.mkdir(path)
    box.extra["mappings"] = {"readonlyPaths": [outer, *inner]}
    shown = in_the_guest(outer)
    names = [os.path.basename(path) for path in inner]
    return [("0", shown, True), *((f"0/{name}", f"{shown}/{name}", True) for name in names)]


def program_for(world: World, box: Sandbox) -> Program:
    """Start the orchestrator that speaks to a sandbox's guest."""
    if box.guest == ADAPTER:
        require_adapter(world)
        return world.orchestrator(world.adapter())
    return world.orchestrator()


@pytest.mark.spec("622.scope4.f", "622.scope4.g", "622.acc.10")
@GUESTS
@pytest.mark.parametrize("count", [0, 1, MANY + 1])
def test_a_start_completes_after_every_mapping_was_made_in_order(world: World, guest: str, count: int) -> None:
    box = Sandbox(world, upper=RAMFS, guest=guest)
    table = mapped(world, box, count)
    program = program_for(world, box)
    box.provision(program)
    running = program.begin("start", box.named(), pause=("start.maps_applied", 1))
    running.wait_paused(world.soon())
    box.expect_kept("the record before the start is complete", "runtime.json", there=False)
    vm = world.runs.one("start")
    made, requests = vm.mappings(), vm.requests()
    running.resume()
    answer = running.answer(world.soon())
    world.expect("start", expected="success", found="success" if answer.ok else str(answer))
    passed = [hit.step for hit in answer.steps]
    world.expect("the order of the start", expected=list(ORDER), found=[step for step in passed if step in ORDER])
    box.expect_kept("the record of a complete start", "runtime.json", there=True)
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    end(world, box, program)
    if made is None or requests is None:
        world.saw("requests and mappings", None)
        return
    world.expect("the guest's mappings", expected=table, found=made)
    world.expect("requests before the mappings", expected=True, found="EXEC" not in requests and "exec" not in requests)
    # Several records carry a table that one can't.
    maps = [name for name in requests if name.upper() == "MAPS"]
    least = 0 if not count else 1 if count == 1 or guest == ADAPTER else 2
    world.expect("requests for mappings", expected=True, found=len(maps) >= least and bool(maps) is bool(count))


@pytest.mark.spec("622.acc.10", "622.acc.14")
@GUESTS
def test_a_refused_mapping_fails_the_start_and_keeps_what_the_guest_said(world: World, guest: str) -> None:
    box = Sandbox(world, upper=RAMFS, guest=guest)
    mapped(world, box, 3)
    program = program_for(world, box)
    box.provision(program)
    late = ample(world, world.patience(1), lambda: box.succeed(program, "start"))
    box.succeed(program, "stop")
    world.processes.none("a start that nobody refuses", world.soon())
    _knobs(world, {"refuse_mapping": 2, "refuse_status": 30})
    answer = box.fail(program, "start", "LaunchFailed", {**box.named(), "timeout": late})
    world.expect("the guest's word", expected=("mapping-failed", 30), found=_said(answer))
    passed = [hit.step for hit in answer.steps]
    world.expect("the VMM's time to report", expected=True, found="failed_start.report_awaited" in passed)
    world.processes.none("the failed start", world.soon())
    box.expect_names("what stays", FAILED)
    made = world.runs.last("start").mappings()
    if made is not None:
        world.expect("mappings before the refused one", expected=1, found=len(made))
    _knobs(world, {})
    box.succeed(program, "start")
    end(world, box, program)


FAILURES: dict[str, tuple[dict[str, object], str | None, int | None, list[str]]] = {
    "the guest refuses": ({"guest_exit_at": {"guest_boot": 125}}, "guest-exit", 125, [*FAILED, "outcome.json"]),
    "the guest ends at a mapping": (
        {"guest_exit_at": {"before_maps": 7}},
        "guest-exit",
        7,
        [*FAILED, "outcome.json"],
    ),
    "the VMM fails": ({"fail_at": {"before_open:kernel": "no such"}}, "vmm-failure", 1, [*FAILED, "outcome.json"]),
    "the VMM exits": ({"exit_at": {"before_bind": 9}}, None, None, FAILED),
    "the VMM dies": ({"crash_at": {"after_bind": 9}}, None, None, FAILED),
    "the guest never comes": ({"never_attaches": True}, None, None, FAILED),
    "no report": ({"guest_exit_at": {"guest_boot": 3}, "no_report": True}, None, None, FAILED),
    "a bad report": (
        {"guest_exit_at": {"guest_boot": 3}, "report_text": '{"schema_version": 2}'},
        None,
        None,
        [*FAILED, "outcome.json"],
    ),
}


@pytest.mark.spec("622.acc.14", "620.acc.15")
def test_a_failed_start_is_torn_down_whatever_failed(world: World) -> None:
    box = Sandbox(world, guest=DIRECT)
    mapped(world, box, 1)
    program = world.orchestrator()
    box.provision(program)
    for what, (knobs, category, status, names) in FAILURES.items():
        _knobs(world, knobs)
        late: dict[str, object] = {"timeout": world.patience(1, up=False)} if "never_attaches" in knobs else {}
        answer = box.fail(program, "start", "LaunchFailed", {**box.named(), **late})
        world.expect(f"{what}: category and status", expected=(category, status), found=_said(answer))
        world.processes.none(what, world.soon())
        box.expect_names(f"{what}: names", sorted(names))
        world.expect(f"{what}: verdict", expected="stopped", found=box.verdict(program, "status"))
    _knobs(world, {})
    box.succeed(program, "start")
    world.expect("exec", expected="up\n", found=box.output(program, "/bin/echo", "up"))
    end(world, box, program)


@pytest.mark.spec("620.scope5.a", "620.scope3.n")
@GUESTS
def test_a_stop_while_the_session_is_in_use_times_out_and_forces_on_request(world: World, guest: str) -> None:
    world.need(f"{EVIDENCE}requests")
    box = Sandbox(world, upper=RAMFS, guest=guest)
    one, two = program_for(world, box), program_for(world, box)
    box.provision(one)
    box.succeed(one, "start")
    running = one.begin("exec", {**box.named(), "argv": ["/bin/sleep", "60"]})
    vm = world.runs.one("start")
    world.until(lambda: bool({"EXEC", "exec"} & set(vm_requests(world))))
    answer = box.fail(two, "stop", "TimedOut", {**box.named(), "timeout": 1})
    world.expect("the reason", expected=True, found="in use" in answer.message)
    world.expect("the VMM", expected=vm.pid, found=world.processes.one("the timed-out stop").pin.pid)
    forced = box.succeed(two, "stop", {**box.named(), "timeout": 0.5, "forceWithin": 10})
    world.expect("the forced stop", expected="forced", found=forced.result.get("outcome"))
    world.processes.none("the forced stop", world.soon())
    world.expect("exec of a forced VM", expected=False, found=running.answer(world.soon()).ok)
    box.succeed(one, "deprovision")


def vm_requests(world: World) -> list[str]:
    """Return what the newest VM's guest was asked so far, nothing where that can't be seen."""
    return world.runs.last("start").requests() or []


def _said(answer: Answer) -> tuple[object, object]:
    return answer.details.get("category"), answer.details.get("status")


def _knobs(world: World, knobs: dict[str, object]) -> None:
    try:
        world.vmm.configure(knobs=json.loads(json.dumps(knobs)))
    except HarnessError as error:
        pytest.skip(str(error))
