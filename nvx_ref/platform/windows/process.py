"""Processes held by handle: pinned, then identified, then acted on through the pin alone."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Self

from nvx_ref.closing import Closing
from nvx_ref.errors import Refused
from nvx_ref.platform.contract import MAX_PID, ProcessGone, ProcessIdentity, Unpinnable
from nvx_ref.platform.failures import describe, failure

assert sys.platform == "win32"

from nvx_ref.platform.windows import native, outputs
from nvx_ref.platform.windows.system import boot_identity, creation_of
from nvx_ref.platform.windows.waiting import is_signalled, wait_for_any

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.platform.contract import FileId

__all__ = [
    "ENDED_BY_FORCE",
    "Pin",
    "ProcessGone",
    "ProcessIdentity",
    "Unpinnable",
    "boot_identity",
    "exited_by_number",
    "own_identity",
    "pid_namespace",
]

ENDED_BY_FORCE = 1
"""The exit code of a process that this one has ended; Windows has no signals that could tell it from another 1."""

_LOOK = native.PROCESS_QUERY_LIMITED | native.SYNCHRONIZE


class Pin(Closing):
    """See :class:`nvx_ref.platform.contract.Pin`.

    While the handle is open the kernel keeps the process object, and with it the number, also after the exit.

    Args:
        pid: The number that was pinned.
        handle: A handle that may query and wait; the pin owns it.
        full: Whether the handle may also terminate: the one that a spawn gave.
    """

    __slots__ = ("_full", "_handle", "_pid")

    def __init__(self, pid: int, handle: int, *, full: bool = False) -> None:
        self._pid = pid
        self._handle = handle
        self._full = full

    @classmethod
    def open(cls, pid: int) -> Self:
        """Pin the process that a number names now.

        Args:
            pid: The number.

        Raises:
            ProcessGone: No process has it.
            Unpinnable: This user may not look at it (``denied``), or the system gave no handle.
            Refused: It is no process number.
        """
        if not 0 < pid <= MAX_PID:
            raise Refused("it is no process number", subject=f"process {pid}", detail="pid")
        return cls(pid, _open(pid, _LOOK))

    def duplicate(self) -> Self:
        """Return another hold on the same process.

        Raises:
            Unpinnable: It was closed, or there are no handles left.
        """
        me = native.get_current_process()
        found = native.HANDLE()
        same_access = 2
        if not native.duplicate_handle(me, self._held(), me, ctypes.byref(found), 0, False, same_access):
            raise _unreadable(native.last_error(), self._pid)
        return type(self)(self._pid, found.value, full=self._full)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the process, which goes on; idempotent."""
        handle, self._handle = getattr(self, "_handle", 0), 0
        if handle:
            native.release(handle)

    @property
    def pid(self) -> int:
        """The number that was pinned."""
        return self._pid

    @property
    def pidfs_inode(self) -> int | None:
        """Windows shows no number of a process that is never reused."""
        return None

    def identity(self) -> ProcessIdentity:
        """Return the identity of the held process, also after its exit: the handle keeps it."""
        return ProcessIdentity(pid=self._pid, start_time=_created(self._held(), self._pid), boot=boot_identity())

    def has_exited(self) -> bool:
        """Tell whether the process has ended: its object is signalled. An exit code tells nothing (259 is one)."""
        try:
            return is_signalled(self._held())
        except OSError as error:
            raise _unreadable(error, self._pid) from error

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the exit event; False once the deadline has passed."""
        try:
            return wait_for_any([self._held()], deadline) is not None
        except OSError as error:
            raise _unreadable(error, self._pid) from error

    def terminate(self) -> bool:
        """End the process at once and for good; False if it had ended already.

        The right to do so is asked for only here. Opening the number again finds the same process: it can't be
        another's while this pin holds it.
        """
        handle = self._held()
        if self.has_exited():
            return False
        if self._full:
            return self._end(handle)
        try:
            strong = _open(self._pid, _LOOK | native.PROCESS_TERMINATE)
        except ProcessGone:
            return False
        except Unpinnable as error:
            raise Refused(f"it can't be ended: {error.reason}", subject=error.subject, detail="denied") from error
        try:
            return self._end(strong)
        finally:
            native.release(strong)

    def exit_status(self) -> int | None:
        """Return the exit code, None while it runs. One that was ended by force has whatever code that gave it."""
        if not self.has_exited():
            return None
        code = native.DWORD()
        if not native.get_exit_code(self._held(), ctypes.byref(code)):
            return None
        return code.value

    def holds_output(self, file: FileId) -> bool:
        """Tell whether the process' standard output or error is that file."""
        self._held()
        held = False
        try:
            handle = _open(self._pid, _LOOK | native.PROCESS_VM_READ | native.PROCESS_DUP_HANDLE)
            try:
                held = outputs.hold(handle, file)
            finally:
                native.release(handle)
        except OSError as error:
            if not self.has_exited():
                raise _unreadable(error, self._pid) from error
        if self.has_exited():
            raise ProcessGone("it has exited", subject=f"process {self._pid}")
        return held

    def _end(self, handle: int) -> bool:
        if native.terminate_process(handle, ENDED_BY_FORCE):
            return True
        error = native.last_error()
        if self.has_exited():
            return False
        # Through a handle that may, only a process that is ending refuses it. Its exit is still to be waited for.
        if error.winerror == native.ERROR_ACCESS_DENIED:
            return True
        raise failure(error, f"process {self._pid}", "end")

    def _held(self) -> int:
        if not self._handle:
            raise Unpinnable("the hold on it has been given up", subject=f"process {self._pid}", detail="closed")
        return self._handle


def _open(pid: int, access: int) -> int:
    handle: int = native.open_process(access, False, pid)
    if not handle:
        error = native.last_error(f"process {pid}")
        if error.winerror == native.ERROR_INVALID_PARAMETER:
            raise ProcessGone("no process has this number", subject=f"process {pid}")
        raise _unreadable(error, pid) from error
    # The kernel rounds a number down to a multiple of four before it looks for it.
    if native.get_process_id(handle) != pid:
        native.release(handle)
        raise ProcessGone("no process has this number", subject=f"process {pid}")
    return handle


def _created(handle: int, pid: int) -> int:
    times = [ctypes.c_uint64() for _ in range(4)]
    if not native.get_process_times(handle, *(ctypes.byref(time) for time in times)):
        raise _unreadable(native.last_error(), pid)
    return times[0].value


def _unreadable(error: OSError, pid: int) -> Unpinnable:
    denied = error.winerror == native.ERROR_ACCESS_DENIED
    return Unpinnable(
        f"it can't be looked at: {describe(error)}",
        subject=f"process {pid}",
        detail="denied" if denied else "descriptors",
    )


def pid_namespace() -> int | None:
    """Windows counts all processes in one way."""
    return None


def own_identity() -> ProcessIdentity:
    """Return the identity of this very process."""
    pid = os.getpid()
    return ProcessIdentity(pid=pid, start_time=_created(native.get_current_process(), pid), boot=boot_identity())


def exited_by_number(identity: ProcessIdentity) -> bool:
    """Tell whether a process of this boot has provably exited, without a hold on it.

    The kernel lists every process with its creation time to everybody. At whatever instant the number doesn't name
    the recorded one any more, that one has exited. The reverse proves nothing.
    """
    try:
        found = creation_of(identity.pid)
    except OSError:
        return False
    return found != identity.start_time
