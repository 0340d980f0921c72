"""Watching for the VMMs of one test where they say nothing of themselves: what the process table shows, noted in time.

A VMM that ended before anybody looked can't be asked any more, so one thread looks all the time while a test runs. It
reads the arguments of each process that is new, or new to its name, until they have settled.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.deadline import POLL_INTERVAL

if TYPE_CHECKING:
    from harness.witness.contract import Descriptor, Host

YOUNG = 40
"""Looks for which a process of one name is read: in the middle of an exec it has the new one, and no arguments yet."""


@dataclass(slots=True)
class Run:
    """One VMM as it was seen.

    Attributes:
        pid: Its number.
        start: When it started, in the kernel's unit.
        parent: Its parent's number when it was first seen.
        arguments: Its arguments, the needle the first of them.
        table: Its descriptors when it was last seen, None if they couldn't be read.
        given: What it was given at its start, None where that can't be told.
    """

    pid: int
    start: int
    parent: int
    arguments: list[str]
    table: list[Descriptor] | None = None
    given: list[Descriptor] | None = None


class Watch:
    """Notes every process that has a needle among its arguments, until it is closed.

    Args:
        host: The operating system's half.
        needle: The argument.

    Attributes:
        seen: Set once a process was noted.
    """

    def __init__(self, host: Host, needle: str) -> None:
        self._host = host
        self._needle = needle
        self._since = host.now()
        self._runs: dict[tuple[int, int], Run] = {}
        self._looks: dict[tuple[int, int], tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.seen = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="watch", daemon=True)
        self._thread.start()

    def runs(self) -> list[Run]:
        """Look now, and return the VMMs so far in the order of their starts."""
        with self._lock:
            self._look()
            # What a VMM forks has its arguments until it executes something of its own.
            numbers = {run.pid for run in self._runs.values()}
            found = [run for run in self._runs.values() if run.parent not in numbers]
            return sorted(found, key=lambda run: (run.start, run.pid))

    def descriptors(self, run: Run) -> list[Descriptor] | None:
        """Return the descriptors of a run now, those it last had if it has ended."""
        with self._lock:
            stat = self._host.stat(run.pid)
            if stat is not None and stat.start == run.start:
                run.table = self._host.descriptors(run.pid) or run.table
            return run.table

    def close(self) -> None:
        """Stop looking."""
        self._done.set()
        self._thread.join()

    def _keep_looking(self) -> None:
        while not self._done.wait(POLL_INTERVAL):
            with self._lock:
                self._look()

    def _look(self) -> None:
        there: dict[tuple[int, int], tuple[str, int]] = {}
        for stat in self._host.stats():
            if stat.start < self._since:
                continue
            pid, key = stat.pid, (stat.pid, stat.start)
            name, looks = self._looks.get(key, (stat.name, 0))
            looks = looks + 1 if name == stat.name else 1
            there[key] = stat.name, looks
            if key in self._runs or looks > YOUNG:
                continue
            words = self._host.arguments(pid)
            if self._needle in words:
                run = Run(pid, stat.start, stat.parent, words[words.index(self._needle) :])
                run.given = self._host.inherited(pid)
                self._runs[key] = run
                self.seen.set()
        self._looks = there
