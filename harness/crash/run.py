"""Running one cell: crash, look, restart, look, and on to a sandbox that was used again and removed (T10 to T12)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.backends.contract import is_bundled
from harness.crash import states
from harness.crash.cells import CALL_KILL, EXIT, KILL, PERSISTENT, Cell, Point
from harness.crash.scenes import FORCED, scene
from harness.crash.stage import Stage
from harness.crash.states import AGAIN, AT, BEGIN, DONE, FAILED, LATER, RESTART
from harness.deadline import until
from harness.errors import Finding, HarnessError, Unavailable
from harness.outputs import said_of
from harness.platform import interrupts_held
from harness.sut.messages import CODES
from harness.sut.protocol import called
from harness.witness.processes import described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.crash.stage import Bench, Ended
    from harness.crash.states import Allowed, State
    from harness.crash.trace import Call
    from harness.runs import Told
    from harness.sut.protocol import Answer
    from harness.table import Moment

USABLE = "usable"
"""The golden's scene of a sandbox that is used once more after it all."""

NOT_PROVISIONED = "NotFound"
UNKNOWN, LIVE = "indeterminate", "live"
TRIES = 3
"""How often a call's number is looked up anew when another call than the cell's was hit."""


@dataclass(slots=True)
class Result:
    """What became of a cell.

    Attributes:
        cell: Its id.
        fired: Whether the crash, or the error, happened where the cell says.
        violation: What was found wrong, empty if nothing was.
        started: Processes that were really started: VMMs, and orchestrators that weren't forked.
        evidence: Where the evidence of a violation is.
        verdict: What the next orchestrator's reattach came to.
        seconds: How long it took.
        story: What happened, if there is a violation.
        vmms: What became of its VMMs, if there is one.
    """

    cell: str
    fired: bool = False
    violation: str = ""
    started: int = 0
    evidence: str = ""
    verdict: str = ""
    seconds: float = 0.0
    story: list[Moment] = field(default_factory=list["Moment"])
    vmms: list[Told] = field(default_factory=list["Told"])


def run(bench: Bench, allowed: Allowed, cell: Cell, call: Call | None = None) -> Result:
    """Run one cell.

    Args:
        bench: What the cells of this worker share.
        allowed: What each step allows.
        cell: The cell.
        call: The cell's call as a counting run has found it; None: it is counted first.

    Returns:
        Its result: everything that a witness holds against the orchestrator is in it, nothing is raised.

    Raises:
        Unavailable: This machine can't run such a cell.
    """
    began = time.monotonic()
    result = _tried(bench, allowed, cell, call)
    result.seconds = round(time.monotonic() - began, 3)
    return result


def _tried(bench: Bench, allowed: Allowed, cell: Cell, call: Call | None) -> Result:
    result = Result(str(cell))
    for _ in range(TRIES):
        try:
            found = find(bench, cell) if cell.is_call and call is None else call
            stage = Stage(bench, scene(cell.scene), str(cell))
        except (Finding, OSError) as error:
            result.violation = said_of(error)
            return result
        if not _once(stage, allowed, cell, found, result):
            return result
        call = None
    result.violation = f"{cell}: expected that it fires, found that another call was hit {TRIES} times"
    return result


def _once(stage: Stage, allowed: Allowed, cell: Cell, call: Call | None, result: Result) -> bool:
    """Run a cell once; tell whether another call than the cell's was hit, so that it says nothing."""
    missed = False
    try:
        missed = _Run(stage, allowed, cell, call, result).whole()
    except Unavailable:
        stage.discard()
        raise
    except (Finding, HarnessError, OSError) as error:
        result.violation = said_of(error)
    except BaseException:
        stage.discard()
        raise
    if missed:
        stage.discard()
    else:
        with interrupts_held():
            _close(stage, result)
    return missed


def _close(stage: Stage, result: Result) -> None:
    world = stage.world
    if result.violation:
        world.keep()
    left = world.sweep()
    if left and not result.violation:
        result.violation = f"{result.cell}: {left}"
    if result.violation:
        result.evidence = world.keep()
        if lost := world.evidence.lost:
            result.violation += f"\n  its evidence isn't whole: {lost}"
        result.story, result.vmms = world.story(result.violation), world.runs.told()
    result.started += len(world.vmm.vms()) + (0 if stage.bench.source else stage.orchestrators)
    world.close()


def find(bench: Bench, cell: Cell) -> Call:
    """Count the calls of the cell's scene, and return the one that the cell is about.

    Raises:
        Finding: There is none.
    """
    for call in count_calls(bench, cell.scene):
        if Point(call.point, call.hit) == cell.point:
            return call
    raise Finding(str(cell), expected="that it fires", found="no such call in a counting run")


