"""What a benchmark reports, and how two or more ways of one thing are timed side by side."""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

FORMAT = 1


class Row(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One line of the table: one figure, its target, and what it was measured beside.

    Args:
        id: A stable name.
        what: What was measured.
        measured: The figure, in ``unit``.
        unit: ``x`` for a ratio, or what it counts.
        target: What it should be.
        bound: Whether the target is the most or the least that it should be.
        figures: The figures that it comes from and the rivals', by name, in ``figureUnit``.
        figure_unit: Their unit.
        rounds: How often each was measured.
        note: What one must know to read it, or empty.
    """

    id: str
    what: str
    measured: float
    unit: str
    target: float
    bound: Literal["most", "least"]
    figures: dict[str, float]
    figure_unit: str
    rounds: int
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.measured <= self.target if self.bound == "most" else self.measured >= self.target


class Machine(msgspec.Struct, frozen=True, rename="camel"):
    """Where it was measured.

    Args:
        system: The operating system and its release.
        python: The interpreter's version.
        processors: How many it has.
        load: The load of the last minute when it began: over ``processors`` means that others were at work.
    """

    system: str
    python: str
    processors: int
    load: float


class BenchReport(msgspec.Struct, frozen=True, rename="camel"):
    """What ``make bench`` writes.

    Args:
        format: 1.
        machine: Where it was measured.
        rows: One for each figure that was measured.
        met: By row: whether its target was met.
        skipped: By benchmark: why it could not run here.
    """

    format: Literal[1]
    machine: Machine
    rows: list[Row]
    met: dict[str, bool]
    skipped: dict[str, str]


class Skipped(Exception):  # noqa: N818 - no fault
    """A benchmark can't run here; the text says why."""


def machine() -> Machine:
    """Describe this machine, now."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return Machine(
        f"{platform.system()} {platform.release()}", platform.python_version(), os.cpu_count() or 1, round(load, 2)
    )


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def low(values: Sequence[float]) -> float:
    """Return the tenth percentile: what work costs where nobody else is at work on the machine."""
    return sorted(values)[len(values) // 10]


def side_by_side(
    ways: Mapping[str, Callable[[], float]],
    rounds: int,
    *,
    of: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[str, float]:
    """Return each way's seconds: all in every round, and one round before that doesn't count.

    Each round has an order of its own, since what one way leaves in the caches is the next one's.

    Args:
        ways: By name: measures once, and returns the seconds.
        rounds: How often.
        of: What is told of each way's seconds: the median, which is what a wait comes to, :func:`low`, or the least,
            which is what work takes of a processor where nobody else has been in its caches.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    chance = random.Random(rounds)  # noqa: S311 - nothing secret
    for turn in range(rounds + 1):
        chance.shuffle(order)
        for name in order:
            value = ways[name]()
            if turn:
                taken[name].append(value)
    return {name: of(values) for name, values in taken.items()}


def in_unit(figures: Mapping[str, float], factor: float) -> dict[str, float]:
    """Return seconds in another unit, rounded to what can be read."""
    return {name: float(f"{value * factor:.4g}") for name, value in figures.items()}


def table(report: BenchReport) -> str:
    """Return a report as text."""
    machine = report.machine
    lines = [f"{machine.system}, Python {machine.python}, {machine.processors} processors, load {machine.load}", ""]
    lines.append(f"{'benchmark':22} {'measured':>16} {'target':>18}  met")
    for row in report.rows:
        target = f"{row.bound} {row.target:g} {row.unit}"
        lines.append(f"{row.id:22} {f'{row.measured:.4g} {row.unit}':>16} {target:>18}  {'yes' if row.met else 'NO'}")
        lines.append(f"    {row.what}")
        for name, value in row.figures.items():
            lines.append(f"    {value:12.4g} {row.figure_unit:6} {name}")
        if row.note:
            lines.append(f"    {row.note}")
    lines += [f"{name:22} skipped: {reason}" for name, reason in report.skipped.items()]
    return "\n".join(lines)
