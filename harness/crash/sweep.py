"""A sweep: the parts of a plan, run one after the other in this process or in several, counted and reported."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from harness import python, stale, witness
from harness.backends.contract import SWEEP
from harness.crash.cells import EXIT, KILL, Cell, Point
from harness.crash.plan import STEPS, Planned, Planner
from harness.crash.run import run
from harness.crash.scenes import SCENES
from harness.crash.stage import Bench
from harness.crash.states import SOCKET, Allowed
from harness.errors import Finding, HarnessError, Unavailable, Unsupported
from harness.places import environment
from harness.platform import fork_template
from harness.runs import as_data, shown
from harness.table import CRASHES, FIGURES, LEFT
from harness.witness.processes import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from harness.backends.contract import Backend
    from harness.crash.plan import Part
    from harness.crash.run import Result
    from harness.settings import Settings

GOLDEN = "allowed_states.json"
SHOWN = 12
"""How many failed cells a text shows in full."""

_IDLE = "import sys\nsys.stdin.read()\n"
"""It ends with whoever started it, whatever ends that."""


@dataclass(slots=True)
class Tally:
    """What a sweep, or a part of one, came to.

    Attributes:
        points: Crash points: cells that were run.
        fired: Those whose crash, or error, happened where they say.
        started: Processes that were really started: VMMs, and orchestrators that weren't forked.
        failures: The cells that a witness holds something against.
        results: All of them.
        left: Why what was left out could not be run, each with how many cells it was.
    """

    points: int = 0
    fired: int = 0
    started: int = 0
    failures: list[Result] = field(default_factory=list["Result"])
    results: list[Result] = field(default_factory=list["Result"])
    left: Counter[str] = field(default_factory=Counter[str])

    def try_cell(self, run_it: Callable[[], Result]) -> None:
        """Run one cell and take its result, or leave it out where it can't be run."""
        try:
            self.take(run_it())
        except Unavailable as missing:
            self.left[str(missing)] += 1

    def take(self, result: Result) -> None:
        """Take one cell's result."""
        self.points += 1
        self.fired += result.fired
        self.started += result.started
        self.results.append(result)
        if result.violation:
            self.failures.append(result)

    def figures(self) -> dict[str, int]:
        """Return its numbers, by the names that the report gives them."""
        return {
            "crashPoints": self.points,
            "violations": len(self.failures),
            "cellsFired": self.fired,
            "processesStarted": self.started,
        }

    def left_out(self) -> list[str]:
        """Return what was left out: how many cells of all, and why."""
        whole = self.points + self.left.total()
        return [f"{count} of {whole} crash cells: {reason}" for reason, count in sorted(self.left.items())]

    def crashes(self, options: tuple[str, ...]) -> list[dict[str, object]]:
        """Return its cells as the report takes them.

        Args:
            options: What a replay has to be told besides the cell.
        """
        return [
            {
                "cell": one.cell,
                "fired": one.fired,
                "verdict": one.verdict,
                "reason": one.violation,
                "evidence": one.evidence,
                "replay": replay_command(one.cell, options),
                "seconds": one.seconds,
                "story": one.story,
                "vmms": as_data(one.vmms),
            }
            for one in self.results
        ]

    def line(self) -> str:
        """Return its numbers as one line."""
        cells = f"{self.points} crash points, {self.fired} of them fired, {self.started} processes started"
        return f"{cells}: {len(self.failures)} violations"


class Sweep:
    """Runs cells in this process.

    Args:
        bench: What they share.
        golden: The path of `goldens/allowed_states.json`.
        options: What a replay has to be told besides the cell, as words of its command.
    """

    def __init__(self, bench: Bench, golden: str, options: tuple[str, ...] = ()) -> None:
        self._bench = bench
        self._options = options
        self._golden = golden
        self.allowed = Allowed(golden, without=frozenset({SOCKET} if witness.host().serves_pipes else ()))
        self.planner = Planner(bench, bench.settings.sweep)

    def run(self, part: Part) -> Tally:
        """Run a part of the sweep.

        Raises:
            Finding: It can't be planned.
            Unavailable: This machine, or this orchestrator, has no such cells.

        Returns:
            What it came to; a cell that can't be run here is left out, and counted.
        """
        tally = Tally()
        reason = self._bench.backend.lacks(SWEEP)
        for planned in self.planner.cells(part) if reason is None else self._few(part, reason):
            tally.try_cell(partial(self.cell, planned))
        return tally

    def _few(self, part: Part, reason: str) -> list[Planned]:
        """Plan each step with a VMM once in a whole run, by the two ways in turn, for guests that boot for seconds.

        The steps are those of the golden, so that no scene has to be run to count them.
        """
        if part.group != STEPS or not self.bundled:
            raise Unsupported(self._bench.backend.name, reason)
        names = [*SCENES]
        before = {step for name in names[: names.index(part.scene)] for step in self.allowed.with_vmm(name)}
        found = [step for step in self.allowed.with_vmm(part.scene) if step not in before]
        if not found:
            raise Unsupported(self._bench.backend.name, f"{reason}: {part.scene} has none of its own with a VMM")
        return [Planned(Cell(part.scene, (EXIT, KILL)[number % 2], Point(step))) for number, step in enumerate(found)]

    def cell(self, planned: Planned) -> Result:
        """Run one cell."""
        return run(self._bench, self.allowed, planned.cell, planned.call)

    def replay(self, cell: Cell) -> Result:
        """Run one cell by its id alone."""
        return run(self._bench, self.allowed, cell)

    @contextmanager
    def started(self) -> Generator[Sweep, None, None]:
        """Make a sweep that starts a real process for each orchestrator."""
        settings = self._bench.settings
        with open_bench(settings, self._bench.backend, started=True) as bench:
            yield Sweep(bench, self._golden, options_of(settings, started=True))

    def told(self, tally: Tally) -> list[tuple[str, object]]:
        """Return what the report takes of a tally, as properties of its test: figures, cells, and what was left out."""
        return [(FIGURES, tally.figures()), (CRASHES, tally.crashes(self._options)), (LEFT, tally.left_out())]

    def text(self, tally: Tally) -> str:
        """Return what the failed cells of a tally are, at least one, with the line that runs each again."""
        return text_of(tally, self._options)

    @property
    def bundled(self) -> bool:
        """Whether the orchestrator under test is the bundled reference, whose steps, files and calls are known."""
        return self._bench.settings.orchestrator is None

    def _passed(self, name: str) -> list[str]:
        try:
            return [step.name for step in self.planner.steps(name)]
        except Unavailable:
            if self.bundled or not self.planner.vocabulary():
                raise
            # It declares less than the scene takes.
            return []

    def require_every_step(self) -> None:
        """Check that every step is passed by a scene, so that it has its crash cases, and has its allowed states.

        Raises:
            Finding: A step has none.
        """
        passed = {(name, step) for name in SCENES for step in self._passed(name)}
        known = set(self.planner.vocabulary())
        if missed := sorted(known - {step for _, step in passed}):
            raise Finding("steps", expected="a crash case for each", found=f"none for {', '.join(missed)}")
        if unknown := sorted({step for _, step in passed} - known):
            raise Finding("steps", expected="those of the hello", found=f"others, too: {', '.join(unknown)}")
        if not self.bundled:
            return
        if mute := sorted(f"{step} in {name}" for name, step in passed if not self.allowed.knows(name, step)):
            raise Finding(self.allowed.path, expected="allowed states of each step", found=f"none of {', '.join(mute)}")


