"""An orchestrator that is killed inside the spawn: its child has been forked, and hasn't become the VMM yet."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

from harness.crash.trace import Tracer
from harness.deadline import until
from harness.errors import Gone, Late

if TYPE_CHECKING:
    from typing import Self

    from harness.deadline import Deadline
    from harness.sut.program import Program
    from harness.witness.contract import Pin
    from harness.world import World

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

CALL = "setsid"
"""What a child does between its fork and its exec, and nobody else does."""

STOPPED = frozenset("Tt")
HELD = "--- stopped by SIGSTOP ---"
"""What strace writes of a process that this signal has stopped."""


class HeldSpawn:
    """Holds the next child of an orchestrator between its fork and its exec, until the end of a block at the latest.

    Args:
        world: The test's world.
        program: The orchestrator, which waits for its next request.

    Raises:
        Unavailable: There is no strace, or it may not attach here.
    """

    def __init__(self, world: World, program: Program) -> None:
        self._world = world
        self._program = program
        self._output = os.path.join(world.root, "out", "held-spawn.txt")
        self._tracer = Tracer(program.pid, self._output, injection=f"{CALL}:signal=SIGSTOP:when=1")
        world.processes.own(self._tracer.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.stop()

    def child(self, deadline: Deadline) -> Pin:
        """Wait until the child is held, and return it; :meth:`release` closes it.

        Raises:
            Late: There is none by the deadline.
        """
        host = self._world.host
        found: list[int] = []

        def look() -> bool:
            # A child is stopped for its tracer at its beginning and at each call, too: that it is held, the trace says.
            mine = [one for one in host.stats() if one.parent == self._program.pid]
            found[:] = [one.pid for one in mine if one.state in STOPPED and self._is_held(one.pid)]
            return bool(found)

        held = "a child held between its fork and its exec"
        if not until(look, deadline):
            raise Late("the spawn", expected=held, found="none", deadline=deadline)
        pin = host.pin(found[0])
        if pin is None:
            raise Gone("the spawn", expected=held, found="that it ended")
        return pin

    def _is_held(self, pid: int) -> bool:
        with open(self._output, encoding="utf-8", errors="surrogateescape") as file:
            return re.search(rf"^{pid} .*{HELD}", file.read(), re.MULTILINE) is not None

    def release(self, child: Pin) -> None:
        """Let the child go on to its exec, and let go of it."""
        signal.pidfd_send_signal(child.fileno(), signal.SIGCONT)
        child.close()

    def close(self, deadline: Deadline) -> None:
        """Wait for the trace's end, which is the exec's."""
        self._tracer.close(deadline)
