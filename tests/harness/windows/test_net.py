"""The net below a test: what is left behind is caught by its job, what broke away by its token, each with its text."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import wine

wine.only_windows()

from harness import python
from harness.goldens import Goldens
from harness.removing import remove_tree
from harness.settings import own_goldens
from harness.witness import host
from harness.witness.jobs import PREFIX, Net
from tests.harness.stubs import SOON

pytest_plugins = ["pytester"]

SLEEPS = "import time; time.sleep(600)"
LEAVES = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-c", {SLEEPS!r}, *sys.argv[2:]], creationflags=int(sys.argv[1]))
print(child.pid, flush=True)
"""
DETACHED, AWAY = 0x8 | 0x200, 0x100_0000

HEAD = f"""
import sys, pytest
from harness import python
from harness.sandbox import RAMFS, Sandbox

pytestmark = pytest.mark.lifecycle
SLEEPS = {SLEEPS!r}

def leaves(world, *arguments, flags={DETACHED}):
    command = [python.interpreter(), "-I", "-c", {LEAVES!r}, str(flags), *arguments]
    assert world.run(command).status == 0
"""
BODIES = {
    "process": "\n    world.host.start([python.interpreter(), '-I', '-c', SLEEPS, world.vmm.needle])\n",
    "orphan": "\n    leaves(world)\n",
    "breakaway": f"\n    leaves(world, 'x' + world.token, flags={DETACHED | AWAY})\n",
    "vm": """
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
""",
}
PATTERNS = (
    (re.compile(r"[A-Z]:\\[^\s:]*\\nvx-[0-9a-f]{8}"), "<RUN>"),
    (re.compile(r"<RUN>\\[\d.]+"), "<TEST>"),
    (re.compile(r"[A-Z]:\\\S*\\python\.exe"), "<python>"),
    (
        re.compile(r"(?<=>)\\(\w+)(?:\\(\S+))?"),
        lambda found: "/".join(["", *(name for name in found.groups() if name)]),
    ),
    (re.compile(r"(evidence/\S+)-[0-9a-f]{4}"), r"\1-<ID>"),
    (re.compile(r"\bx[0-9a-f]{16}\b"), "x<TOKEN>"),
    (re.compile(r"^VMM: +", re.MULTILINE), "VMM: "),
    (re.compile(r"^[_=-]{3,}(.*?)[_=-]*$", re.MULTILINE), r"___\1"),
)


def failures(text: str) -> dict[str, list[str]]:
    """The lines of each failure, written as on every system and as of one test."""
    end = re.search(r"^=+ scenarios on ", text, re.MULTILINE)
    assert end is not None, text
    heads = [*re.finditer(r"^_{3,} test_(\w+) _{3,}$", text, re.MULTILINE)]
    ends = [*(head.start() for head in heads[1:]), end.start()]
    found: dict[str, list[str]] = {}
    for head, stop in zip(heads, ends, strict=True):
        part = text[head.start() : stop].replace(f"test_{head[1]}", "test_it")
        for pattern, instead in PATTERNS:
            part = pattern.sub(instead, part)
        found[head[1]] = [line.rstrip() for line in part.splitlines()]
    return found


@pytest.mark.case("T61")
def test_what_a_test_leaves_behind_is_caught_ended_and_told(
    pytester: pytest.Pytester, pytestconfig: pytest.Config
) -> None:
    tests = [f"def test_{what}(world):{body}" for what, body in BODIES.items()]
    pytester.makepyfile(test_seeded="\n".join([HEAD, *tests]))
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    text = result.stdout.str() + result.stderr.str()
    result.assert_outcomes(failed=len(BODIES))
    # Where `CI` is set the summary repeats the whole texts.
    left = list(dict.fromkeys(re.findall(r"^  process pid (\d+) ", text, re.MULTILINE)))
    kept = re.findall(r"^evidence: (\S+)", text, re.MULTILINE)
    assert (len(left), len(kept)) == (len(BODIES), len(BODIES))
    for number, evidence in zip(left, kept, strict=True):
        pin = host().pin(int(number))
        assert pin is None or pin.wait(SOON(60))
        assert Path(evidence, "survivors", f"{number}.txt").is_file()
    goldens = Goldens(
        str(pytestconfig.rootpath / "goldens"), update=pytestconfig.getoption("update_goldens"), own=own_goldens()
    )
    for what, lines in failures(text).items():
        goldens.check(f"harness/failures/{what}.txt", lines)
    remove_tree(str(Path(kept[0]).parents[1]))


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    made.close()


def leaves(net: Net, flags: int) -> int:
    """Have a process of the net leave one behind, and return its number."""
    child = net.start([python.interpreter(), "-I", "-c", LEAVES, str(flags)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        return int(child.stdout.readline())


def test_what_a_process_of_the_net_leaves_is_in_it_and_ends_with_it(net: Net) -> None:
    with subprocess.Popen([python.interpreter(), "-I", "-c", LEAVES, str(DETACHED)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        stranger = host().pin(int(child.stdout.readline()))
    left = host().pin(leaves(net, DETACHED))
    assert left is not None
    assert stranger is not None
    found = host().stats()
    assert {left.pid, stranger.pid} <= {stat.pid for stat in found}
    assert net.orphans(found) == {left.pid}
    net.close()
    assert left.wait(SOON(60))
    assert not stranger.has_exited()
    stranger.end()
    assert stranger.wait(SOON(60))


def test_what_breaks_away_is_not_in_the_net(net: Net) -> None:
    away = host().pin(leaves(net, DETACHED | AWAY))
    assert away is not None
    assert net.orphans(host().stats()) == set()
    net.close()
    assert not away.has_exited()
    away.end()
    assert away.wait(SOON(60))


def test_a_child_whose_parent_lives_is_no_orphan(net: Net) -> None:
    stays = f"{LEAVES}\nsys.stdin.read()"
    command = [python.interpreter(), "-I", "-c", stays, str(DETACHED)]
    with net.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert net.orphans(host().stats()) == set()
        parent.communicate()
        assert net.orphans(host().stats()) == {child}


@pytest.mark.case("T62")
def test_a_harness_that_is_killed_takes_its_net_along(tmp_path: Path) -> None:
    body = f"""
from harness.witness import host
found = host()
found.adopt_orphans()
child = found.start([sys.executable, "-I", "-c", {LEAVES!r}, "{DETACHED}"])
child.wait()
sys.stdin.read()
"""
    command = python.write_script(str(tmp_path / "harness.py"), packages=("harness",), body=body)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        left = host().pin(int(harness.stdout.readline()))
        assert left is not None
        assert not left.has_exited()
        harness.kill()
        assert left.wait(SOON(60))


def test_the_job_has_a_name_of_its_own(net: Net) -> None:
    other = Net()
    assert net.name.startswith(PREFIX)
    assert net.name != other.name
    other.close()