def count_calls(bench: Bench, name: str) -> list[Call]:
    """Run a scene under strace, and return its calls.

    Raises:
        Finding: There is none, or the operation doesn't end as it should.
    """
    stage = Stage(bench, scene(name), f"{name}/count-syscalls")
    try:
        stage.prepare(traced=True)
        ended = stage.trace()
        require_end(stage, ended.answer)
        calls = ended.trace.of_operation if ended.trace else []
    finally:
        stage.discard()
    if not any(call.is_own for call in calls):
        found = "none: nothing was traced of whoever works there"
        raise Finding(f"{name} counted", expected="system calls on the sandbox", found=found)
    return calls


def require_end(stage: Stage, answer: Answer | None) -> None:
    """Check that an operation ended as its scene says.

    Raises:
        Finding: It didn't.
    """
    wanted = stage.scene.refused or "success"
    found = "the orchestrator ended" if answer is None else str(answer)
    if answer is None or answer.code != stage.scene.refused:
        raise Finding(f"{stage.where}: {stage.scene.op}", expected=wanted, found=found)


class _Run:
    """One run of a cell on its stage."""

    def __init__(self, stage: Stage, allowed: Allowed, cell: Cell, call: Call | None, result: Result) -> None:
        self._stage = stage
        self._allowed = allowed
        self._cell = cell
        self._call = call
        self._result = result
        # What the golden says of these steps of the scene is allowed now.
        self._steps: list[str] = []
        self._by_golden = stage.keeps_store and bool(stage.hello.steps)
        self._was_alive = False
        self._unproven = False

    def whole(self) -> bool:
        """Run it; tell whether another call than the cell's was hit, so that it says nothing."""
        self._stage.prepare(traced=self._cell.is_call)
        if self._cell.is_call:
            if self._inject():
                return True
        else:
            self._crash()
        if self._cell.then is not None:
            self._crash_again(self._cell.then)
        verdict = self._result.verdict = self._restart()
        self._live_on(verdict)
        self._stage.require_bystander()
        return False

    def _crash(self) -> None:
        cell = self._cell
        way = KILL if cell.way.endswith(KILL) else EXIT
        passed = self._stage.strike(cell.point.at, way, audit=cell.is_event)
        self._result.fired = True
        self._look(passed[-1] if passed else BEGIN, exactly=not cell.is_event)

    def _inject(self) -> bool:
        """Kill or fail the cell's call; tell whether another one was hit."""
        cell, call = self._cell, self._call
        if call is None:
            raise HarnessError(f"{cell}: no call")
        what = "signal=SIGKILL" if cell.way == CALL_KILL else f"error={cell.error}"
        persistent = PERSISTENT if cell.way.endswith(PERSISTENT) else ""
        ended = self._stage.trace(f"{call.name}:{what}:when={call.count}{persistent}")
        if ended.trace is None:
            raise HarnessError(f"{cell}: no trace")
        if cell.error is None:
            return self._killed(ended)
        if ended.trace.elsewhere:
            raise HarnessError(f"{cell}: the error hit process {ended.trace.elsewhere[0]} as well, so it says nothing")
        if call.point not in ended.trace.injected:
            return True
        self._result.fired = True
        self._failed(ended.answer)
        return False

    def _killed(self, ended: Ended) -> bool:
        trace = ended.trace
        if ended.answer is not None or trace is None or trace.killed != [self._stage.program.pid]:
            return True
        if trace.last != self._cell.point.name:
            return True
        self._result.fired = True
        self._look(ended.steps[-1].step if ended.steps else BEGIN, exactly=False)
        return False

    def _failed(self, answer: Answer | None) -> None:
        """An operation met an error: it failed with a code of the family, or did without what failed."""
        cell, stage = self._cell, self._stage
        if answer is None:
            raise Finding(str(cell), expected="an answer", found="the orchestrator ended")
        done = answer.code == stage.scene.refused and answer.result.get("verdict") != UNKNOWN
        strange = bool(answer.code) and answer.code not in CODES
        if strange or (cell.error == "EINTR" and not done):
            wanted = "an error of the family" if strange else "that a call is made again"
            raise Finding(str(cell), expected=wanted, found=str(answer))
        self._look(DONE if done else FAILED, exactly=True)

    def _look(self, step: str, *, exactly: bool) -> State:
        """Hold what the crash left against what its step allows."""
        stage, where = self._stage, f"{self._cell}, then a look"
        stage.require_free(where)
        state = states.observe(stage, where)
        self._unproven = not is_bundled(stage.world.backend) and states.is_unproven(state)
        if self._cell.then is None or not self._steps:
            self._steps = [step]
            kinds: tuple[str, ...] = (AT,) if exactly else (AT, LATER)
        else:
            # Between two crashes a recovery may have come to any point between what both leave.
            self._steps.append(step)
            kinds = (AT, LATER, RESTART, AGAIN)
        self._check(self._cell.scene, self._steps, str(state), where=where, kinds=kinds)
        return state

    def _check(self, scene: str, steps: Sequence[str], found: str, *, where: str, kinds: tuple[str, ...]) -> None:
        """Hold a state against the golden, which speaks of the reference's steps and files alone."""
        if self._by_golden:
            self._allowed.check(scene, steps, found, where=where, kinds=kinds)

    def _crash_again(self, then: Point) -> None:
        stage, where = self._stage, f"{self._cell}, then its VMM"
        if self._unproven:
            # The next one would leave it alone, and pass none of the steps of its end.
            until(lambda: not states.is_unproven(states.observe(stage, where)), stage.world.soon())
        self._look(self._stage.again(then.at).steps[-1].step, exactly=False)

    def _restart(self) -> str:
        """Start the next orchestrator and have it reattach; return the verdict."""
        stage, where = self._stage, f"{self._cell}, then reattach"
        stage.replace_program()
        verdict = self._verdict()
        if verdict == UNKNOWN and stage.world.host.serves_pipes:
            # The pipe that the dead orchestrator had connected to is free once its server, held till here, notices.
            stage.let_go()
            verdict = self._verdict_when_known()
        # A VMM that has neither an identity nor an endpoint yet is left alone until it has one, or exits.
        # A stand-in has one soon enough; a real one takes as long as it takes.
        if verdict == UNKNOWN and (not self._by_golden or self._unproven or self._allows_unknown()):
            verdict = self._verdict_when_known()
        if gone := verdict in {"exited", "stopped"}:
            stage.world.processes.none(where, stage.world.soon())
        kinds = (RESTART,) if self._cell.then is None else (RESTART, AGAIN)
        state = states.observe(stage, where, alone=gone)
        self._check(self._cell.scene, self._steps, f"{verdict}: {state}", where=where, kinds=kinds)
        if verdict == LIVE and not state.vmms and not self._was_alive:
            raise Finding(where, expected="a VMM alive, as the verdict says", found="none")
        return verdict

    def _verdict_when_known(self) -> str:
        deadline = self._stage.world.soon()
        while (verdict := self._verdict()) == UNKNOWN and not deadline.expired():
            pass
        return verdict

    def _allows_unknown(self) -> bool:
        return self._allowed.allows(self._cell.scene, self._steps, UNKNOWN)

    def _verdict(self) -> str:
        stage = self._stage
        # One that was asked to end may do so between the verdict and the look, but ran when the verdict was asked for.
        self._was_alive = stage.ending and bool(stage.world.processes.vmms())
        answer = stage.program.call("reattach", stage.box.named(), stage.world.soon())
        return str(answer.result.get("verdict")) if answer.ok else called(answer.code)

    def _live_on(self, verdict: str) -> None:
        """The sandbox is usable and removable again."""
        stage, box, program = self._stage, self._stage.box, self._stage.program
        stage.let_go()
        stage.world.vmm.configure()
        if verdict == NOT_PROVISIONED:
            if "absent" not in states.observe(stage, f"{self._cell}, then a look").words:
                box.succeed(program, "deprovision")
            box.provision(program)
        elif verdict == LIVE:
            self._stop()
        box.succeed(program, "start")
        self._usable("start", "start.journal_removed")
        box.succeed(program, "stop")
        stage.world.processes.none(f"{self._cell}, then stop", stage.world.soon())
        self._usable("stop", "stop.record_cleared", alone=True)
        box.succeed(program, "deprovision")
        self._usable("deprovision", "removal.directory")

    def _stop(self) -> None:
        """Stop a VM that the next orchestrator has found live.

        One that the crashed orchestrator had asked to stop, or had signalled, may be on its way out by then and take no
        request any more. It ends by itself then, which a stop after that finds.
        """
        stage, box = self._stage, self._stage.box
        args = {**box.named(), **(FORCED if self._cell.scene == "forced-stop" else {})}
        if stage.scene.op == "stop" and not stage.program.call("stop", args, stage.world.soon()).ok:
            stage.world.processes.none(f"{self._cell}, then a stop that failed", stage.world.soon())
        elif stage.scene.op == "stop":
            return
        box.succeed(stage.program, "stop", args)

    def _usable(self, op: str, step: str, *, alone: bool = False) -> None:
        where = f"{self._cell}, then {op}"
        state = states.observe(self._stage, where, alone=alone)
        wanted = 1 if op == "start" else 0
        if len(state.vmms) != wanted:
            raise Finding(where, expected=f"{wanted} VMM alive", found=described([*state.vmms]))
        self._check(USABLE, [step], str(state), where=where, kinds=(AT,))
