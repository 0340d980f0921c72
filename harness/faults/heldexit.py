"""A process whose exit doesn't come: it has been killed, and is held just before its end until it is let go of.

The kernel stops a traced process on its way out, after a kill too, until its tracer lets it go on. To everybody else
that is a process that was ended and hasn't exited: its pidfd isn't readable, its locks are held.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Self

from harness.errors import Unavailable

if TYPE_CHECKING:
    from types import TracebackType

_SEIZE, _DETACH = 0x4206, 17
_TRACE_EXIT = 0x40


class HeldExit:
    """Holds a process at its exit for as long as the block lasts; the thread that enters it must leave it.

    Args:
        pid: The process, pinned by the caller.

    Raises:
        Unavailable: The kernel doesn't let this user trace it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Self:
        if self._trace(_SEIZE, _TRACE_EXIT) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise Unavailable(
                f"holding process {self._pid} at its exit",
                (f"the right to trace it ({reason}): CAP_SYS_PTRACE, or kernel.yama.ptrace_scope below 2",),
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trace(_DETACH, 0)

    def _trace(self, request: int, data: int) -> int:
        number, address = ctypes.c_long(self._pid), ctypes.c_void_p(0)
        return int(self._libc.ptrace(ctypes.c_long(request), number, address, ctypes.c_void_p(data)))
