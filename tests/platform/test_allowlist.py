"""What a spawned process inherits, with much else open and much else being started at the same time."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.platform import files, spawn

pytestmark = pytest.mark.usefixtures("no_leak")

Table = dict[int, tuple[int, int]]

REPORT = (
    "import json, os\n"
    "table = {}\n"
    "for number in map(int, os.listdir('/proc/self/fd')):\n"
    "    try: found = os.fstat(number)\n"
    "    except OSError: continue\n"
    "    table[number] = (found.st_dev, found.st_ino)\n"
    "print(json.dumps(table), flush=True)\n"
)


def key(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def parse(text: str | bytes) -> Table:
    return {int(number): (device, inode) for number, (device, inode) in json.loads(text).items()}


def violations(table: Table, expected: Table) -> list[str]:
    """The witness: what a table holds too much, too little, or under the wrong number."""
    return [
        f"{number}: {table.get(number)} instead of {expected.get(number)}"
        for number in sorted(table.keys() | expected.keys())
        if table.get(number) != expected.get(number)
    ]


@pytest.fixture
def crowd() -> Iterator[list[int]]:
    """Some 1,000 open descriptors of every type, every third one inheritable."""
    closing: list[Callable[[], object]] = []
    numbers: list[int] = []

    def keep(*fds: int) -> None:
        numbers.extend(fds)
        closing.extend((lambda fd=fd: os.close(fd)) for fd in fds)

    for index in range(100):
        keep(os.open("/dev/null", os.O_RDONLY), os.open(tempfile.gettempdir(), os.O_RDONLY))
        keep(*os.pipe(), os.eventfd(0), os.memfd_create(f"m{index}"), os.pidfd_open(os.getpid()))
        pair = socket.socketpair()
        poll = select.epoll()
        numbers += [pair[0].fileno(), pair[1].fileno(), poll.fileno()]
        closing += [pair[0].close, pair[1].close, poll.close]
    for number in numbers[::3]:
        os.set_inheritable(number, True)
    yield numbers
    for close in closing:
        close()


def launch(sandbox: files.Directory, name: str, leak: int | None = None) -> tuple[Table, Table]:
    """Spawn a reporter with a pipe of its own; return its table and what it should be."""
    null, log = os.open("/dev/null", os.O_RDONLY), sandbox.open_log(name)
    reader, writer = os.pipe()
    extra = [] if leak is None else [leak]
    child = spawn.spawn(
        [sys.executable, "-I", "-c", REPORT], stdin=null, output=log, allowed=[reader, *extra], cwd=sandbox.path
    )
    expected = {0: key(null), 1: key(log), 2: key(log), reader: key(reader)}
    with child.pin() as pin:
        assert pin.wait(Deadline.after(60))
        assert pin.exit_status() == 0
    for fd in (null, log, reader, writer):
        os.close(fd)
    return parse(sandbox.read(name, 1 << 16) or b""), expected


@pytest.mark.spec("620.scope3.b")
@pytest.mark.case("T30")
@pytest.mark.spec("656.spawn.c")
@pytest.mark.spec("656.spawn.d")
@pytest.mark.spec("656.tests.g")
@pytest.mark.spec("620.scope3.d")
def test_exactly_the_allowlist_is_inherited_in_a_crowd(sandbox: files.Directory, crowd: list[int]) -> None:
    stop = threading.Event()
    strangers: list[Table] = []

    def spawn_plainly() -> None:
        # Another library of this process, which lets its children inherit whatever is inheritable.
        while not stop.is_set():
            ended = subprocess.run(
                [sys.executable, "-I", "-c", REPORT], close_fds=False, stdout=subprocess.PIPE, check=True
            )
            strangers.append(parse(ended.stdout))

    with ThreadPoolExecutor(3) as pool:
        stranger = pool.submit(spawn_plainly)
        found = list(pool.map(lambda number: launch(sandbox, f"log{number}"), range(8)))
        stop.set()
        stranger.result()
    assert len(crowd) == 1000
    assert [violations(*pair) for pair in found] == [[]] * 8
    pipes = {object_ for _, expected in found for number, object_ in expected.items() if number > 2}
    # Positive control of the look at strangers: they did inherit what was inheritable.
    assert all(len(table) > 300 for table in strangers)
    assert [object_ for table in strangers for object_ in table.values() if object_ in pipes] == []


@pytest.mark.case("T31")
def test_the_witness_sees_a_leak(sandbox: files.Directory) -> None:
    leak = os.memfd_create("leak")
    table, expected = launch(sandbox, "log", leak)
    os.close(leak)
    assert [text.split(":")[0] for text in violations(table, expected)] == [str(leak)]
    moved = {**expected, 99: expected[0]}
    assert violations(moved, expected)
    assert violations(expected, moved)


def test_the_callers_descriptors_stay_close_on_exec(sandbox: files.Directory) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    null = os.open("/dev/null", os.O_RDWR)
    child = spawn.spawn(["true"], stdin=null, output=null, allowed=[fd], cwd=sandbox.path)
    assert not os.get_inheritable(fd)
    with child.pin() as pin:
        assert pin.wait(Deadline.after(30))
    os.close(fd)
    os.close(null)


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck")
def test_a_released_lock_and_claim_are_free_soon_during_concurrent_spawns(
    sandbox: files.Directory, short_root: str
) -> None:
    """A child holds copies of all descriptors from its fork to its exec, so a look is repeated, bounded.

    How long a busy machine keeps it from its exec is not what this is about.
    """
    directory, _ = files.create_private(f"{short_root}/other")
    stop = threading.Event()

    def storm() -> None:
        null = os.open("/dev/null", os.O_RDWR)
        while not stop.is_set():
            child = spawn.spawn(["true"], stdin=null, output=null, allowed=[], cwd=sandbox.path)
            with child.pin() as pin:
                assert pin.wait(Deadline.after(30))
        os.close(null)

    def free(look: Callable[[], bool]) -> bool:
        bound = Deadline.after(60)
        while not look():
            if not bound.pause():
                return False
        return True

    with directory, ThreadPoolExecutor(2) as pool:
        storms = [pool.submit(storm) for _ in range(2)]
        try:
            for _ in range(100):
                log = directory.open_log("log")
                expected = files.file_id(log)
                assert free(lambda log=log: files.claim_log(log))
                os.close(log)
                assert free(lambda e=expected: files.claim_is_held(directory, "log", e) is False)
                lock = directory.open_lock("lock")
                assert free(lambda lock=lock: files.try_lock(lock))
                files.unlock(lock)
                # Released by name, it is free at once, whoever holds a copy.
                other = directory.open_lock("lock")
                assert files.try_lock(other)
                files.unlock(other)
                os.close(lock)
                os.close(other)
        finally:
            stop.set()
        for future in storms:
            future.result()
