"""Processes held by handle."""

from __future__ import annotations

import ctypes
import os

import pytest

import wine

wine.only_windows()

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Refused
from nvx_ref.platform import process
from nvx_ref.platform.contract import ProcessGone, ProcessIdentity, Unpinnable
from nvx_ref.platform.windows import native, system
from nvx_ref.process import ProcessRef
from windows_holders import lock_out

WAIT = "import sys; sys.stdin.read()"
READY = f"print(1, flush=True); {WAIT}"
STILL_ACTIVE = 259


def soon() -> Deadline:
    return Deadline.after(120)


@pytest.mark.case("T29")
def test_two_sources_tell_the_same_creation_time(python) -> None:
    child = python(READY)
    with process.Pin.open(child.pid) as pin:
        assert pin.identity().start_time == system.creation_of(child.pid)
    assert process.own_identity().start_time == system.creation_of(os.getpid())


@pytest.mark.case("T29")
def test_a_held_process_keeps_its_number_and_identity_after_its_exit(python) -> None:
    child = python(READY)
    with process.Pin.open(child.pid) as pin:
        before = pin.identity()
        assert not pin.has_exited()
        assert pin.exit_status() is None
        child.communicate()
        assert pin.wait(soon())
        assert pin.has_exited()
        assert pin.identity() == before
        assert pin.exit_status() == 0
        assert ProcessRef.open(before) is None


def test_an_exit_code_of_259_is_an_exit(python) -> None:
    child = python(f"print(1, flush=True); import sys; sys.stdin.read(); sys.exit({STILL_ACTIVE})")
    with process.Pin.open(child.pid) as pin:
        child.communicate()
        assert pin.wait(soon())
        assert pin.has_exited()
        assert pin.exit_status() == STILL_ACTIVE


def test_a_wait_ends_at_its_deadline(python) -> None:
    with process.Pin.open(python(READY).pid) as pin:
        assert not pin.wait(Deadline.after(0.05))


@pytest.mark.spec("620.scope3.f")
def test_a_process_that_isn_t_a_child_is_ended_through_its_pin(python) -> None:
    grandparent = python(
        "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        " print(c.pid, flush=True); sys.stdin.read()",
        ready=False,
    )
    pid = int(grandparent.stdout.readline())
    with process.Pin.open(pid) as pin:
        pin.terminate()
        assert pin.wait(soon())
        pin.terminate()
        assert pin.exit_status() == process.ENDED_BY_FORCE


@pytest.mark.spec("620.scope3.f")
def test_one_that_is_ending_and_refuses_to_be_ended_is_waited_for(python, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the beginning of an exit and its event a process refuses it: that is no lack of rights."""
    child = python(READY)

    def refuse(_handle: int, _code: int) -> int:
        ctypes.set_last_error(native.ERROR_ACCESS_DENIED)
        return 0

    with process.Pin.open(child.pid) as pin:
        with monkeypatch.context() as patched:
            patched.setattr(native, "terminate_process", refuse)
            assert pin.terminate()
        assert not pin.has_exited()
        child.communicate()
        assert pin.wait(soon())
        assert not pin.terminate()


def test_a_number_that_isn_t_a_multiple_of_four_names_nobody(python) -> None:
    # The kernel rounds it down to one that is.
    with pytest.raises(ProcessGone):
        process.Pin.open(python(READY).pid + 1)


@pytest.mark.parametrize("pid", [0, -1, 2**32])
@pytest.mark.case("T07")
def test_a_number_that_no_process_can_have_never_reaches_the_kernel(pid: int) -> None:
    with pytest.raises(Refused):
        process.Pin.open(pid)


def test_a_closed_pin_says_so(python) -> None:
    pin = process.Pin.open(python(READY).pid)
    pin.close()
    pin.close()
    with pytest.raises(Unpinnable):
        pin.has_exited()


@pytest.mark.case("T04")
def test_a_process_of_another_boot_has_exited_whoever_has_its_number(python) -> None:
    child = python(READY)
    with process.Pin.open(child.pid) as pin:
        found = pin.identity()
    assert ProcessRef.open(ProcessIdentity(pid=found.pid, start_time=found.start_time, boot="boot-1")) is None
    ref = ProcessRef.open(found)
    assert ref is not None
    ref.close()


def test_a_number_with_another_creation_time_is_another_process(python) -> None:
    child = python(READY)
    with process.Pin.open(child.pid) as pin:
        found = pin.identity()
    other = ProcessIdentity(pid=found.pid, start_time=found.start_time - 1, boot=found.boot)
    assert ProcessRef.open(other) is None
    assert process.exited_by_number(other)
    assert not process.exited_by_number(found)


def test_the_boot_is_named_the_same_in_every_process(python) -> None:
    child = python(
        "from nvx_ref.platform import process; print(process.boot_identity(), flush=True); " + WAIT,
        ready=False,
    )
    assert child.stdout.readline().decode().strip() == process.boot_identity()


@pytest.mark.spec("656.tests.i")
@pytest.mark.case("T08")
@pytest.mark.case("T03")
def test_a_process_that_refuses_to_be_looked_at_is_unknown_and_runs_on(python) -> None:
    child = python(READY)
    with process.Pin.open(child.pid) as pin:
        found = pin.identity()
        lock_out(child.pid)
        with pytest.raises(Unpinnable) as told:
            ProcessRef.open(found)
        assert told.value.detail == "denied"
        # The kernel's table tells it from a stranger with its number all the same.
        assert ProcessRef.open(ProcessIdentity(pid=found.pid, start_time=found.start_time - 1, boot=found.boot)) is None
        assert not pin.has_exited()
