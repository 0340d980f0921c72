"""A sweep in several processes: each has its own template, its own worlds and its own witnesses."""

from __future__ import annotations

import signal
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

from harness.backends import load
from harness.crash.run import Result
from harness.crash.sweep import Sweep, Tally, open_bench, options_of
from harness.errors import Finding, Unavailable
from harness.sharding import Slice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from harness.crash.plan import Part, Planned
    from harness.progress import Bar
    from harness.settings import Settings

AT_ONCE = 4
"""How many cells a worker is given at a time: enough not to wait for the next, few enough for all to end together."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker needs to know.

    Attributes:
        settings: The run's options.
        golden: The path of `goldens/allowed_states.json`.
        started: Whether every orchestrator is a real process from its command on.
    """

    settings: Settings
    golden: str
    started: bool = False

    def open(self, stack: ExitStack) -> Sweep:
        """Make the sweep of this process."""
        bench = stack.enter_context(open_bench(self.settings, load(self.settings), started=self.started))
        return Sweep(bench, self.golden, options_of(self.settings, started=self.started))


@dataclass(slots=True)
class _Worker:
    """What one process keeps from one call to the next."""

    stack: ExitStack
    sweep: Sweep | None = None


_worker = _Worker(ExitStack())


@dataclass(slots=True)
class Swept:
    """What a sweep in several processes came to.

    Attributes:
        slice: Which cells it covers.
        tally: What they came to.
        missing: Why what could not be run could not.
    """

    slice: Slice
    tally: Tally = field(default_factory=Tally)
    missing: set[str] = field(default_factory=set[str])


def sweep_all(task: Task, parts: Sequence[Part], jobs: int, bar: Bar) -> Swept:
    """Plan and run parts of a sweep in several processes.

    Args:
        task: What each of them needs to know.
        parts: The parts.
        jobs: How many processes.
        bar: Takes note of what is done.

    Returns:
        What it came to. Of the cells only those were run that belong to the settings' shard; all were planned.
    """
    swept = Swept(Slice(task.settings.shard))
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(task,)) as pool:
        pending: set[Future[object]] = {pool.submit(_plan, part) for part in parts}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    pending |= _take(pool, future.result(), swept, bar)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return swept


def _take(pool: ProcessPoolExecutor, found: object, swept: Swept, bar: Bar) -> set[Future[object]]:
    """Take what a worker came back with, and return what has to be done because of it."""
    match found:
        case str(reason):
            swept.missing.add(reason)
        case Result():
            bar.plan(1)
            _note(found, swept.tally, bar)
        case _Plan(planned):
            cells = [one for one in planned if swept.slice.take(str(one.cell))]
            bar.plan(len(cells))
            return {pool.submit(_run, cells[place : place + AT_ONCE]) for place in range(0, len(cells), AT_ONCE)}
        case _Ran(results):
            for result in results:
                _note(result, swept.tally, bar)
        case _:
            raise TypeError(f"a worker came back with {found!r}")
    return set()


def _note(result: Result, tally: Tally, bar: Bar) -> None:
    tally.take(result)
    bar.done(failed=bool(result.violation))


@dataclass(frozen=True, slots=True)
class _Plan:
    cells: list[Planned]


@dataclass(frozen=True, slots=True)
class _Ran:
    results: list[Result]


def _begin(task: Task) -> None:
    # Ctrl-C is the parent's to answer; what a worker has begun it cleans up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker.sweep = task.open(_worker.stack)


def _own() -> Sweep:
    if _worker.sweep is None:
        raise RuntimeError("no worker of a sweep")
    return _worker.sweep


def _plan(part: Part) -> object:
    try:
        return _Plan(_own().planner.cells(part))
    except Unavailable as error:
        return str(error)
    except Finding as error:
        return Result(f"{part.scene}/count", violation=str(error))


def _run(cells: list[Planned]) -> object:
    sweep = _own()
    try:
        return _Ran([sweep.cell(planned) for planned in cells])
    except Unavailable as error:
        return str(error)
