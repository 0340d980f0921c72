"""The first look at another orchestrator: that it says hello, before any scenario counts on it."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from harness import witness
from harness.deadline import Clock
from harness.errors import HarnessError, Late
from harness.places import environment
from harness.platform import short_root
from harness.settings import orchestrator_words
from harness.sut.messages import HELLO
from harness.sut.process import Started
from harness.sut.program import Program, ProgramEnded

if TYPE_CHECKING:
    from harness.settings import Settings
    from harness.sut.protocol import Hello


ADVICE = f"it says hello without being asked, within {HELLO:.0f} s, and flushes each line"


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
            try:
                hello = program.ready(clock.after(HELLO))
            except Late as error:
                raise HarnessError(f"{error}; {ADVICE}") from None
            except ProgramEnded as error:
                lost = [word for word in source.command[1:] if _is_lost(word)]
                raise HarnessError(f"{error}{f'; there is no file {lost[0]} here' if lost else ''}") from None
            program.close(clock.after(1.0))
            return hello


def _is_lost(word: str) -> bool:
    """Tell whether a word of a command looks like a file from here, and there is none."""
    looks = bool(os.path.splitext(word)[1]) and not word.startswith("-")
    return looks and not os.path.exists(word)
