"""A wait that fails is an error that is told by name: never a "not yet", which would be looked at again for ever."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator

import pytest

import wine

wine.only_windows()

import _winapi

from harness.errors import HarnessError
from harness.faults.debugged import DebuggedExit
from harness.platform import choose_channel
from harness.platform.pipes import PipeDoor
from harness.witness import host, windows
from nvx_ref.deadline import Deadline
from nvx_ref.errors import SessionFailed
from nvx_ref.platform import endpoint, process
from nvx_ref.platform.contract import Unpinnable
from nvx_ref.platform.windows.waiting import is_signalled, wait_for_any
from pipe_server import Server
from tests.harness.stubs import SOON

INVALID, ABANDONED = 6, 735
SYNCHRONIZE = 0x10_0000
LONG = 600
"""Seconds for which a wait that took its failure for "not yet" would look again."""


@pytest.fixture
def closed() -> int:
    """A handle that isn't open: no value of that form is given out before millions of others."""
    value = 0x3FFF_FFFC
    with pytest.raises(OSError, match=rf"WinError {INVALID}\b"):
        _winapi.CloseHandle(value)
    return value


@pytest.fixture
def abandoned() -> Iterator[int]:
    """A lock of the system's whose owner has ended without giving it back."""
    kernel32 = ctypes.WinDLL("kernel32")
    kernel32.CreateMutexW.restype = kernel32.OpenThread.restype = ctypes.c_ssize_t
    handle: int = kernel32.CreateMutexW(None, False, None)
    ended: list[int] = []

    def own() -> None:
        assert _winapi.WaitForSingleObject(handle, 0) == _winapi.WAIT_OBJECT_0
        ended.append(kernel32.OpenThread(SYNCHRONIZE, False, threading.get_native_id()))

    owner = threading.Thread(target=own)
    owner.start()
    owner.join()
    # Python's word for a thread's end comes before the system's.
    assert _winapi.WaitForSingleObject(ended[0], 60_000) == _winapi.WAIT_OBJECT_0
    yield handle
    for one in (handle, *ended):
        _winapi.CloseHandle(one)


def test_the_harness_tells_of_a_process_whose_hold_was_given_up() -> None:
    pin = host().pin(os.getpid())
    assert pin is not None
    assert not pin.has_exited()
    pin.close()
    for look in (pin.has_exited, lambda: pin.wait(SOON(LONG)), pin.reap):
        with pytest.raises(HarnessError, match=r"handles 0x0 can't be waited for: .*\b6\b"):
            look()


def test_the_harness_tells_of_a_handle_that_is_closed_beside_an_event(closed: int) -> None:
    event = windows.Event()
    with pytest.raises(HarnessError, match=f"{closed:#x} can't be waited for"):
        event.wait([closed], SOON(LONG))


def test_the_harness_takes_a_lock_without_an_owner_for_no_event(abandoned: int) -> None:
    with pytest.raises(HarnessError, match="the wait ended with 0x80"):
        windows.Event().wait([abandoned], SOON(LONG), alone=True)


def test_a_closed_channel_is_no_quiet_one() -> None:
    door = PipeDoor(choose_channel(""))
    door.close()
    with pytest.raises(HarnessError, match="the channel's pipe can't be waited for"):
        door.wait([], SOON(LONG))


def test_a_debugger_that_hears_no_more_of_its_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        """A system that lets a debugger in, and then fails it."""

        def DebugActiveProcess(self, _: int) -> int:  # noqa: N802
            return 1

        def WaitForDebugEvent(self, _: object, __: int) -> int:  # noqa: N802
            ctypes.set_last_error(INVALID)
            return 0

        DebugSetProcessKillOnExit = DebugActiveProcessStop = DebugActiveProcess

    monkeypatch.setattr("harness.faults.debugged._kernel32", Kernel())
    with pytest.raises(HarnessError, match="at its exit"), DebuggedExit(4):
        pass


@pytest.mark.parametrize(
    "look", [is_signalled, lambda handle: wait_for_any([handle], Deadline.after(LONG))], ids=["at once", "until"]
)
@pytest.mark.parametrize(("kind", "code"), [("closed", INVALID), ("abandoned", ABANDONED)])
def test_the_reference_tells_of_a_handle_that_can_t_be_waited_for(
    request: pytest.FixtureRequest, look: Callable[[int], object], kind: str, code: int
) -> None:
    handle: int = request.getfixturevalue(kind)
    with pytest.raises(OSError, match=rf"WinError {code}\b"):
        look(handle)


def test_the_reference_calls_a_process_unknown_that_can_t_be_waited_for(closed: int) -> None:
    pin = process.Pin(os.getpid(), closed)
    for look in (pin.has_exited, lambda: pin.wait(Deadline.after(LONG))):
        with pytest.raises(Unpinnable, match="it can't be looked at"):
            look()


def test_a_connection_that_can_t_be_waited_for_is_broken(monkeypatch: pytest.MonkeyPatch, closed: int) -> None:
    name = endpoint.choose("C:\\anywhere")
    with Server(name) as server, endpoint.connect(name, Deadline.after(60), alive=lambda: True) as connection:
        server.accept()
        with monkeypatch.context() as patched:
            patched.setattr(connection, "_closed", closed)
            with pytest.raises(SessionFailed, match="it broke"):
                connection.receive(10, Deadline.after(LONG))
