"""The VMMs of a test as a scenario asks for them: the one that there must be, and what became of each that ended."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from harness.deadline import until
from harness.errors import Finding, is_finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.backends.contract import TestSide, Vm
    from harness.deadline import Clock
    from harness.witness.processes import Processes, Seen

    Object = tuple[int, int]

__tracebackhide__ = is_finding

LOG = "openvmm.log"
"""What the log of a VMM is called."""

LINES = 3
"""Lines of a log that are told: its last ones that aren't empty."""

WIDTH = 200
"""Characters of such a line at most."""

TAIL = 4096
"""Bytes of a log that are looked at."""

SHOWN = 2
"""VMMs that a failure's text tells of: the last ones."""

BEGINNING = 0.5
"""Seconds that a VMM may take from its start to its first trace."""

_REFUSAL = re.compile(r"(fatal )?error: ")

MOST = 20
"""VMMs that are told of at most: the last ones."""


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one VMM.

    Attributes:
        pid: Its process.
        state: ``runs``, ``left`` where it still ran when the test had ended, or ``ended``.
        status: Its exit status, negative for the signal that ended it; None where nobody but its parent was told.
        silent: Whether it never said hello, which a stand-in does before anything else.
        log: The last lines of its log, without secrets.
    """

    pid: int
    state: str
    status: int | None = None
    silent: bool = False
    log: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        if self.state == "runs":
            how = "runs"
        elif self.state == "left":
            how = "still ran at the end of the test"
        elif self.status is None:
            how = "has ended; only its parent was told with which status"
        else:
            how = f"ended with status {self.status}" if self.status >= 0 else f"was ended by signal {-self.status}"
        return f"pid {self.pid} {how}{', before it said hello' if self.silent else ''}"

    @property
    def last(self) -> str:
        """The same with the last line of its log that says most, in one line."""
        # A refusal is followed by advice.
        telling = next((line for line in self.log if _REFUSAL.match(line)), self.log[-1] if self.log else "")
        return f"VMM {self}; its log {f'ends with {telling!r}' if telling else 'is empty or gone'}"


class Runs:
    """The VMMs of one test.

    Args:
        side: The backend's part in it.
        processes: The process witness.
        clock: Makes the deadlines.
        heard: Returns the numbers of those that said hello.
        state: The state root, below which logs are.
        redact: Takes secrets out.
    """

    def __init__(
        self,
        side: TestSide,
        processes: Processes,
        clock: Clock,
        *,
        heard: Callable[[], set[int]],
        state: str,
        redact: Callable[[bytes], bytes],
    ) -> None:
        self._side = side
        self._processes = processes
        self.clock = clock
        self._heard = heard
        self._state = state
        self._redact = redact

    def one(self, where: str) -> Vm:
        """Return the one VMM that was started so far.

        Args:
            where: The step or operation that started it.

        Raises:
            Finding: None was, or more than one; it names them.
        """
        found = self._side.vms()
        if len(found) != 1:
            raise Finding(where, expected="exactly one VMM started so far", found=self._listed(len(found)))
        return found[0]

    def last(self, where: str) -> Vm:
        """Return the VMM that was started last.

        Raises:
            Finding: None was.
        """
        found = self._side.vms()
        if not found:
            raise Finding(where, expected="a VMM", found=self._listed(0))
        return found[-1]

    def told(self) -> list[Told]:
        """Return what became of each, in the order of their starts; nothing once the test's directory is gone."""
        if not os.path.isdir(self._state):
            return []
        launched, heard = self._side.launched(), self._heard()
        self._processes.alive()
        seen = {one.pin.pid: one for one in self._processes.ever() if one.is_vmm}
        vms = {vm.pid: vm for vm in self._side.vms()}
        logs = _objects(self._state)
        found: list[Told] = []
        for pid in list(dict.fromkeys([*vms, *launched, *seen]))[-MOST:]:
            one, vm = seen.get(pid), vms.get(pid)
            trace = launched.get(pid)
            told = [one.status if one else None, vm.status() if vm else None, trace.status if trace else None]
            status = next((status for status in told if status is not None), None)
            outputs = [*(one.outputs if one else ()), *([trace.output] if trace else [])]
            path = next((logs[output] for output in outputs if output in logs), None)
            words = self._words(path) if path else []
            found.append(Told(pid, _state_of(one), status, silent=pid in launched and pid not in heard, log=words))
        return found

    def unseen(self) -> list[str]:
        """Return, as lines, the ends of logs whose VMM nobody saw with it: one that ended before anybody looked."""
        if not os.path.isdir(self._state):
            return []
        seen = {output for one in self._processes.ever() for output in one.outputs}
        seen |= {trace.output for trace in self._side.launched().values()}
        paths = [path for log, path in _objects(self._state).items() if log not in seen]
        lines: list[str] = []
        for path in sorted(path for path in paths if os.path.basename(path) == LOG):
            if words := self._words(path):
                shown = os.path.relpath(path, self._state)
                lines += [f"log:      {shown}, of a VMM that was gone before anybody looked, ends with"]
                lines += [f"          | {line}" for line in words]
        return lines

    def _listed(self, count: int) -> str:
        if not count:
            # One that was started a moment ago is on its way to its first trace.
            until(lambda: bool(self._side.launched() or self._processes.vmms()), self.clock.after(BEGINNING))
        told = "; ".join(one.last for one in self.told())
        if told and not count:
            return f"none that has begun to boot, and `start` answers once the guest is ready: {told}"
        return f"{count or 'none'}{f': {told}' if told else ''}"

    def _words(self, path: str) -> list[str]:
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                data = file.read()
        except OSError:
            return []
        text = self._redact(data).decode(errors="backslashreplace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines[-LINES:]]


def _state_of(one: Seen | None) -> str:
    if one is None or one.pin.has_exited():
        return "left" if one is not None and one.left else "ended"
    return "runs"


def _objects(root: str) -> dict[Object, str]:
    """Return the files below a directory by what they are."""
    found: dict[Object, str] = {}
    for path in _files(root):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        found[status.st_dev, status.st_ino] = path
    return found


def _files(root: str) -> Iterable[str]:
    for place, _, names in os.walk(root):
        for name in names:
            yield os.path.join(place, name)


def as_data(told: Iterable[Told]) -> list[dict[str, object]]:
    """Return what became of VMMs as a report takes it."""
    return [asdict(one) for one in told]


def shown(told: Sequence[Told]) -> list[str]:
    """Return what a failure's text says of VMMs: the last ones, and the last lines of what has ended."""
    lines: list[str] = []
    for one in told[-SHOWN:]:
        lines.append(f"VMM:      {one}{'; its log ends with' if one.log else ''}")
        lines += [f"          | {line}" for line in one.log]
    return lines
