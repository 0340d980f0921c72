"""A prepared launch owns what it opened, and gives everything back on every way out."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from nvx_ref.errors import NotFound, NvxError, Refused
from nvx_ref.images import CheckedFile
from nvx_ref.plan import Access, ColdPlan, Guest, Share, encode_plan, plan_shares, prepare
from tests.plan.conftest import Inputs


def open_descriptors() -> set[str]:
    # The listing's own descriptor is closed by the time that it is looked at.
    return {fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}


@pytest.mark.spec("622.scope1.f")
def test_a_prepared_launch_names_its_files_by_descriptor(inputs: Inputs, plan: ColdPlan) -> None:
    for path in (inputs.distro.path, inputs.artifacts.kernel, inputs.artifacts.initramfs):
        assert os.access(path, os.W_OK)
    # What other tests left to be collected would give its numbers to what is opened here.
    gc.collect()
    before = open_descriptors()
    with prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch) as prepared:
        command = prepared.command(endpoint="/s/control.sock", report="/s/outcome.json")
        assert len(set(command.allowed)) == 4
        for fd, option in zip(command.allowed, ("distro:file:", "scratch:file:", "", ""), strict=True):
            assert not os.get_inheritable(fd)
            # Nothing but the scratch could be written through what the VMM inherits, whatever the files allow.
            mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
            assert mode == (os.O_RDWR if option.startswith("scratch") else os.O_RDONLY)
            assert [word for word in command.argv if word.removesuffix(",ro") == f"{option}/proc/self/fd/{fd}"]
        assert str(inputs.directory) not in " ".join(command.argv[1:])
        assert {str(fd) for fd in command.allowed} <= open_descriptors() - before
    assert open_descriptors() <= before
    with pytest.raises(ValueError, match="is closed"):
        prepared.command(endpoint="/s/control.sock", report="/s/outcome.json")


@pytest.mark.spec("622.scope3.b")
def test_the_checked_objects_are_what_a_child_opens(inputs: Inputs, plan: ColdPlan) -> None:
    paths = [inputs.distro.path, inputs.scratch.path, inputs.artifacts.kernel, inputs.artifacts.initramfs]
    expected = [os.stat(path).st_ino for path in paths]
    with prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch) as prepared:
        command = prepared.command(endpoint="/s/control.sock", report="/s/outcome.json")
        for path in paths:
            Path(path).rename(path + ".gone")
            Path(path).write_bytes(b"a decoy")
        code = "import os, sys; print([os.stat('/proc/self/fd/' + fd).st_ino for fd in sys.argv[1:]])"
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, *map(str, command.allowed)],
            pass_fds=command.allowed,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == f"{expected}\n"


def test_a_gap_is_before_each_number_that_is_handed_over(inputs: Inputs, plan: ColdPlan) -> None:
    """Without one CPython closes 10,000 other descriptors one by one, which takes a launch a hundred times as long."""
    with prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch) as prepared:
        numbers = sorted(prepared.command(endpoint="/s/control.sock", report="/s/outcome.json").allowed)
        assert all(upper - lower > 1 for lower, upper in pairwise(numbers))
        # Whatever a spawn opens besides stays below them.
        assert len({*map(str, range(3, numbers[0] - 1))} - open_descriptors()) > 8


def test_a_memory_upper_opens_no_scratch(inputs: Inputs, ram_plan: ColdPlan) -> None:
    with prepare(ram_plan, inputs.artifacts, distro=inputs.distro) as prepared:
        assert prepared.scratch is None
        assert len(prepared.command(endpoint="/s/c", report="/s/o").allowed) == 3


@pytest.mark.parametrize("what", ["distro", "scratch", "kernel", "initramfs"])
@pytest.mark.parametrize("how", ["gone", "fifo", "empty", "directory"])
def test_a_bad_input_is_named_and_nothing_stays_open(inputs: Inputs, plan: ColdPlan, what: str, how: str) -> None:
    path = Path(getattr(inputs, what).path if what in {"distro", "scratch"} else getattr(inputs.artifacts, what))
    path.unlink()
    if how == "fifo":
        os.mkfifo(path)
    elif how == "empty":
        path.touch()
    elif how == "directory":
        path.mkdir()
    before = open_descriptors()
    with pytest.raises(NotFound if how == "gone" else Refused) as caught:
        prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch)
    assert caught.value.subject == str(path)
    assert open_descriptors() <= before


@pytest.mark.case("T56")
def test_two_launches_don_t_share_a_scratch(inputs: Inputs, plan: ColdPlan) -> None:
    with (
        prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch),
        pytest.raises(Refused) as caught,
    ):
        prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch)
    assert caught.value.detail == "scratch-owned"


def test_bindings_must_be_the_plans(inputs: Inputs, plan: ColdPlan, ram_plan: ColdPlan) -> None:
    other = msgspec.structs.replace(inputs.distro, identity=None)
    for wrong, distro, scratch in (
        (plan, None, inputs.scratch),
        (plan, inputs.distro, None),
        (ram_plan, inputs.distro, inputs.scratch),
        (plan, other, inputs.scratch),
    ):
        with pytest.raises(Refused):
            prepare(wrong, inputs.artifacts, distro=distro, scratch=scratch)


def test_the_budget_is_checked_before_any_file(inputs: Inputs, plan: ColdPlan) -> None:
    long = msgspec.structs.replace(plan, guest=Guest(extra="x" * 2000))
    Path(inputs.distro.path).unlink()
    with pytest.raises(Refused) as caught:
        prepare(long, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch)
    assert caught.value.detail == "budget"


@pytest.mark.parametrize("fails_at", range(1, 5))
def test_a_failure_between_two_opens_closes_the_first(
    inputs: Inputs, plan: ColdPlan, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    opened = 0
    original = CheckedFile.__enter__

    def failing(self: CheckedFile) -> CheckedFile:
        nonlocal opened
        opened += 1
        if opened == fails_at:
            self.close()
            raise NvxError("planted")
        return original(self)

    monkeypatch.setattr(CheckedFile, "__enter__", failing)
    before = open_descriptors()
    with pytest.raises(NvxError, match="planted"):
        prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch)
    assert open_descriptors() <= before


def test_nothing_kept_names_a_descriptor(inputs: Inputs, plan: ColdPlan) -> None:
    with prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch):
        kept = encode_plan(plan) + b"".join(map(msgspec.json.encode, (inputs.distro, inputs.scratch, inputs.artifacts)))
    assert b"/proc/" not in kept


@pytest.mark.spec("622.scope4.c")
def test_a_pinned_object_is_rechecked_before_any_file_is_opened(inputs: Inputs, plan: ColdPlan) -> None:
    shared = inputs.directory / "shared"
    (shared / "secret").mkdir(parents=True)
    share = Share(target="/data", host=str(shared), access=Access.READ_WRITE, denied=(str(shared / "secret"),))
    sharing = msgspec.structs.replace(plan, exports=plan_shares([share]))
    with prepare(sharing, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch) as prepared:
        argv = prepared.command(endpoint="/s/c", report="/s/o").argv
    assert argv[argv.index("--mount") + 1] == f"/data,{shared},rw"
    (shared / "secret").rename(shared / "moved")
    (shared / "secret").mkdir()
    Path(inputs.distro.path).unlink()
    with pytest.raises(Refused) as caught:
        prepare(sharing, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch)
    assert caught.value.detail == "pin"
