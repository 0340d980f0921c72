"""One operation of a program, from its request to its answer, with every message on the way held against its type."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from harness.errors import Finding, HarnessError, is_finding
from harness.sut.messages import MAX_HITS, EventSaid, Failure, StepSaid, Success
from harness.sut.needs import DETAILS
from harness.sut.protocol import Answer, Hit, ProtocolBroken, check_result, convert, mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.deadline import Deadline
    from harness.sut.program import Program

__tracebackhide__ = is_finding

Crash = tuple[str, int]
"""A step or event, and the hit at which it is meant."""


class Operation:
    """One operation of a program, from its request to its answer.

    Attributes:
        passed: What it has announced, steps and events, in order.
        steps: The steps of it.
    """

    def __init__(self, program: Program, number: int, op: str, pause: Crash | None) -> None:
        self._program = program
        self._pause = pause
        self._ended: Answer | None = None
        self._counts: Counter[str] = Counter()
        self.number = number
        self.op = op
        self.passed: list[Hit] = []
        self.steps: list[Hit] = []

    @property
    def where(self) -> str:
        """What a failure text calls it."""
        return f"{self.op} at {self.passed[-1]}" if self.passed else self.op

    def trace(self) -> str:
        """Return what it has announced as one clause."""
        return " ".join(str(hit) for hit in self.passed) or "no step"

    def wait_paused(self, deadline: Deadline) -> Hit:
        """Wait until it is held where a pause was asked.

        Raises:
            Finding: It ended before that.
            ProgramEnded: The program ended before that.
        """
        if self._pause is None:
            raise HarnessError(f"{self.op}: no pause was asked")
        wanted = Hit(*self._pause)
        if self.reach(self._pause, deadline):
            return wanted
        found = f"{self._ended} after {self.trace()}"
        raise Finding(f"{self.op} held at {wanted}", expected="that it gets there", found=found)

    def reach(self, at: Crash, deadline: Deadline) -> bool:
        """Wait until it announces a step or event; False if it ends before that.

        Raises:
            ProgramEnded: The program ended before that.
        """
        return self.reach_any([at], deadline) is not None

    def reach_any(self, points: Iterable[Crash], deadline: Deadline) -> Crash | None:
        """Wait until it announces one of several steps or events, and return that; None if it ends before that.

        One that it announced earlier is returned at once.

        Raises:
            ProgramEnded: The program ended before that.
        """
        wanted = [*points]
        while True:
            for point in wanted:
                if Hit(*point) in self.passed:
                    return point
            if self._ended is not None:
                return None
            self._step(deadline)

    def resume(self) -> None:
        """Let it go on from where it is held."""
        self._program.resume(self.number)

    def answer(self, deadline: Deadline) -> Answer:
        """Wait for its end."""
        while self._ended is None:
            self._step(deadline)
        return self._ended

    def _step(self, deadline: Deadline) -> None:
        message = self._program.take(self, deadline)
        # A hello, too, has its one place; whatever this harness doesn't know is told, not skipped.
        if "step" in message:
            step = convert(message, StepSaid, self.where)
            self.steps.append(self._announced(step.step, step.hit))
        elif "event" in message:
            event = convert(message, EventSaid, self.where)
            self._announced(event.event, event.hit)
        elif "ok" in message:
            self._end(message)
        else:
            raise ProtocolBroken(f"{self.where}: the orchestrator said {message!r}, which is no message of a program")

    def _announced(self, name: str, number: int) -> Hit:
        """Take a step or event; they are counted from 1 by name, without a gap."""
        hit, before = Hit(name, number), self._counts[name]
        if number != before + 1:
            raise ProtocolBroken(f"{self.where}: the orchestrator announced {hit} after {before} of that name")
        if len(self.passed) >= MAX_HITS:
            raise ProtocolBroken(f"{self.where}: the orchestrator announced over {MAX_HITS} steps in one operation")
        self._counts[name] += 1
        self.passed.append(hit)
        return hit

    def _end(self, message: dict[str, object]) -> None:
        if message["ok"] is True:
            convert(message, Success, self.where)
            result = mapping(message.get("result"))
            check_result(self.op, result)
            self._ended = Answer(ok=True, result=result, steps=tuple(self.steps))
        else:
            said = convert(message, Failure, self.where)
            explained = self._program.hello is not None and DETAILS in self._program.hello.needs
            more = mapping(message.get("details")) if explained else None
            self._ended = Answer(ok=False, code=said.code, message=said.message, steps=tuple(self.steps), more=more)
        self._program.done(ok=self._ended.ok)
