"""How far a sweep or a set-up is: one bar with counts and the time left, on a terminal, and nothing anywhere else."""

from __future__ import annotations

import re
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.progress import Progress, TaskID

MINUTE = 60


class Bar(Protocol):
    """Takes note of what is done."""

    def plan(self, cells: int) -> None:
        """Take note of so many cells to be run."""
        ...

    def done(self, *, failed: bool) -> None:
        """Take note of one that was run."""
        ...

    def name(self, title: str) -> None:
        """Say what is being done now."""
        ...


class Silence:
    """Says nothing: the bar of everything that is no terminal."""

    def plan(self, cells: int) -> None:
        """See :class:`Bar`."""

    def done(self, *, failed: bool) -> None:
        """See :class:`Bar`."""

    def name(self, title: str) -> None:
        """See :class:`Bar`."""


@contextmanager
def bar(title: str) -> Generator[Bar, None, None]:
    """Show a bar on the error output for as long as the block lasts, if that is a terminal."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield Silence()
        return
    from rich.console import Console  # noqa: PLC0415 - on a terminal only
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    failures = TextColumn("[red]{task.fields[failed]}")
    left = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), failures, *left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None, failed="")
        yield _Shown(progress, task)


class _Shown:
    """See :class:`Bar`."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._planned = 0
        self._failed = 0

    def plan(self, cells: int) -> None:
        """See :class:`Bar`."""
        self._planned += cells
        self._progress.update(self._task, total=self._planned)

    def done(self, *, failed: bool) -> None:
        """See :class:`Bar`."""
        self._failed += failed
        said = f"{self._failed} failed" if self._failed else ""
        self._progress.update(self._task, advance=1, failed=said)

    def name(self, title: str) -> None:
        """See :class:`Bar`."""
        self._progress.update(self._task, description=title)


@contextmanager
def stages(title: str) -> Generator[Callable[[str], None], None, None]:
    """Show how far something is that tells its stages, as ``2/5 what it does now``, for as long as the block lasts.

    Yields:
        What takes each line: a stage moves the bar, where there is a terminal, and is left out elsewhere; any other
        line is the result's, and printed to the output.
    """
    with bar(title) as shown:
        begun = 0

        def say(line: str) -> None:
            nonlocal begun
            stage = re.fullmatch(r"(\d+)/(\d+) (.*)", line)
            if stage is None:
                print(line, flush=True)  # noqa: T201 - what the command has to say
                return
            if not begun:
                shown.plan(int(stage[2]))
            for _ in range(int(stage[1]) - 1 - max(0, begun - 1)):
                shown.done(failed=False)
            begun = int(stage[1])
            shown.name(f"{title}: {stage[3]}")

        yield say


class Line:
    """The same for a run of pytest, whose workers report a part of a sweep at a time: one line, written over.

    Args:
        parts: How many parts there are.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._done = 0
        self._cells = 0
        self._failed = 0
        self._began = time.monotonic()

    def take(self, cells: int, failed: int) -> str:
        """Take note of a part that was run, and return the line."""
        self._done += 1
        self._cells += cells
        self._failed += failed
        elapsed = time.monotonic() - self._began
        left = elapsed / self._done * (self._parts - self._done)
        failures = f", {self._failed} failed" if self._failed else ""
        where = f"part {self._done} of {self._parts}"
        return f"crash cells: {self._cells}{failures}; {where}, {clock(elapsed)}, about {clock(left)} left"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds."""
    return f"{int(seconds) // MINUTE}:{int(seconds) % MINUTE:02}"
