"""What a spawn costs in a process with very many open descriptors, beside plain subprocess."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable

from nvx_ref.deadline import Deadline
from nvx_ref.platform import files
from nvx_ref.platform import spawn as spawning
from tests.bench.measure import Row, Skipped, in_unit, low, seconds, side_by_side

CROWD = 10_000
ALLOWED = 4
PROGRAM = "/bin/true"


def rows(scale: float = 1) -> list[Row]:
    """Measure it."""
    rounds = max(3, round(60 * scale))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CROWD + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Skipped(f"{wanted} descriptors are over this process's hard limit of {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    held = [os.dup(null) for _ in range(CROWD)]
    # As a prepared launch numbers what it hands over.
    least = max(held) + 32
    for number in range(ALLOWED):
        held[number] = files.set_apart(held[number], least)
        least = held[number] + 2
    try:
        found = side_by_side(_ways(null, held[:ALLOWED]), rounds, of=low)
    finally:
        for fd in (null, *held):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # A session of its own is a scheduler's group of its own, which on a busy machine is another figure.
    plain = "plain Popen, in a session of its own"
    return [
        Row(
            id="spawn",
            what=f"a spawn with {ALLOWED} allowed of {CROWD} open descriptors, over plain subprocess.Popen",
            measured=found["nvx_ref spawn"] / found[plain],
            unit="x",
            target=1.3,
            bound="most",
            figures=in_unit(found, 1e3),
            figure_unit="ms",
            rounds=rounds,
            note="the reference's spawn has pinned and identified the child, too",
        )
    ]


def _ways(null: int, allowed: list[int]) -> dict[str, Callable[[], float]]:
    def reference() -> float:
        made: list[spawning.Child] = []
        taken = seconds(
            lambda: made.append(spawning.spawn([PROGRAM], stdin=null, output=null, allowed=allowed, cwd="/"))
        )
        with made[0].pin() as pin:
            pin.wait(Deadline.after(60))
        made[0].close()
        return taken

    def popen(**options: object) -> float:
        made: list[subprocess.Popen[bytes]] = []
        streams = {"stdin": null, "stdout": null, "stderr": null}
        taken = seconds(lambda: made.append(subprocess.Popen([PROGRAM], **streams, **options)))  # type: ignore[call-overload]
        made[0].wait()
        return taken

    return {
        "nvx_ref spawn": reference,
        "plain subprocess.Popen": popen,
        "plain Popen, in a session of its own": lambda: popen(start_new_session=True),
        "Popen, same descriptors and session": lambda: popen(pass_fds=allowed, start_new_session=True, cwd="/"),
        "Popen(close_fds=False)": lambda: popen(close_fds=False),
    }
