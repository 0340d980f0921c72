"""A command of a test, run to its end."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import python
from harness.ending import has_ended
from harness.errors import Late, is_finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.world import World

__tracebackhide__ = is_finding


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended.

    Attributes:
        status: Its exit status, negative for a signal.
        stdout: What it printed.
        stderr: What it printed as errors.
    """

    status: int
    stdout: str
    stderr: str


def run(world: World, command: Sequence[str]) -> Completed:
    """Run a command in a test's world to its end; its output goes to files.

    Raises:
        Late: It hasn't ended by the deadline of an operation.
    """
    number = len(os.listdir(os.path.join(world.root, "out")))
    paths = [os.path.join(world.root, "out", f"command-{number}.{stream}") for stream in ("out", "err")]
    with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
        child = world.host.start(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=world.root, env=world.environment()
        )
        world.processes.own(child.pid)
        deadline = world.soon()
        if not has_ended(child, deadline):
            world.evidence.keep(f"late/{child.pid}.txt", world.host.explain(child.pid))
            child.kill()
            child.wait()
            what = python.as_text(command)
            raise Late(what, expected="its end", found="it still runs", deadline=deadline)
        child.wait()
    world.evidence.learn()
    texts: list[str] = []
    for path in paths:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            texts.append(file.read())
    return Completed(child.returncode, *texts)