def text_of(tally: Tally, options: tuple[str, ...]) -> str:
    """Return what the failed cells of a tally are, with the line that runs each again.

    Args:
        tally: The tally.
        options: What a replay has to be told besides the cell.
    """
    # Of a longer text the table has the first line alone.
    first = tally.failures[0].violation.partition("\n")[0]
    lines = [f"{len(tally.failures)} of {tally.points} crash cells failed, the first: {first}"]
    for failure in tally.failures[:SHOWN]:
        lines += ["", failure.violation, *(f"  {line}" for line in shown(failure.vmms))]
        if failure.evidence:
            lines += [f"  evidence: {failure.evidence}", f"  replay:   {replay_command(failure.cell, options)}"]
    rest = [failure.cell for failure in tally.failures[SHOWN:]]
    return "\n".join([*lines, *(["", "and", *(f"  {cell}" for cell in rest)] if rest else [])])


def replay_command(cell: str, options: tuple[str, ...]) -> str:
    """Return the one line that runs a cell again."""
    return python.as_text(["nvx-harness", "replay", *options, cell])


def options_of(settings: Settings, *, started: bool) -> tuple[str, ...]:
    """Return what a replay has to be told of a run's settings."""
    words = ["--backend", settings.backend] if settings.backend != "fake" else []
    for option in ("artifacts", "openvmm", "orchestrator"):
        value: str | None = getattr(settings, option)
        words += [f"--{option}", value] if value else []
    words += ["--started"] if started and not settings.orchestrator else []
    return tuple(words)


@contextmanager
def open_bench(settings: Settings, backend: Backend, *, started: bool = False) -> Generator[Bench, None, None]:
    """Make what the cells of this process share.

    Args:
        settings: The run's options.
        backend: What VMMs run on.
        started: Whether every orchestrator is a real process from its command on, as it is for any other orchestrator
            than the bundled reference.
    """
    host = witness.host()
    host.adopt_orphans()
    with ExitStack() as stack:
        place = tempfile.mkdtemp(prefix="t", dir=_claimed(settings.directory))
        stack.callback(shutil.rmtree, place)
        bench = Bench(settings, backend, bystander=stack.enter_context(_bystander()))
        if settings.orchestrator is None and not started and (template := fork_template(place, environment())):
            bench.source = stack.enter_context(template)
        yield bench


def golden_path(directory: str | None) -> str:
    """Return the path of the golden: below a directory, here, or beside this package.

    Raises:
        HarnessError: It is nowhere.
    """
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "goldens")
    places = [directory] if directory else ["goldens", beside]
    for place in places:
        if os.path.exists(path := os.path.join(place, GOLDEN)):
            return os.path.abspath(path)
    raise HarnessError(f"no {GOLDEN} in {' or '.join(places)}: name its directory by --goldens")


def require_golden(path: str) -> str:
    """Return the path of a golden that says something of every scene: of what it doesn't mention, anything would pass.

    Raises:
        HarnessError: It doesn't, or is none.
    """
    if silent := [name for name in SCENES if name not in Allowed(path).scenes()]:
        raise HarnessError(
            f"{path}: says nothing of {', '.join(silent)}: name the goldens of this harness by --goldens"
        )
    return path


def _claimed(directory: str) -> str:
    stale.claim(directory)
    return directory


@contextmanager
def _bystander() -> Generator[Seen, None, None]:
    """Run a process that has nothing to do with anything."""
    import subprocess  # noqa: PLC0415 - once in a sweep

    command = [python.interpreter(), "-I", "-S", "-c", _IDLE]
    # What a terminal tells those who work in it is not for this one.
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(), start_new_session=True)
    pin = witness.host().pin(child.pid)
    if pin is None:
        raise HarnessError("a process of our own can't be held")
    try:
        yield Seen(pin, command, {"bystander"})
    finally:
        pin.end()
        child.communicate()
        pin.close()
