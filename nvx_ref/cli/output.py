"""What the commands write: a workload's bytes, and how far a long reading has come."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nvx_ref.errors import Refused
from nvx_ref.nvxc.client import MAX_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.nvxc import ExecRequest, ExecResult

_PERCENT = 100


def write_output(stream: str, data: bytes) -> None:
    """Hand on what a workload has written.

    Args:
        stream: ``stdout`` or ``stderr``.
        data: Its bytes.

    Raises:
        BrokenPipeError: Nobody reads it any more.
        Refused: It is closed, or can't be written.
    """
    target = sys.stdout if stream == "stdout" else sys.stderr
    if target is None:
        raise Refused("it is closed", subject=stream, hint="open it, or send it to /dev/null", detail="output")
    try:
        target.buffer.write(data)
        target.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = f"it can't be written: {error.strerror}"
        raise Refused(reason, subject=stream, hint="the program's output is cut there", detail="output") from error


def why_ended(result: ExecResult, request: ExecRequest) -> str | None:
    """Return why a program didn't come to an end of its own, None if it did.

    Its status alone doesn't say so: a program may exit with any.

    Args:
        result: How it ended.
        request: What was asked for.
    """
    if result.refused:
        return f"the guest refused to run it: {result.category} (status {result.status})"
    return {
        "timeout": f"the program was ended: it ran longer than its {request.timeout_ms} ms",
        "output-limit": f"the program was ended: its output passed {MAX_OUTPUT} bytes",
        "cancelled": "the program was ended: it was cancelled",
        "failed": f"the guest could not run it (status {result.status})",
    }.get(result.category)


class Progress:
    """Counts what was hashed, and shows it on a terminal.

    Attributes:
        hashed: Bytes so far.
    """

    def __init__(self) -> None:
        self.hashed = 0
        self._shown = -1
        self._say: Callable[[str], object] | None = sys.stderr.write if sys.stderr and sys.stderr.isatty() else None

    def __call__(self, done: int, total: int) -> None:
        """Take how many bytes of how many have been hashed."""
        self.hashed = done
        percent = done * _PERCENT // max(total, 1)
        if self._say is not None and percent != self._shown:
            self._shown = percent
            self._say(f"\rhashed {percent:3}%" + ("\n" if done == total else ""))
            sys.stderr.flush()
