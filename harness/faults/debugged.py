"""A process of Windows whose exit doesn't come: its debugger is told of the exit, and doesn't let it go on.

The last thread of a process that is debugged reports the exit and waits for its debugger before anybody's handle is
signalled, after a termination too. Until then it runs as it did: every other event is answered at once.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import TYPE_CHECKING, Self

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

from harness.deadline import POLL_INTERVAL  # noqa: E402
from harness.errors import HarnessError, Unavailable  # noqa: E402

if TYPE_CHECKING:
    from types import TracebackType

ATTACHING = 30.0
"""Seconds until which the system must have let the debugger in."""

_EXCEPTION, _CREATED, _EXITED, _LOADED = 1, 3, 5, 6
_BREAKPOINT = 0x8000_0003
_GO_ON, _NOT_HANDLED = 0x1_0002, 0x8001_0001
_EVENT_SIZE, _TIMED_OUT = 176, 121
_CODE, _PROCESS, _THREAD, _FIRST = 0, 4, 8, 16

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.DebugActiveProcess.argtypes = [ctypes.c_uint32]
_kernel32.DebugActiveProcessStop.argtypes = [ctypes.c_uint32]
_kernel32.DebugSetProcessKillOnExit.argtypes = [ctypes.c_int]
_kernel32.WaitForDebugEvent.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
_kernel32.ContinueDebugEvent.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32]
_kernel32.CloseHandle.argtypes = [ctypes.c_ssize_t]


class DebuggedExit:
    """Holds a process at its exit for as long as the block lasts.

    Args:
        pid: The process, pinned by the caller.

    Raises:
        Unavailable: The system doesn't let this user debug it.
        HarnessError: It doesn't let its debugger in, or the system stopped telling of it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._refusal: OSError | None = None
        self._attached = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._debug, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        attached = self._attached.wait(ATTACHING)
        if self._refusal is not None:
            raise Unavailable(f"holding process {self._pid} at its exit", (f"the right to debug it: {self._refusal}",))
        if not attached:
            self.__exit__(None, None, None)
            raise HarnessError(f"process {self._pid} didn't let its debugger in within {ATTACHING:g} seconds")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._refusal is not None and error is None:
            raise HarnessError(f"process {self._pid} wasn't held at its exit: {self._refusal}")

    def _debug(self) -> None:
        """Be its debugger; all of it is one thread's."""
        if not _kernel32.DebugActiveProcess(self._pid):
            self._refusal = ctypes.WinError(ctypes.get_last_error())
            self._attached.set()
            return
        _kernel32.DebugSetProcessKillOnExit(False)
        event = (ctypes.c_char * _EVENT_SIZE)()
        while not self._done.is_set():
            # There is nothing else to wait with that would be signalled by a debugger's event.
            if not _kernel32.WaitForDebugEvent(event, int(POLL_INTERVAL * 1000)):
                if (error := ctypes.get_last_error()) == _TIMED_OUT:
                    continue
                self._refusal = ctypes.WinError(error)
                self._attached.set()
                break
            if _number(event, _CODE) == _EXITED:
                self._done.wait()
            elif _number(event, _CODE) == _EXCEPTION:
                # The first one is the system's own, which lets a debugger in.
                self._attached.set()
            _go_on(event)
        _kernel32.DebugActiveProcessStop(self._pid)


def require() -> None:
    """Check that an exit waits for its debugger here.

    Raises:
        Unavailable: This is Wine, which tells everybody of an exit at once.
    """
    if hasattr(ctypes.WinDLL("ntdll"), "wine_get_version"):
        raise Unavailable("holding a process at its exit", ("Windows itself, since Wine waits for no debugger there",))


def _go_on(event: ctypes.Array[ctypes.c_char]) -> None:
    code, first = _number(event, _CODE), _number(event, _FIRST)
    if code in {_CREATED, _LOADED}:
        # A handle of the file, which is the debugger's to close.
        _kernel32.CloseHandle(int.from_bytes(event.raw[_FIRST : _FIRST + 8], "little", signed=True))
    how = _NOT_HANDLED if code == _EXCEPTION and first != _BREAKPOINT else _GO_ON
    _kernel32.ContinueDebugEvent(_number(event, _PROCESS), _number(event, _THREAD), how)


def _number(event: ctypes.Array[ctypes.c_char], at: int) -> int:
    return int.from_bytes(event.raw[at : at + 4], "little")
