"""The handle-table witness: what a process was given, beside its own table, and a launcher that gives too much."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import wine

wine.only_windows()

import msvcrt

from harness import python
from harness.removing import remove_tree
from harness.witness import host
from harness.witness.handles import Opened
from tests.harness.seeded import put

pytest_plugins = ["pytester"]

WAITS = """
import json, os, sys
from fake_openvmm.windows.host import descriptors, facts
table, standard = descriptors(), facts()["standard"]
kept = open(sys.argv[1], "rb")
print(json.dumps([table, standard]), flush=True)
sys.stdin.read()
"""
INHERIT = 1


@contextmanager
def given(tmp_path: Path, extra: Sequence[int]) -> Iterator[tuple[int, list[list[int]], list[int]]]:
    """A process that was given handles beyond its standard ones: its number, its own table, its standard handles."""
    script = python.write_script(str(tmp_path / "waits.py"), packages=("fake_openvmm",), body=WAITS)
    startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": list(extra)})
    with subprocess.Popen(
        [*script, str(tmp_path / "own")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, startupinfo=startup
    ) as child:
        assert child.stdout is not None
        table, standard = json.loads(child.stdout.readline())
        yield child.pid, table, standard
        child.communicate()


@pytest.fixture
def extra(tmp_path: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    """An inheritable handle, and the file that it means."""
    with open(tmp_path / "extra", "w+b") as file:
        os.set_inheritable(file.fileno(), True)
        status = os.fstat(file.fileno())
        yield msvcrt.get_osfhandle(file.fileno()), (status.st_dev, status.st_ino)


@pytest.fixture(autouse=True)
def _own(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"what the process opens itself")


@pytest.mark.case("T31")
def test_a_handle_too_many_is_seen_by_the_witness_as_by_the_process(
    tmp_path: Path, extra: tuple[int, tuple[int, int]]
) -> None:
    handle, where = extra
    with given(tmp_path, [handle]) as (pid, table, standard):
        found = host().inherited(pid)
        assert found is not None
        assert {one.number for one in found} == {0, 1, handle} | (
            {2} if standard[2] in {row[0] for row in table} else set()
        )
        assert {(one.device, one.inode) for one in found if one.number == handle} == {where}
        # What the process says of itself: the same ones are inheritable, and everything else it opened itself.
        ours = {row[0] for row in table if row[3] & INHERIT} - set(standard)
        assert ours == {handle}
        assert f"inherited {handle} File {handle:#x}" in host().explain(pid)


def test_what_a_process_opens_itself_was_not_given_to_it(tmp_path: Path) -> None:
    with given(tmp_path, []) as (pid, _, standard):
        found = host().inherited(pid)
        assert found is not None
        assert {one.number for one in found} <= {0, 1, 2}
        own = os.stat(tmp_path / "own")
        with Opened(pid) as process:
            files = [process.file(one.value) for one in process.handles() if not one.inheritable]
            assert (own.st_dev, own.st_ino) in files
            assert {process.type(one.value) for one in process.handles() if one.value in standard} == {"File"}


def test_a_process_that_is_gone_has_no_table(tmp_path: Path) -> None:
    with given(tmp_path, []) as (pid, _, _):
        pin = host().pin(pid)
        assert pin is not None
    assert pin.has_exited()
    assert not host().inherited(pid)
    pin.close()


SPAWNS = """
import pytest
from harness.sandbox import RAMFS, Sandbox
from scenarios.boots import expect_allowlist

@pytest.mark.c3
def test_it(world):
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    (vm,) = world.vmm.vms()
    seen = world.host.inherited(vm.pid)
    world.expect("the two witnesses", expected=sorted(one.number for one in vm.descriptors()),
        found=[one.number for one in seen])
    try:
        expect_allowlist(world, box, vm)
    finally:
        box.succeed(program, "stop")
        box.succeed(program, "deprovision")
"""


@pytest.mark.case("T31")
@pytest.mark.parametrize("wide", [False, True], ids=["as it is", "widened"])
def test_an_allowlist_that_is_widened_is_found(
    pytester: pytest.Pytester, pytestconfig: pytest.Config, tmp_path: Path, *, wide: bool
) -> None:
    instead = "wanted = list(dict.fromkeys([*standard, *passed]))"
    if wide:
        instead += "\n    wanted.append(msvcrt.get_osfhandle(os.open(__file__, os.O_RDONLY | os.O_NOINHERIT)))"
    where = "nvx_ref/platform/windows/spawn.py"
    first = put(where, "wanted = list(dict.fromkeys([*standard, *passed]))", instead, tmp_path)
    command = python.write_script(
        str(tmp_path / "orchestrator.py"),
        packages=("harness", "msgspec"),
        first=[str(first)],
        body="from harness.sut.reference import main\n\nsys.exit(main())\n",
    )
    pytester.makepyfile(SPAWNS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(pytestconfig.rootpath))
        result = pytester.runpytest_subprocess("--orchestrator", python.as_text(command), "--timeout-scale", "4")
    if not wide:
        result.assert_outcomes(passed=1)
        return
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert re.search(r"the VMM's descriptors: expected \[0, 1, 2\], found \[0, 1, 2, \d+\]", text)
    kept = re.search(r"^evidence: (\S+)", text, re.MULTILINE)
    assert kept is not None
    remove_tree(str(Path(kept[1]).parents[1]))
