"""Whether somebody who is waited for can still come, told by what has happened since the last request.

A scenario that waits for a VMM to get somewhere would wait to its deadline for one that is dead. A VMM that has died
says so by the end of its channel; one that died before it said anything is known by its launcher, and one that was
never started by the answer of whoever was to start it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.deadline import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.backends.contract import TestSide
    from harness.channel import Peer
    from harness.runs import Runs, Told
    from harness.sut.program import Program
    from harness.witness.processes import Processes

ENDING = 5.0
"""Seconds that a process may take from the end of its channel to its own."""

STARTS = "start"
"""The operation that starts VMMs."""


class Prospects:
    """What can still be expected of the VMMs of one test.

    Args:
        side: The backend's part in it.
        processes: The process witness.
        runs: Tells what became of VMMs.
        programs: The orchestrators of the test so far; the list grows.
    """

    def __init__(self, side: TestSide, processes: Processes, runs: Runs, programs: Sequence[Program]) -> None:
        self._side = side
        self._processes = processes
        self._runs = runs
        self._programs = programs
        self._program: Program | None = None
        self._op = ""
        self._before: list[Peer] = []
        self._there: list[Peer] = []
        self._launched = 0

    def asked(self, program: Program, op: str, peers: Sequence[Peer]) -> None:
        """Take note that an operation is asked for now.

        Args:
            program: Who is asked.
            op: The operation.
            peers: The VMMs on the channel.
        """
        if any(program.works() for program in self._programs):
            # What belongs to which of two at once can't be told.
            return
        self._program, self._op = program, op
        self._before = [*peers]
        self._there = [peer for peer in peers if not peer.gone]
        self._launched = len(self._side.launched())

    def hopeless(self, peers: Sequence[Peer]) -> bool:
        """Tell whether none of the VMMs of the last request can get anywhere any more.

        Args:
            peers: The VMMs on the channel now.
        """
        new = [peer for peer in peers if peer not in self._before]
        if new:
            return all(peer.gone for peer in new)
        if self._op != STARTS:
            return bool(self._there) and all(peer.gone for peer in self._there)
        failed = self._program is not None and not self._program.works() and not self._program.succeeded
        return (failed or len(self._side.launched()) > self._launched) and not self._processes.vmms()

    def told(self, peers: Sequence[Peer]) -> list[Told]:
        """Return what became of the VMMs that have ended; one whose channel has is given a moment for its own end."""
        gone = {peer.pid for peer in peers if peer.gone}
        until(lambda: gone.isdisjoint(one.pin.pid for one in self._processes.alive()), self._runs.clock.after(ENDING))
        return [one for one in self._runs.told() if one.state == "ended"]
