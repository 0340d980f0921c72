"""The first look at another orchestrator: that it says hello, before any scenario counts on it."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from harness import witness
from harness.deadline import Clock
from harness.errors import HarnessError, Late
from harness.places import environment
from harness.platform import as_text, short_root
from harness.settings import orchestrator_words
from harness.sut.messages import HELLO
from harness.sut.needs import unknown
from harness.sut.process import Started
from harness.sut.program import Program, ProgramEnded

if TYPE_CHECKING:
    from harness.settings import Settings
    from harness.witness.contract import Host

WRAPPED = "what is killed and traced is the process that the harness starts, so have the command become the program"
ADVICE = "it says hello without being asked, and flushes each line"


def introduce(settings: Settings) -> list[str]:
    """Start the orchestrator that a run names, take its hello, and end it.

    Args:
        settings: The run's options, with an orchestrator.

    Returns:
        What its author ought to know, although it can be judged.

    Raises:
        Finding: It says nothing, or ends.
        HarnessError: What it says isn't a hello of this protocol.
        OSError: It can't be started.
    """
    clock, host = Clock(settings.timeout_scale), witness.host()
    with tempfile.TemporaryDirectory(prefix="nvx-hello-", dir=short_root()) as place:
        source = Started(orchestrator_words(settings), environment={**environment(), "TMPDIR": place})
        with Program(
            source, host=host, errors=os.path.join(place, "errors.txt"), cwd=place, started=lambda _pid: None
        ) as program:
            try:
                hello = program.ready(clock.after(HELLO))
            except Late as error:
                raise HarnessError(f"{error}; {ADVICE}") from None
            except ProgramEnded as error:
                lost = [word for word in source.command[1:] if _is_lost(word)]
                raise HarnessError(f"{error}{f'; there is no file {lost[0]} here' if lost else ''}") from None
            strange, others = unknown(hello), _others(program, host)
            program.close(clock.after(1.0))
    notes = [f"the hello declares what this harness doesn't know: {', '.join(strange)}"] if strange else []
    return notes + [f"{other}, which the command started, holds its standard output too: {WRAPPED}" for other in others]


def _others(program: Program, host: Host) -> list[str]:
    """Return the processes below a program that could answer in its place."""
    device, inode = program.speaks_through()
    table, family = host.stats(), {program.pid}
    while more := {one.pid for one in table if one.parent in family} - family:
        family |= more
    found = host.holders(device, inode, family - {program.pid}) if inode else []
    return [f"pid {pid} ({as_text(host.arguments(pid)[:2])} ...)" for pid in sorted(found)]


def _is_lost(word: str) -> bool:
    """Tell whether a word of a command looks like a file from here, and there is none."""
    looks = bool(os.path.splitext(word)[1]) and not word.startswith("-")
    return looks and not os.path.exists(word)
