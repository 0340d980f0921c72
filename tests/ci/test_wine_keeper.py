"""The keeper of the Windows lane: it reaps every orphan at once, and nothing outlives it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.deadline import Clock, until

KEEPER = Path(__file__).resolve().parents[2] / "ci" / "wine" / "keeper.py"
WITHIN = 30.0
ORPHANED = """
import os, sys
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(writer, b"%d" % os.getpid())
        os.close(writer)
        ORPHAN
        os._exit(0)
    os._exit(0)
os.close(writer)
os.wait()
print(os.read(reader, 20).decode(), flush=True)
sys.stdin.read()
"""


def keeper(*command: str) -> list[str]:
    return [sys.executable, str(KEEPER), *command]


@contextmanager
def kept(orphan: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a command under the keeper that waits after it has left an orphan; yield the keeper and the orphan."""
    command = keeper(sys.executable, "-I", "-S", "-c", ORPHANED.replace("ORPHAN", orphan))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        yield running, int(running.stdout.readline())


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("program", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9), ("pass", 0)]
)
def test_it_ends_as_its_command_does(program: str, status: int) -> None:
    assert subprocess.run(keeper(sys.executable, "-c", program), check=False, timeout=WITHIN).returncode == status


def test_an_orphan_is_reaped_while_the_command_goes_on() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    command = keeper(sys.executable, "-I", "-S", "-c", ORPHANED.replace("ORPHAN", f"os.read({reader}, 1)"))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[reader]
    ) as running:
        os.close(reader)
        assert running.stdout is not None
        orphan = int(running.stdout.readline())
        assert parent(orphan) == running.pid
        held = os.pidfd_open(orphan)
        os.close(writer)
        assert select.select([held], [], [], WITHIN)[0]
        os.close(held)
        assert until(lambda: not os.path.exists(f"/proc/{orphan}"), Clock().after(WITHIN))
        assert running.poll() is None
        running.communicate("", timeout=WITHIN)
    assert running.returncode == 0


@pytest.mark.parametrize("ended_by", [None, signal.SIGTERM, signal.SIGINT])
def test_what_the_command_left_ends_with_it(ended_by: signal.Signals | None) -> None:
    with kept("import signal; signal.pause()") as (running, orphan):
        held = os.pidfd_open(orphan)
        if ended_by is not None:
            running.send_signal(ended_by)
        running.communicate("", timeout=WITHIN)
        assert select.select([held], [], [], 0)[0]
        os.close(held)
    assert running.returncode == (0 if ended_by is None else 128 + ended_by)


def test_addresses_below_it_are_the_same_each_time() -> None:
    """Wine 8 of Debian doesn't start where its heap comes to lie on the page of Windows' shared data."""
    if subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("addresses can't be had without chance here: personality is refused")
    program = "print(*(line.split('-')[0] for line in open('/proc/self/maps') if '[heap]' in line))"
    heaps = {
        subprocess.run(
            keeper(sys.executable, "-I", "-S", "-c", program), capture_output=True, check=True, timeout=WITHIN
        ).stdout
        for _ in range(3)
    }
    assert len(heaps) == 1
    assert heaps.pop().strip()
