"""The soak, shortened; and that it notices each kind of thing that a cycle may leave behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import Finding, HarnessError
from harness.python import write_script
from harness.soak import Count, compare, soak
from harness.sut.process import Started
from harness.world import World, environment
from tests.harness.stubs import descriptors_open

ROOT = Path(__file__).resolve().parents[2]
CYCLES = 40

LEAKS = """
import os
from harness.sut import reference
from nvx_ref.orchestrator import Orchestrator

stop = Orchestrator.stop

def leaking(*arguments, **named):
    {leak}
    return stop(*arguments, **named)

Orchestrator.stop = leaking
sys.exit(reference.main())
"""


def test_many_cycles_of_start_and_stop_leave_nothing(world: World) -> None:
    done: list[int] = []
    soak(world, CYCLES, told=done.append)
    assert done == list(range(1, CYCLES + 1))
    assert len(world.vmm.vms()) == CYCLES


@pytest.mark.parametrize(
    ("leak", "found"),
    [
        ("os.open('/dev/null', os.O_RDONLY)", "descriptors after 6 cycles"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "threads after"),
    ],
    ids=["descriptor", "thread"],
)
def test_what_each_cycle_leaves_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch, leak: str, found: str
) -> None:
    script = write_script(
        str(Path(world.root, "reference.py")),
        packages=("nvx_ref", "harness", "msgspec"),
        body=LEAKS.format(leak=leak),
    )
    orchestrator = world.orchestrator
    monkeypatch.setattr(world, "orchestrator", lambda: orchestrator(Started(script, environment=environment())))
    with pytest.raises(Finding, match=found):
        soak(world, 6)


@pytest.mark.parametrize("what", ["processes", "files", "sockets"])
def test_any_difference_is_a_finding(what: str) -> None:
    before = Count((), 1, (), (), ())
    with pytest.raises(Finding, match=f"{what} after 9 cycles: expected "):
        compare(before, replace(before, **{what: ("more",)}), 9)
    compare(before, before, 9)


def test_a_soak_without_cycles_is_refused(world: World) -> None:
    with pytest.raises(HarnessError, match="a soak takes more than 3 cycles, not 3"):
        soak(world, 3)


def test_a_channel_takes_more_calls_than_it_has_room_for_and_keeps_no_descriptor(world: World) -> None:
    before = descriptors_open()
    for _ in range(300):
        with socket.socket(socket.AF_UNIX) as fake:
            fake.settimeout(60)
            fake.connect(os.path.join(world.root, "channel"))
        world.channel.forget()
        # Its end may be seen at the next look only.
        world.channel.forget()
    assert world.channel.peers == []
    assert descriptors_open() == before


def test_the_command_says_what_it_came_to() -> None:
    done = subprocess.run([sys.executable, "ci/soak.py", "5"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("5 cycles of start and stop in ")
    assert done.stdout.endswith(" s: 0 leaked descriptors, processes and files\n")
