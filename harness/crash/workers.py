"""A sweep in several processes: each has its own template, its own worlds and its own witnesses."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from harness import outputs
from harness.backends import load
from harness.crash.run import Result
from harness.crash.sweep import Sweep, Tally, open_bench, options_of
from harness.errors import Finding, HarnessError, Unavailable
from harness.platform import interrupt, interrupts_held, take_interrupts
from harness.sharding import Slice

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
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
    """What one process keeps from one call to the next.

    Attributes:
        stack: What it holds.
        sweep: Its sweep.
        busy: Whether it is in the middle of a cell, which Ctrl-C cuts short.
        stopped: Whether Ctrl-C has come: nothing is begun any more.
        fault: Why it could not begin.
    """

    stack: ExitStack
    sweep: Sweep | None = None
    busy: bool = False
    stopped: bool = False
    fault: str = ""


_worker = _Worker(ExitStack())


@dataclass(slots=True)
class Swept:
    """What a sweep in several processes came to.

    Attributes:
        slice: Which cells it covers.
        tally: What they came to.
        missing: Why what could not be run could not, each with how many cells that were planned it was, at least 1.
    """

    slice: Slice
    tally: Tally = field(default_factory=Tally)
    missing: Counter[str] = field(default_factory=Counter[str])


def sweep_all(task: Task, parts: Sequence[Part], jobs: int, bar: Bar) -> Swept:
    """Plan and run parts of a sweep in several processes.

    Args:
        task: What each of them needs to know.
        parts: The parts.
        jobs: How many processes.
        bar: Takes note of what is done.

    Raises:
        HarnessError: A process could not begin, or was ended.

    Returns:
        What it came to. Of the cells only those were run that belong to the settings' shard; all were planned.
    """
    swept = Swept(Slice(task.settings.shard))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(task,)) as pool:
        try:
            with interrupts_held():
                # What has no work yet is begun with the work, now or later.
                pending: set[Future[object]] = {pool.submit(_plan, part) for part in parts}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    pending |= _take(pool, future.result(), swept, bar)
        except BrokenProcessPool as error:
            raise HarnessError("a process of the sweep was ended from outside; its cells are lost") from error
        except BaseException:
            for child in multiprocessing.active_children():
                interrupt(child)
            pool.shutdown(cancel_futures=True)
            raise
    return swept


def _take(pool: ProcessPoolExecutor, found: object, swept: Swept, bar: Bar) -> set[Future[object]]:
    """Take what a worker came back with, and return what has to be done because of it."""
    match found:
        case str(reason):
            swept.missing.setdefault(reason, 1)
        case Result():
            bar.plan(1)
            _note(found, swept.tally, bar)
        case _Plan(planned):
            cells = [one for one in planned if swept.slice.take(str(one.cell))]
            bar.plan(len(cells))
            with interrupts_held():
                return {pool.submit(_run, cells[place : place + AT_ONCE]) for place in range(0, len(cells), AT_ONCE)}
        case _Broken(reason):
            raise HarnessError(reason)
        case _Ran(tally):
            swept.missing += tally.left
            for result in tally.results:
                _note(result, swept.tally, bar)
            for _ in range(tally.left.total()):
                bar.done(failed=False)
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
    tally: Tally


@dataclass(frozen=True, slots=True)
class _Broken:
    reason: str


def _begin(task: Task) -> None:
    take_interrupts(_interrupted)
    try:
        _worker.sweep = task.open(_worker.stack)
    except (HarnessError, OSError) as error:
        # What is raised here would be printed by each worker, and be lost to whoever waits for them.
        _worker.fault = outputs.said_of(error)


def _interrupted(_number: int, _frame: object) -> None:
    """Cut the cell short that is being run; the clean-up after it, and everything that follows, isn't cut again."""
    busy, _worker.busy, _worker.stopped = _worker.busy, False, True
    if busy:
        raise KeyboardInterrupt


@contextmanager
def _at_work() -> Generator[Sweep, None, None]:
    """Let Ctrl-C cut the block short, which the block's owner takes."""
    if _worker.sweep is None:
        raise HarnessError(_worker.fault or "no worker of a sweep")
    _worker.busy = not _worker.stopped
    try:
        if _worker.stopped:
            raise KeyboardInterrupt
        yield _worker.sweep
    finally:
        _worker.busy = False


def _plan(part: Part) -> object:
    try:
        with _at_work() as sweep:
            return _Plan(sweep.planner.cells(part))
    except KeyboardInterrupt:
        return _Ran(Tally())
    except Unavailable as error:
        return str(error)
    except HarnessError as error:
        return _Broken(str(error))
    except OSError as error:
        return _Broken(f"the place of runs: {outputs.said_of(error)}")
    except Finding as error:
        return Result(f"{part.scene}/count", violation=str(error))


def _run(cells: list[Planned]) -> object:
    done = Tally()
    try:
        with _at_work() as sweep:
            for planned in cells:
                done.try_cell(partial(sweep.cell, planned))
    except KeyboardInterrupt:
        return _Ran(done)
    except HarnessError as error:
        return _Broken(str(error))
    except OSError as error:
        return _Broken(f"the place of runs: {outputs.said_of(error)}")
    return _Ran(done)
