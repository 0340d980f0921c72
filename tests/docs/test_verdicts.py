"""The table of what each command does under each verdict, typed out: `docs/verdicts.md` says what is so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.sandbox import Sandbox
from harness.world import World

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verdicts.md"
FAILS = ("refused", "waits")
"""How the table begins what ends with status 1."""

PATIENCE = {"stop": "2", "deprovision": "5"}
"""Seconds, by the command, for what is to wait until it gives up; what is to succeed has a command's usual ones."""


def table() -> list[tuple[str, str, str]]:
    """Return the table's places: command, verdict, what the page says."""
    text = PAGE.read_text().partition("## What each command does")[2].partition("\n## ")[0]
    rows = [[one.strip() for one in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    verdicts = rows[0][1:]
    return [
        (row[0].strip("`"), verdict, said) for row in rows[2:] for verdict, said in zip(verdicts, row[1:], strict=True)
    ]


def stopped(_world: World, _box: Sandbox) -> None:
    return


def live(world: World, box: Sandbox) -> None:
    with world.orchestrator() as program:
        box.succeed(program, "start")


def exited(world: World, box: Sandbox) -> None:
    live(world, box)
    world.processes.one("start").pin.end()
    world.processes.none("the VM's end", world.soon())


def mismatched(world: World, box: Sandbox) -> None:
    live(world, box)
    record = json.loads(box.read("runtime.json"))
    record["identity"]["kernel"] = "sha256:" + "0" * 64
    Path(box.path("runtime.json")).write_text(json.dumps(record, indent=2))


def indeterminate(world: World, box: Sandbox) -> None:
    live(world, box)
    Path(box.path("runtime.json")).write_text("{")


STATES: dict[str, Callable[[World, Sandbox], None]] = {
    one.__name__: one for one in (live, mismatched, exited, stopped, indeterminate)
}


def test_the_table_has_every_command_under_every_verdict() -> None:
    places = table()
    assert {(command, verdict) for command, verdict, _ in places} == {
        (command, verdict) for command in ("start", "exec", "stop", "deprovision", "status") for verdict in STATES
    }
    assert len(places) == len(STATES) * 5


@pytest.mark.parametrize(("command", "verdict", "said"), table(), ids=lambda text: re.sub(r"\W+", "-", text))
def test_a_command_does_what_the_page_says(world: World, command: str, verdict: str, said: str) -> None:
    box = Sandbox(world)
    with world.orchestrator() as program:
        box.provision(program)
    STATES[verdict](world, box)
    found = world.nvx_ref("status", "--state-dir", box.directory)
    assert (found.status, found.stdout.partition(":")[0].strip()) == (0, verdict)
    before = box.names()
    words = ["--timeout", PATIENCE[command]] if command in PATIENCE and said.startswith(FAILS) else []
    after = ["--", "/bin/true"] if command == "exec" else []
    done = world.nvx_ref(command, "--state-dir", box.directory, *words, *after)
    assert done.status == (1 if said.startswith(FAILS) else 0), done.stderr
    if "keeps all" in said:
        assert box.names() == before
    gone = command == "deprovision" and "removes" in said
    assert bool(box.names()) is not gone
    for one in world.processes.vmms():
        one.pin.end()
    world.processes.none(command, world.soon())
    shutil.rmtree(box.directory, ignore_errors=gone)
