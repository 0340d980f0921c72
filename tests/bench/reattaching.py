"""What it costs to find VMMs again: one, a thousand, and a thousand beside one that can't be told."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil

from nvx_ref.deadline import Deadline
from nvx_ref.store import CallerFiles, ProcessIdentity, RuntimeIdentity, Store
from nvx_ref.supervisor import Indeterminate, Live, VmmCommand, launch, reattach
from tests.bench.measure import Row, in_unit, low, seconds, side_by_side

MANY = 1000
THREADS = 8
IDENTITY = RuntimeIdentity(
    "sha256:" + "1" * 64,
    "sha256:" + "2" * 64,
    "sha256:" + "3" * 64,
    "microvm-abi/2",
    "nvx-microvm-v2-control-v2/session-1",
)
CONFIGURATION = b'{\n  "format": 1\n}\n'
STUCK = "stuck"


def rows(scale: float = 1) -> list[Row]:
    """Measure them, with a real process for each sandbox."""
    count, rounds = max(10, round(MANY * scale)), 5
    with _sandboxes(count) as (store, names, processes):
        turn = itertools.cycle(range(count))
        each = side_by_side(
            {
                "nvx_ref": lambda: seconds(lambda: _expect_live(store, names[next(turn)])),
                "naive PID file": lambda: seconds(lambda: _pid_file(store, names[next(turn)])),
                "psutil, by start time": lambda: seconds(lambda: _by_start_time(processes[next(turn)])),
            },
            count,
            of=low,
        )
        found = side_by_side(
            {
                "nvx_ref": lambda: seconds(lambda: [_expect_live(store, name) for name in names]),
                "naive PID file": lambda: seconds(lambda: [_pid_file(store, name) for name in names]),
                "psutil, by start time": lambda: seconds(lambda: [_by_start_time(one) for one in processes]),
            },
            rounds,
            of=low,
        )
        beside = side_by_side(
            {
                "all of them": lambda: _beside(store, names, stuck=False),
                "beside one that can't be told": lambda: _beside(store, names, stuck=True),
            },
            rounds,
            of=low,
        )
    return _found(each, found, count, rounds) + _stuck(beside, count, rounds)


def _found(each: dict[str, float], found: dict[str, float], count: int, rounds: int) -> list[Row]:
    return [
        Row(
            id="reattach",
            what="a reattach: lock, record, verified process, verdict",
            measured=each["nvx_ref"] * 1e3,
            unit="ms",
            target=0.3,
            bound="most",
            figures=in_unit(each, 1e6),
            figure_unit="us",
            rounds=count,
            note="a PID file's number is asked for; it proves nothing, and takes a reused number for the VMM",
        ),
        Row(
            id="reattach-many",
            what=f"{count} sandboxes, one after the other",
            measured=found["nvx_ref"],
            unit="s",
            target=0.5 * count / MANY,
            bound="most",
            figures=in_unit(found, 1),
            figure_unit="s",
            rounds=rounds,
        ),
    ]


def _stuck(beside: dict[str, float], count: int, rounds: int) -> list[Row]:
    return [
        Row(
            id="reattach-unreachable",
            what=f"{count} sandboxes in {THREADS} threads beside one that takes its whole second to be indeterminate",
            measured=beside["beside one that can't be told"] / beside["all of them"],
            unit="x",
            target=1.2,
            bound="most",
            figures=in_unit(beside, 1),
            figure_unit="s",
            rounds=rounds,
        ),
    ]


@contextmanager
def _sandboxes(count: int) -> Generator[tuple[Store, list[str], list[ProcessIdentity]]]:
    # In memory where that is possible: what is measured is no disk. The path is short: an endpoint is in it.
    memory = "/dev/shm"
    root = tempfile.mkdtemp(prefix="nb", dir=memory if os.access(memory, os.W_OK) else None)
    lifeline = os.path.join(root, "lifeline")
    os.mkfifo(lifeline, 0o600)
    # Each stand-in reads it until nobody writes, so all of them end with this process, whatever ends it.
    writer = os.open(lifeline, os.O_RDWR | os.O_CLOEXEC)
    store = Store(os.path.join(root, "s"), CallerFiles("config.json"))
    names = [f"box{number}" for number in range(count)]
    try:
        command = VmmCommand(["/bin/cat", lifeline])
        processes = [_launch(store, name, command) for name in names]
        with store.lock_provision(STUCK, deadline=_soon()) as locked:
            locked.write_configuration(CONFIGURATION)
        yield store, names, processes
    finally:
        os.close(writer)
        shutil.rmtree(root, ignore_errors=True)


def _launch(store: Store, name: str, command: VmmCommand) -> ProcessIdentity:
    with store.lock_provision(name, deadline=_soon()) as locked:
        locked.write_configuration(CONFIGURATION)
        with launch(locked, IDENTITY, lambda _: command) as starting, starting.commit() as vmm:
            identity = vmm.record.process
    with open(os.path.join(store.path(name), "pid"), "w", encoding="ascii") as file:
        file.write(str(identity.pid))
    return identity


def _expect_live(store: Store, name: str) -> None:
    with store.lock_existing(name, deadline=_soon()) as locked:
        found = reattach(locked, IDENTITY, deadline=_soon())
        assert isinstance(found, Live), found
        found.vmm.close()


def _pid_file(store: Store, name: str) -> None:
    with open(os.path.join(store.path(name), "pid"), encoding="ascii") as file:
        os.kill(int(file.read()), 0)  # noqa: TID251 - the rival


def _by_start_time(identity: ProcessIdentity) -> None:
    found = psutil.Process(identity.pid)
    assert found.create_time() > 0
    assert found.is_running()


def _beside(store: Store, names: list[str], *, stuck: bool) -> float:
    """Return when the last of the others was found; the one that can't be told begins before them."""
    with ThreadPoolExecutor(THREADS) as pool:
        begin = time.perf_counter()
        waiting = [pool.submit(_expect_unknown, store)] if stuck else []
        found = [pool.submit(_expect_live, store, name) for name in names]
        for one in found:
            one.result()
        taken = time.perf_counter() - begin
        for one in waiting:
            one.result()
    return taken


def _expect_unknown(store: Store) -> None:
    """Leave the marker of a launch whose log somebody holds, and look at it."""
    with store.lock_existing(STUCK, deadline=_soon()) as locked:
        interrupted = locked.begin_launch(IDENTITY)
        log = interrupted.take_log()
        try:
            found = reattach(locked, IDENTITY, deadline=_soon())
            assert isinstance(found, Indeterminate), found
        finally:
            os.close(log)
        locked.recover()


def _soon() -> Deadline:
    return Deadline.after(60)
