"""One cell's stage: a world of its own, a sandbox, and the orchestrators that act on it one after the other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.crash.scenes import IDENTIFIED
from harness.crash.trace import Tracer, find, read
from harness.deadline import until
from harness.errors import Finding
from harness.platform import interrupts_held
from harness.sandbox import Sandbox
from harness.sut.naming import Namer
from harness.sut.needs import STORE
from harness.sut.program import ProgramEnded
from harness.world import World

if TYPE_CHECKING:
    from harness.backends.contract import Backend
    from harness.crash.scenes import Scene
    from harness.crash.trace import Trace
    from harness.settings import Settings
    from harness.sut.operation import Operation
    from harness.sut.process import Source
    from harness.sut.program import Program
    from harness.sut.protocol import Answer, Args, Hello, Hit
    from harness.witness.processes import Seen

BOX = "box"
ENDING = frozenset({"stop.requested", "stop.forced"})
"""The steps after which a VMM that was asked or signalled may still be on its way out."""
LETTING_GO = 5.0
"""Seconds for which a lock or claim found held is looked at again: a child on its way to its exec has copies."""


@dataclass(slots=True)
class Bench:
    """What the cells of one worker share.

    Attributes:
        settings: The run's options.
        backend: What VMMs run on.
        source: Makes orchestrators; None starts a real process for each.
        bystander: A process that has nothing to do with any of it, and that nobody may touch.
    """

    settings: Settings
    backend: Backend
    source: Source | None = None
    bystander: Seen | None = None


@dataclass(slots=True)
class Ended:
    """How an operation that was to crash ended.

    Attributes:
        answer: Its answer; None: the orchestrator ended.
        steps: The steps that it announced.
        events: The events that it announced.
        trace: Its system calls, where they were traced.
    """

    answer: Answer | None
    steps: list[Hit]
    events: list[Hit]
    trace: Trace | None = None


class Stage:
    """Where one cell happens.

    Args:
        bench: What it shares with others.
        scene: The scene.
        where: What failure texts call it.

    Attributes:
        world: Its world.
        box: Its sandbox.
        program: The orchestrator of the moment.
        ending: Whether the operation that crashed had asked its VMM to end, or signalled it.
    """

    def __init__(self, bench: Bench, scene: Scene, where: str) -> None:
        self.bench = bench
        self.scene = scene
        self.where = where
        self.world = World(bench.settings, bench.backend, label=where)
        try:
            self.box = Sandbox(self.world, BOX)
            self.program: Program = self._orchestrator()
        except BaseException:
            _discard(self.world)
            raise
        self.orchestrators = 1
        self._gated = False
        self._released = False
        self.ending = False

    def _orchestrator(self) -> Program:
        return self.world.orchestrator(self.bench.source)

    def replace_program(self) -> Program:
        """End the orchestrator of the moment, if it hasn't ended, and take another one."""
        self.program.close(self.world.soon())
        self.program = self._orchestrator()
        self.orchestrators += 1
        return self.program

    def prepare(self, *, traced: bool = False) -> None:
        """Make what was before, then have the operation's own VMM behave as the scene says.

        Args:
            traced: Whether the operation's system calls will be counted.
        """
        self.scene.prepare(self)
        scene, steps = self.scene, self.hello.steps
        self._gated = traced and bool(scene.hold) and IDENTIFIED[0] in steps
        self._released = bool(scene.release) and scene.release in steps
        if self._gated or self._released or scene.knobs:
            held = self._released or (self._gated and not scene.release)
            self.world.vmm.configure(pauses=[scene.hold] if held else [], knobs=scene.knobs)

    def args(self) -> Args:
        """Return the arguments of the scene's operation."""
        return {**self.box.named(), **self.scene.args(self)}

    def count(self) -> Ended:
        """Run the scene's operation to its end, and note what it passes."""
        audit = "audit" in self.hello.ways
        return self._follow(self.program.begin(self.scene.op, self.args(), audit=audit))

    @property
    def hello(self) -> Hello:
        """What the orchestrator says of itself."""
        return self.program.ready(self.world.soon())

    @property
    def keeps_store(self) -> bool:
        """Whether the orchestrator keeps the reference's files, so that a sandbox's directory can be judged."""
        return STORE in self.hello.needs

    def strike(self, at: tuple[str, int], way: str, *, audit: bool = False) -> list[str]:
        """Have the orchestrator crash in the scene's operation, and return the steps that it had announced.

        Raises:
            Finding: The operation doesn't pass there.
        """
        pause, leave = (at, None) if way == "kill" else (None, at)
        if not audit and at[0] not in self.hello.steps:
            raise Finding(f"{self.where}: {at[0]}", expected="that it fires", found="no such step in the hello")
        running = self.program.begin(self.scene.op, self.args(), pause=pause, leave=leave, audit=audit)
        if self._released and running.reach_any([at, (self.scene.release, 1)], self.world.soon()) != at:
            self._release()
        self.program.crashed(running, at, way, self.world.soon())
        steps = [hit.step for hit in running.steps]
        self.ending = not ENDING.isdisjoint(steps)
        return steps

    def again(self, leave: tuple[str, int] | None = None) -> Ended:
        """Have another orchestrator do what is asked for after a crash, to its end or until it crashes as well."""
        if self.ending:
            # A VMM that was asked or signalled ends in its own time. What the next one meets must not depend on that.
            self.world.processes.none(f"{self.where}, then the end of its VMM", self.world.soon())
        self.world.vmm.configure()
        self.replace_program()
        scene = self.scene
        args = self.args() if scene.again == scene.op else self.box.named()
        if leave is None:
            return self._follow(self.program.begin(scene.again, args), release=False)
        running = self.program.begin(scene.again, args, leave=leave)
        self.program.crashed(running, leave, "exit", self.world.soon())
        return _ended(running, None)

    def trace(self, injection: str | None = None) -> Ended:
        """Run the scene's operation under strace, and end the orchestrator.

        Raises:
            Unavailable: There is no strace, or it may not attach here.
        """
        find()
        conversation = self.program.conversation()
        output = os.path.join(self.world.root, "out", f"trace-{self.orchestrators}.txt")
        threads = [int(task) for task in os.listdir(f"/proc/{self.program.pid}/task")]
        # Without other threads nobody else is followed, so that a child's n-th call isn't hit as well.
        follow = injection is None or len(threads) > 1
        tracer = Tracer(self.program.pid, output, injection=injection, follow=follow)
        self.world.processes.own(tracer.pid)
        try:
            ended = self._traced()
            self.program.close(self.world.soon())
            text = tracer.close(self.world.soon())
        except BaseException:
            tracer.stop()
            raise
        ended.trace = read(text, self.program.pid, self.namer(), conversation, threads)
        return ended

    def _traced(self) -> Ended:
        """Run the operation, held right after it has recorded its VMM until that can be connected to.

        How often it would have to try is no fact about it, and would be another number in every run.
        """
        gate = IDENTIFIED if self._gated else None
        running = self.program.begin(self.scene.op, self.args(), pause=gate)
        try:
            if gate is not None and running.reach(gate, self.world.soon()):
                peer = self.world.channel.wait_paused(self.scene.hold, self.world.soon())
                if not self._released:
                    self.world.channel.resume(peer)
                running.resume()
        except ProgramEnded:
            return _ended(running, None)
        return self._follow(running)

    def _follow(self, running: Operation, *, release: bool = True) -> Ended:
        """Wait for the operation's end, letting its VMM go where the scene says so."""
        try:
            if release and self._released and running.reach((self.scene.release, 1), self.world.soon()):
                self._release()
            return _ended(running, running.answer(self.world.soon()))
        except ProgramEnded:
            return _ended(running, None)

    def namer(self) -> Namer:
        """Return what names the objects of this stage."""
        return Namer(self.world.state, BOX, {self.world.artifacts.directory: "artifacts"})

    def _release(self) -> None:
        self.world.channel.resume(self.world.channel.wait_paused(self.scene.hold, self.world.soon()))

    def let_go(self) -> None:
        """Let every VMM go on that is held."""
        self.world.channel.pump()
        for peer in self.world.channel.peers:
            if peer.paused is not None and not peer.gone:
                self.world.channel.resume(peer)

    def discard(self) -> None:
        """End whatever goes on here, and take everything away; what it leaves is nobody's fault."""
        with interrupts_held():
            self.program.close()
            _discard(self.world)

    def require_free(self, where: str) -> None:
        """Check that an orchestrator that has ended holds no lock, by itself or by a child on its way to its exec.

        Raises:
            Finding: It does.
        """
        if not self.keeps_store:
            return
        lock = self.box.path("lifecycle.lock")
        if until(lambda: self.world.host.is_locked(lock) is not True, self.world.soon(LETTING_GO)):
            return
        raise Finding(where, expected="a free lifecycle lock", found="it is held")

    def require_bystander(self) -> None:
        """Check that nobody touched the process that has nothing to do with any of it.

        Raises:
            Finding: It ended.
        """
        bystander = self.bench.bystander
        if bystander is not None and bystander.pin.has_exited():
            raise Finding(self.where, expected="no other process touched", found=f"{bystander} has ended")


def _discard(world: World) -> None:
    """End and remove everything of a world, which Ctrl-C doesn't cut short."""
    with interrupts_held():
        for one in world.processes.look():
            one.pin.end()
            one.pin.wait(world.soon())
        world.close()
        world.evidence.remove()


def _ended(running: Operation, answer: Answer | None) -> Ended:
    events = [hit for hit in running.passed if hit not in running.steps]
    return Ended(answer, [*running.steps], events)
