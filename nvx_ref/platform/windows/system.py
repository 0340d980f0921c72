"""What the kernel says of itself and of all processes, without any process' leave."""

from __future__ import annotations

import ctypes
import sys

assert sys.platform == "win32"

from nvx_ref.errors import Indeterminate
from nvx_ref.platform.windows import native

_SHARED_DATA = 0x7FFE_0000
_BOOT_ID = _SHARED_DATA + 0x2C4
"""``KUSER_SHARED_DATA.BootId``: a number that each boot counts up, whatever sleep and clock changes do."""

_TIME_OF_DAY = 3
_PROCESSES = 5
_NEXT = 0
_CREATED = 32
_NUMBER = 80
_MOST = 1 << 26


def boot_identity() -> str:
    """Return this boot's name: the kernel's count of boots.

    Where that reads 0 (Wine) it is the kernel's boot time, which a change of the clock would shift on Windows.

    Raises:
        Indeterminate: Neither can be read.
    """
    count = ctypes.c_uint32.from_address(_BOOT_ID).value
    if count:
        return f"boot-{count}"
    data = (ctypes.c_int64 * 6)()
    status = native.nt_query_system(_TIME_OF_DAY, data, ctypes.sizeof(data), None)
    if status < 0 or data[0] <= 0:
        raise Indeterminate("this boot's identity can't be read", subject="boot time", detail="boot")
    return f"time-{data[0]:x}"


def creation_of(pid: int) -> int | None:
    """Return when the process of a number was created, from the kernel's table of all; None if it lists none.

    A second source beside the process' own handle, which another user's process may refuse.

    Raises:
        OSError: The table can't be read.
    """
    table = memoryview(_processes())
    offset = 0
    while True:
        if _at(table, offset + _NUMBER, 8) == pid:
            return _at(table, offset + _CREATED, 8)
        step = _at(table, offset + _NEXT, 4)
        if not step:
            return None
        offset += step


def _at(table: memoryview, offset: int, size: int) -> int:
    return int.from_bytes(table[offset : offset + size].tobytes(), "little")


def _processes() -> ctypes.Array[ctypes.c_char]:
    size = 1 << 18
    while size <= _MOST:
        table = ctypes.create_string_buffer(size)
        status = native.nt_query_system(_PROCESSES, table, size, None)
        if status >= 0:
            return table
        if status & 0xFFFF_FFFF != native.STATUS_INFO_LENGTH_MISMATCH:
            raise native.status_error(status, "processes")
        size *= 2
    raise OSError("the table of processes doesn't end")
