"""The sweep at the end of each test: what is left is explained, then ended, and fails the test."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.deadline import until
from harness.witness.evidence import sandbox_files

if TYPE_CHECKING:
    from harness.deadline import Deadline
    from harness.witness.contract import Host
    from harness.witness.evidence import Evidence
    from harness.witness.processes import Processes, Seen

RUNTIME_FILES = ("control.sock", "control.capability", "runtime.json", "launch.json")
"""What must not stay behind once no VMM of a sandbox runs."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a test may leave things.

    Attributes:
        root: The test's directory, which the harness removes afterwards.
        state: The state root in it.
        temporary: The directory of temporary files in it, empty at the end.
        own: The names in ``root`` that the harness made itself.
    """

    root: str
    state: str
    temporary: str
    own: frozenset[str]


def sweep(
    *,
    host: Host,
    processes: Processes,
    evidence: Evidence,
    places: Places,
    grace: Deadline,
    deadline: Deadline,
) -> list[str]:
    """Find what a test left behind, keep its explanation and end it.

    Args:
        host: The operating system's half of the witnesses.
        processes: The process witness of the test.
        evidence: Where explanations are kept.
        places: Where things may be left.
        grace: Until when a process may end by itself.
        deadline: By when what was ended must be gone.

    Returns:
        One line for each thing left, empty if the test was clean.
    """
    # What is on its way out is no leftover.
    survivors: list[Seen] = []

    def is_clean() -> bool:
        survivors[:] = processes.look()
        return not survivors and not os.listdir(places.temporary)

    until(is_clean, grace)
    left = [f"process {one}" for one in _end(survivors, host, processes, evidence, deadline)]
    found = [f"mount {point}" for point in host.mounts(places.root)]
    found += [f"socket {path}" for path in host.sockets(places.state)]
    found += [f"file {path}" for path in _strangers(places.root, places.own)]
    found += [f"file {path}" for path in _strangers(places.temporary, frozenset())]
    # The runtime files of a VMM that had to be ended here are its consequence, not a second finding.
    return [*left, *found, *([] if left else [f"file {path}" for path in _runtime_files(places.state)])]


def _end(survivors: list[Seen], host: Host, processes: Processes, evidence: Evidence, deadline: Deadline) -> list[str]:
    found: list[str] = []
    while survivors:
        for one in survivors:
            found.append(str(one))
            evidence.keep(f"survivors/{one.pin.pid}.txt", host.explain(one.pin.pid))
        for one in survivors:
            one.left = True
            one.pin.end()
        if not all(one.pin.wait(deadline) for one in survivors):
            found.append("and it can't be ended")
            break
        # What was ended may have had children that come to us only now.
        survivors = processes.look()
    return found


def _strangers(root: str, own: frozenset[str]) -> list[str]:
    return sorted(os.path.join(root, name) for name in os.listdir(root) if name not in own)


def _runtime_files(state: str) -> list[str]:
    found: list[str] = []
    for name in RUNTIME_FILES:
        for path in sandbox_files(state, name):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            found.append(f"{path} ({stat.filemode(status.st_mode)})")
    return sorted(found)
