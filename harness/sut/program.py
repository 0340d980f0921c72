"""A program that speaks the JSON lines: started, asked, held at steps, killed there, and never waited for blindly.

Its requests go through a pipe that it alone reads, its error output into a file. Its answers come through a pipe too,
and the end of the *process* is told by its pin, not by the end of that pipe: a VMM that inherited it by mistake can't
hold the harness up.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from harness.errors import Finding, HarnessError, Late, Unavailable, is_finding
from harness.platform import answers_of
from harness.sut.messages import MAX_LINE
from harness.sut.needs import require
from harness.sut.operation import Crash, Operation
from harness.sut.protocol import Answer, Args, Hello, Hit, ProtocolBroken, asked, decode, encode, read_hello, said

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from harness.deadline import Deadline
    from harness.live import Live
    from harness.sut.process import Source
    from harness.witness.contract import Host, Pin

__tracebackhide__ = is_finding

_TELLING = re.compile(r"error|panic|fatal|exception", re.IGNORECASE)

HARNESS = "harness"
"""Who asks, kills and resumes, in a story."""


class ProgramEnded(Finding):
    """The program ended in the middle of an operation.

    Args:
        status: Its exit status, negative for a signal.
        passed: What the operation had announced.
    """

    def __init__(self, where: str, status: int, passed: tuple[Hit, ...], said: str) -> None:
        last = f" after {passed[-1]}" if passed else ""
        super().__init__(where, expected="an answer", found=f"the orchestrator ended with {status}{last}{said}")
        self.status = status
        self.passed = passed


class Program:
    """One process of the orchestrator under test.

    Args:
        source: Makes the process.
        host: Pins it.
        errors: The file that takes its error output, appended.
        cwd: Its working directory.
        started: Told of its PID at once.
        asked: Told of itself and of each operation, before it is asked for.
        live: Told who did what, as it happens.

    Attributes:
        succeeded: Whether its last operation has, as far as its answer was read.
    """

    def __init__(
        self,
        source: Source,
        *,
        host: Host,
        errors: str,
        cwd: str,
        started: Callable[[int], None],
        asked: Callable[[Program, str], None] | None = None,
        live: Live | None = None,
    ) -> None:
        self.errors = errors
        self._live = live
        self._asked = asked
        self.transcript: list[bytes] = []
        self.story: list[tuple[int, str, str]] = []
        self.hello: Hello | None = None
        self._buffer = b""
        self._lines: deque[dict[str, object]] = deque()
        self._next = 0
        self.crashes: list[str] = []
        self._running: Operation | None = None
        self.succeeded = False
        self._child = source.begin(errors=errors, cwd=cwd, host=host)
        self._status: int | None = None
        self.pid = self._child.pid
        started(self.pid)
        pin = host.pin(self.pid)
        if pin is None:
            raise HarnessError(f"orchestrator with pid {self.pid} can't be held")
        self._pin: Pin = pin
        self._requests = self._child.requests
        self._answers = self._child.answers
        self._said = answers_of(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self, deadline: Deadline) -> Hello:
        """Wait for its hello."""
        if self.hello is None:
            self.hello = read_hello(self._read("hello", deadline))
        return self.hello

    def begin(
        self, op: str, args: Args, *, pause: Crash | None = None, leave: Crash | None = None, audit: bool = False
    ) -> Operation:
        """Ask for an operation and return at once.

        Args:
            op: The operation.
            args: Its arguments.
            pause: Where it shall wait to be resumed or killed.
            leave: Where it shall end by itself, without any clean-up.
            audit: Whether it shall announce what its run-time reports of writes and locks, too.

        Raises:
            Unmet: Its hello doesn't declare what that needs; nothing was sent.
        """
        if self._running is not None:
            raise HarnessError(f"{self._running.where} hasn't ended yet")
        self._next += 1
        request: dict[str, object] = {"id": self._next, "op": op, "args": args}
        if pause is not None:
            request["pause"] = list(pause)
        if leave is not None:
            request["exit"] = list(leave)
        if audit:
            request["audit"] = True
        if self.hello is None:
            raise HarnessError(f"{op}: the orchestrator hasn't said hello")
        require(self.hello, request)
        if self._asked is not None:
            self._asked(self, op)
        self.succeeded = False
        self._running = Operation(self, self._next, op, pause)
        self._send(request)
        return self._running

    def call(self, op: str, args: Args, deadline: Deadline) -> Answer:
        """Ask for an operation and wait for its end.

        Raises:
            ProgramEnded: The program ended instead.
            Late: Neither happened by the deadline.
        """
        return self.begin(op, args).answer(deadline)

    def crash(
        self, op: str, args: Args, at: Crash, way: str, deadline: Deadline, *, audit: bool = False
    ) -> tuple[Hit, ...]:
        """Have the program crash in an operation, and return what it had announced.

        Args:
            op: The operation.
            args: Its arguments.
            at: The step or event, and its hit.
            way: ``exit``, by itself and without clean-up, or ``kill``, from outside while it is held there.
            deadline: By when it must have crashed.
            audit: Whether ``at`` is an event.

        Raises:
            Finding: The operation ended without passing there.
        """
        pause, leave = (at, None) if way == "kill" else (None, at)
        running = self.begin(op, args, pause=pause, leave=leave, audit=audit)
        return self.crashed(running, at, way, deadline)

    def crashed(self, running: Operation, at: Crash, way: str, deadline: Deadline) -> tuple[Hit, ...]:
        """Have a running operation crash where its request says so; as :meth:`crash`."""
        if way == "kill":
            running.wait_paused(deadline)
            self.kill(deadline)
            self.crashes.append(f"{running.op}/{way}/{Hit(*at)}")
            return tuple(running.passed)
        try:
            answer = running.answer(deadline)
        except ProgramEnded as ended:
            if ended.passed and ended.passed[-1] == Hit(*at):
                self.crashes.append(f"{running.op}/{way}/{Hit(*at)}")
                return ended.passed
            raise
        where = f"{running.op} crashed at {Hit(*at)}"
        raise Finding(where, expected="that it fires", found=f"{answer} after {running.trace()}")

    def kill(self, deadline: Deadline) -> None:
        """End it from outside, with no chance to clean up."""
        self._tell(HARNESS, f"kills orchestrator {self.pid}")
        self._pin.end()
        if not self._pin.wait(deadline):
            where = f"orchestrator with pid {self.pid} killed"
            raise Late(where, expected="its end", found="it still runs", deadline=deadline)
        self._finish()

    def close(self, deadline: Deadline | None = None) -> bool:
        """End its requests and give it until the deadline to end by itself; then kill it.

        Returns:
            Whether it ended by itself.
        """
        if self._status is not None:
            return True
        self._end_requests()
        willing = deadline is not None and self._pin.wait(deadline)
        if not willing:
            self._pin.end()
        self._finish()
        return willing

    def conversation(self) -> frozenset[str]:
        """Return what its descriptors of this conversation mean, as the kernel calls it: ``pipe:[7]``."""
        ends = (self._requests.fileno(), self._answers.fileno())
        try:
            return frozenset(os.readlink(f"/proc/self/fd/{end}") for end in ends)
        except OSError as error:
            raise Unavailable("following system calls", ("Linux, which names descriptors in /proc",)) from error

    def speaks_through(self) -> tuple[int, int]:
        """Return which object its answers come through, as device and inode, whoever holds it; zeros: unknown."""
        status = os.fstat(self._answers.fileno())
        return (status.st_dev, status.st_ino) if status.st_ino else (0, 0)

    def has_exited(self) -> bool:
        """Tell whether its process has ended."""
        return self._status is not None or self._pin.has_exited()

    def take(self, operation: Operation, deadline: Deadline) -> dict[str, object]:
        """Return the next message of the running operation."""
        message = self._read(operation.where, deadline, tuple(operation.passed))
        if message.get("id") != operation.number:
            other = f"the orchestrator answered another request: {message!r}, where the id is {operation.number}"
            raise ProtocolBroken(f"{operation.where}: {other}")
        return message

    def works(self) -> bool:
        """Tell, without waiting, whether it is in the middle of an operation."""
        if self._running is None or self._status is not None:
            return False
        self._drain()
        ended = [line["ok"] is True for line in self._lines if "ok" in line]
        if ended:
            self.succeeded = ended[-1]
        return not ended and not self._pin.has_exited()

    def done(self, *, ok: bool) -> None:
        """Take note that the running operation has ended."""
        self._running = None
        self.succeeded = ok

    def resume(self, number: int) -> None:
        """Let the running operation go on."""
        self._send({"resume": number})

    def _send(self, message: dict[str, object]) -> None:
        line = encode(message)
        self.transcript.append(b"> " + line)
        self._tell(HARNESS, asked(message))
        try:
            self._requests.write(line)
            self._requests.flush()
        except BrokenPipeError:
            # Its end is noticed, and told with its status, by whoever waits for the answer.
            return

    def _read(self, where: str, deadline: Deadline, passed: tuple[Hit, ...] = ()) -> dict[str, object]:
        while not self._lines:
            ready = self._said.wait(self._pin, deadline)
            if self._drain():
                continue
            if self._pin.has_exited():
                # What it wrote last may have come between the two looks.
                if self._drain() and self._lines:
                    continue
                raise ProgramEnded(where, self._finish(), passed, self._last_words())
            if not ready and deadline.expired():
                found = f"nothing{f' after {passed[-1]}' if passed else ''}{self._last_words()}"
                raise Late(where, expected="an answer of the orchestrator", found=found, deadline=deadline)
        return self._lines.popleft()

    def _drain(self) -> bool:
        """Read what there is; tell whether there was anything."""
        data = self._said.read()
        if data is None:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        where = self._running.where if self._running is not None else "hello" if self.hello is None else "no request"
        self.transcript += [b"< " + line + b"\n" for line in lines]
        for line in lines:
            self._lines.append(decode(line, where))
            self._tell(f"orchestrator {self.pid}", said(self._lines[-1]))
        if len(self._buffer) > MAX_LINE:
            decode(self._buffer, where)
        return bool(data)

    def _tell(self, who: str, what: str) -> None:
        """Take note of something that happened now; answers have the moment at which they were read."""
        self.story.append((time.monotonic_ns(), who, what))
        if self._live is not None:
            self._live(who, what)

    def _finish(self) -> int:
        self._status = self._child.wait()
        self._tell(f"orchestrator {self.pid}", f"has ended with {self._status}")
        self._end_requests()
        self._answers.close()
        self._pin.close()
        return self._status

    def _end_requests(self) -> None:
        # A request that nobody took is still in there, and is tried once more.
        with suppress(BrokenPipeError):
            self._requests.close()

    def _last_words(self) -> str:
        with open(self.errors, "rb") as file:
            lines = file.read().decode(errors="backslashreplace").strip().splitlines()
        # Run-times print more below what went wrong: a stack, a version, advice.
        telling = [line for line in lines if _TELLING.search(line)]
        return f"; its last words: {(telling or lines)[-1].strip()}" if lines else ""
