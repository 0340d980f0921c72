"""What a process has as its standard output and error, proven by the kernel's own copy of its handles."""

from __future__ import annotations

import ctypes
import sys

assert sys.platform == "win32"

from nvx_ref.platform.windows import native
from nvx_ref.platform.windows.handles import identify

_BASIC = 0
_PARAMETERS = 0x20
_OUTPUT = 0x28
_SAME_ACCESS = 2


def hold(process: int, file: object) -> bool:
    """Tell whether a process' standard output or error is a file.

    Which handles those are is what the process' own parameters say; what they mean is taken from the kernel: each is
    copied here and looked at. A handle that isn't a file on a disk is never asked anything that could wait.

    Args:
        process: A handle that may read memory and duplicate handles.
        file: The file's id.

    Raises:
        OSError: The process can't be looked at.
    """
    return any(_is(process, handle, file) for handle in set(_standard(process)))


def _standard(process: int) -> tuple[int, int]:
    about = native.BasicProcess()
    status = native.nt_query_process(process, _BASIC, ctypes.byref(about), ctypes.sizeof(about), None)
    if status < 0:
        raise native.status_error(status)
    parameters = _read(process, about.environment_block + _PARAMETERS, 1)[0]
    output, error = _read(process, parameters + _OUTPUT, 2)
    return output, error


def _read(process: int, address: int, count: int) -> list[int]:
    found = (ctypes.c_uint64 * count)()
    if not native.read_process_memory(process, address, found, ctypes.sizeof(found), None):
        raise native.last_error()
    return list(found)


def _is(process: int, handle: int, file: object) -> bool:
    copied = native.HANDLE()
    # A value that isn't a handle there names nothing, which is no fault.
    if not handle or not native.duplicate_handle(
        process,
        ctypes.c_ssize_t(handle).value,
        native.get_current_process(),
        ctypes.byref(copied),
        0,
        False,
        _SAME_ACCESS,
    ):
        return False
    try:
        return native.get_file_type(copied.value) == native.FILE_TYPE_DISK and identify(copied.value) == file
    except OSError:
        return False
    finally:
        native.release(copied.value)
