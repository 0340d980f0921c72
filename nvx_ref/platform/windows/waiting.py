"""Waits for handles' events."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

assert sys.platform == "win32"

import _winapi

from nvx_ref.platform.windows import native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvx_ref.deadline import Deadline

_LONGEST = 2**31 - 1
"""Milliseconds that one wait can take: less than the longest deadline."""


def wait_for_any(handles: Sequence[int], deadline: Deadline) -> int | None:
    """Wait until one of the handles is signalled; None once the deadline has passed.

    A handle that is signalled already counts even if the deadline has passed. An interrupt from the keyboard ends the
    wait in the main thread.

    Returns:
        The index of the first signalled handle.

    Raises:
        OSError: They can't be waited for.
    """
    while True:
        # Rounded up: a wait that ends a moment early would look at the same state twice.
        milliseconds = min(math.ceil(deadline.remaining() * 1000), _LONGEST)
        try:
            found = _winapi.WaitForMultipleObjects(handles, False, milliseconds)
        except InterruptedError:
            continue
        if found != native.WAIT_TIMEOUT:
            return _signalled(found, len(handles))
        if deadline.expired():
            return None


def is_signalled(handle: int) -> bool:
    """Look at a handle without waiting.

    Raises:
        OSError: It can't be waited for.
    """
    found = native.wait_for_single_object(handle, 0)
    if found == native.WAIT_FAILED:
        raise native.last_error()
    return found != native.WAIT_TIMEOUT and _signalled(found, 1) == 0


def _signalled(found: int, count: int) -> int:
    """Return which handle a wait has found signalled. One whose owner left it locked isn't, nor is anything else."""
    index = found - native.WAIT_OBJECT
    if not 0 <= index < count:
        raise native.error_of(native.ERROR_ABANDONED_WAIT)
    return index
