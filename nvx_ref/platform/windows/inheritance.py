"""Which handles a new process gets: they are lent for its creation only, by one creation at a time."""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from nvx_ref.platform.failures import failure

assert sys.platform == "win32"

from nvx_ref.platform.windows import native

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

turn = Lock()
"""Taken by whoever looks at handles in order to lend them, until they are restored: another's loan isn't their own
state, and its end would take away what this one still needs."""


def is_inheritable(handle: int) -> bool:
    """Tell whether a handle goes to processes that are created without a list of handles.

    Raises:
        OSError: It is no handle.
    """
    flags = native.DWORD()
    if not native.get_handle_information(handle, ctypes.byref(flags)):
        raise native.last_error()
    return bool(flags.value & native.HANDLE_FLAG_INHERIT)


@contextmanager
def lent(handles: Sequence[int]) -> Generator[None]:
    """Make handles inheritable for the block, and restore what each was.

    The caller has the :data:`turn`.

    Raises:
        Refused: A handle can't be made inheritable.
    """
    changed: list[int] = []
    try:
        for handle in handles:
            if not is_inheritable(handle):
                _set(handle, inherit=True)
                changed.append(handle)
        yield
    except OSError as error:
        raise failure(error, "handle", "pass on") from error
    finally:
        for handle in changed:
            _set(handle, inherit=False)


def in_a_job() -> bool:
    """Tell whether this process is in a job."""
    found = native.BOOL()
    native.is_process_in_job(native.get_current_process(), 0, ctypes.byref(found))
    return bool(found.value)


def _set(handle: int, *, inherit: bool) -> None:
    if not native.set_handle_information(handle, native.HANDLE_FLAG_INHERIT, int(inherit)):
        raise native.last_error()
