"""What is known of a test whose worker died in it: the worker noted beforehand where it would be, and what it is.

Whatever the test started has ended with its worker, by the lifelines. Its directory is still there.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from harness.witness.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Generator

    from harness.world import World

NOTE = ".now"

Facts = dict[str, object]


@contextmanager
def noted(world: World, session: str, facts: Facts) -> Generator[None, None, None]:
    """Note which test this process is in for as long as the block lasts.

    Args:
        world: The test's world.
        session: The run's directory.
        facts: What the table takes of the test; its id is the ``node`` among them.
    """
    path = os.path.join(session, f"{os.getpid()}{NOTE}")
    note = {"facts": facts, "root": world.root, "state": world.state, "evidence": world.evidence.directory}
    # Whole or not at all: whoever looks for the note of a dead worker reads the living ones', too.
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(note, file)
    os.replace(f"{path}.new", path)
    try:
        yield
    finally:
        os.unlink(path)


def found(session: str, node: str) -> Facts:
    """Keep the evidence of a test whose worker is dead, and return what the table takes of it; nothing if unknown.

    Args:
        session: The run's directory.
        node: The test's id.
    """
    for name in sorted(os.listdir(session)) if os.path.isdir(session) else []:
        if not re.fullmatch(rf"\d+{re.escape(NOTE)}", name):
            continue
        try:
            with open(os.path.join(session, name), encoding="utf-8") as file:
                note = cast("dict[str, object]", json.load(file))
        except FileNotFoundError:
            # That of a worker that lives, and has ended its test meanwhile.
            continue
        facts = cast("Facts", note["facts"])
        if facts["node"] == node:
            facts["evidence"] = _keep(str(note["root"]), str(note["state"]), str(note["evidence"]))
            return facts
    return {}


def _keep(root: str, state: str, directory: str) -> str:
    evidence = Evidence(directory, root=state)
    evidence.learn()
    evidence.keep_files("state", [state])
    evidence.keep_files("said", [os.path.join(root, name) for name in ("out", "fake")])
    return directory
