"""The first look at another orchestrator: that it says hello, before any scenario counts on it."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from harness import witness
from harness.deadline import Clock
from harness.places import environment
from harness.platform import short_root
from harness.settings import orchestrator_words
from harness.sut.messages import HELLO
from harness.sut.process import Started
from harness.sut.program import Program

if TYPE_CHECKING:
    from harness.settings import Settings
    from harness.sut.protocol import Hello


def introduce(settings: Settings) -> Hello:
    """Start the orchestrator that a run names, take its hello, and end it.

    Args:
        settings: The run's options, with an orchestrator.

    Raises:
        Finding: It says nothing, or ends.
        HarnessError: What it says isn't a hello of this protocol.
        OSError: It can't be started.
    """
    clock = Clock(settings.timeout_scale)
    with tempfile.TemporaryDirectory(prefix="nvx-hello-", dir=short_root()) as place:
        source = Started(orchestrator_words(settings), environment={**environment(), "TMPDIR": place})
        with Program(
            source, host=witness.host(), errors=os.path.join(place, "errors.txt"), cwd=place, started=lambda _pid: None
        ) as program:
            hello = program.ready(clock.after(HELLO))
            program.close(clock.after(1.0))
            return hello
