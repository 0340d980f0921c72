"""How soon an exit is noticed: the reference's event beside polling, psutil, plain subprocess and a PID file."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from nvx_ref.deadline import POLL_INTERVAL, Deadline
from nvx_ref.platform import process as processes
from nvx_ref.process import ProcessRef
from tests.bench.measure import Row, Skipped, in_unit, side_by_side

LONG = 600
SLEEP = ("sleep", str(LONG))
Wait = Callable[[], object]


def rows(scale: float = 1) -> list[Row]:
    """Measure it. Each way waits for a process that is nobody's child here, but for plain subprocess's own."""
    if not hasattr(signal, "pidfd_send_signal"):
        raise Skipped("needs pidfds")
    rounds = max(3, round(40 * scale))
    ways: dict[str, Callable[[], float]] = {
        "nvx_ref, by event": lambda: _noticed(_reference),
        "plain subprocess, its own child": _own_child,
        "psutil wait": lambda: _noticed(_psutil),
        "25 ms polling of /proc": lambda: _noticed(_polling),
        "naive PID file, 25 ms": lambda: _noticed(_pid_file),
    }
    found = side_by_side(ways, rounds)
    return [
        Row(
            id="exit-noticed",
            what="from a process's end to its notice: 25 ms polling over the reference",
            measured=found["25 ms polling of /proc"] / found["nvx_ref, by event"],
            unit="x",
            target=20,
            bound="least",
            figures=in_unit(found, 1e3),
            figure_unit="ms",
            rounds=rounds,
        )
    ]


def _noticed(watch: Callable[[int], Wait]) -> float:
    # A shell that reaps it at once, as an orchestrator that is gone leaves its VMM to an init that does.
    command = ["/bin/sh", "-c", f"{' '.join(SLEEP)} & echo $!; wait"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        taken = _timed(pid, watch(pid))
        parent.wait()
    return taken


def _own_child() -> float:
    with subprocess.Popen(SLEEP, stdin=subprocess.DEVNULL) as child:
        return _timed(child.pid, child.wait)


def _timed(pid: int, wait: Wait) -> float:
    """Begin to wait, end the process at a random instant of a polling interval, and return what the notice took."""
    began: list[float] = []
    fd = os.pidfd_open(pid)

    def end() -> None:
        # Nobody is to be caught at the beginning of a wait.
        select.select([], [], [], POLL_INTERVAL * (1 + random.random()))  # noqa: S311 - nothing secret
        began.append(time.perf_counter())
        signal.pidfd_send_signal(fd, signal.SIGKILL)

    killer = threading.Thread(target=end)
    killer.start()
    try:
        wait()
        noticed = time.perf_counter()
    finally:
        killer.join()
        os.close(fd)
    return noticed - began[0]


def _reference(pid: int) -> Wait:
    with processes.Pin.open(pid) as pin:
        identity = pin.identity()
    found = ProcessRef.open(identity)
    assert found is not None

    def wait() -> None:
        with found:
            assert found.wait(Deadline.after(LONG))

    return wait


def _psutil(pid: int) -> Wait:
    found = psutil.Process(pid)
    return lambda: found.wait(timeout=LONG)


def _polling(pid: int) -> Wait:
    def wait() -> None:
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(POLL_INTERVAL)  # noqa: TID251 - the rival

    return wait


def _pid_file(pid: int) -> Wait:
    def wait() -> None:
        with suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)  # noqa: TID251 - the rival
                time.sleep(POLL_INTERVAL)  # noqa: TID251 - the rival

    return wait
