"""The handles of another process on Windows, as the kernel's own table has them.

What it can see: every handle that a process has *now*, of whatever type, with the attribute that it was inheritable,
and the volume and index of each that means a file on a disk. A handle that was inherited keeps that attribute, and what
a program opens itself hasn't got it unless the program wants its own children to inherit: so the inheritable handles of
a VMM are those that its launcher gave it, whatever was in the launcher's list.

What it can't see: a handle that the process has closed again, or one whose attribute it took away, before somebody
looked; what a pipe, an event or a section is, beyond its type; processes that this user may not open. The stand-in's
own table, taken before it opens anything, has no such gap, and the two are held against each other in the tests.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Self

assert sys.platform == "win32"  # noqa: S101 - tells type checkers which half of the world this is

import msvcrt  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 1.0
"""Seconds in which a handle must say what it is: one that somebody else waits with holds up every question."""

_LOOK_AND_READ = 0x1000 | 0x10_0000 | 0x400 | 0x10 | 0x40
_BASIC, _OWN_HANDLES = 0, 51
_ALL_HANDLES = 64
_TYPE = 2
_INHERIT = 2
_PARAMETERS, _STANDARD = 0x20, 0x20
_DISK = 1
_SAME_ACCESS = 2
_LENGTH_MISMATCH = 0xC000_0004
_ROW = 40
_LARGEST = 1 << 28

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")
_handle = ctypes.c_ssize_t
for _name, _result, _arguments in (
    ("OpenProcess", _handle, [ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32]),
    ("CloseHandle", ctypes.c_int, [_handle]),
    ("GetCurrentProcess", _handle, []),
    ("GetFileType", ctypes.c_uint32, [_handle]),
    ("ReadProcessMemory", ctypes.c_int, [_handle, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    (
        "DuplicateHandle",
        ctypes.c_int,
        [_handle, _handle, _handle, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32],
    ),
):
    getattr(_kernel32, _name).restype = _result
    getattr(_kernel32, _name).argtypes = _arguments
_ntdll.NtQueryInformationProcess.argtypes = [_handle, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
_ntdll.NtQuerySystemInformation.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
_ntdll.NtQueryObject.argtypes = [_handle, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class Handle:
    """One handle of a process.

    Attributes:
        value: Its value there.
        inheritable: Whether what the process starts may inherit it, as this process may have.
    """

    value: int
    inheritable: bool


class Opened:
    """A process that is looked at; nothing can be seen of one that this user may not open."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process: int = _kernel32.OpenProcess(_LOOK_AND_READ, False, pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            _kernel32.CloseHandle(self._process)

    def read(self, address: int, size: int) -> bytes:
        """Read its memory.

        Raises:
            OSError: That can't be read.
        """
        buffer = ctypes.create_string_buffer(size)
        if not self._process or not _kernel32.ReadProcessMemory(self._process, address, buffer, size, None):
            raise ctypes.WinError(ctypes.get_last_error())
        return buffer.raw

    def parameters(self, offset: int, layout: str) -> tuple[int, ...]:
        """Read a part of its parameters.

        Raises:
            OSError: They can't be read.
        """
        basic = (ctypes.c_size_t * 6)()
        if not self._process or _ntdll.NtQueryInformationProcess(self._process, _BASIC, basic, 48, None) < 0:
            raise OSError("it can't be looked at")
        where = int.from_bytes(self.read(basic[1] + _PARAMETERS, 8), "little")
        return struct.unpack(f"<{layout}", self.read(where + offset, struct.calcsize(f"<{layout}")))

    def standard(self) -> tuple[int, ...]:
        """Return the values of its standard handles.

        Raises:
            OSError: Its parameters can't be read.
        """
        return self.parameters(_STANDARD, "QQQ")

    def handles(self) -> list[Handle]:
        """Return what the kernel's table has of it.

        Raises:
            OSError: The table can't be read.
        """
        if not self._process:
            raise OSError("it can't be looked at")
        found, raw = _asked(self._own_table)
        if found:
            rows = _rows(raw, 16, int.from_bytes(raw[:8], "little"))
            # A row: value, count, pointers, access, type, attributes.
            return [Handle(int.from_bytes(row[:8], "little"), bool(row[32] & _INHERIT)) for row in rows]
        found, raw = _asked(lambda buffer: _ntdll.NtQuerySystemInformation(_ALL_HANDLES, buffer, len(buffer), None))
        if not found:
            raise OSError("the kernel's table of handles can't be read")
        me = self._pid.to_bytes(8, "little")
        # A row: object, process, value, access, trace, type, attributes.
        rows = _rows(raw, 16, int.from_bytes(raw[:8], "little"))
        return [
            Handle(int.from_bytes(row[16:24], "little"), bool(row[32] & _INHERIT)) for row in rows if row[8:16] == me
        ]

    def file(self, value: int) -> tuple[int, int] | None:
        """Return the volume and index of the file that one of its handles means, None if it means none."""
        copied = self._copy(value)
        return None if copied is None else _patiently(lambda: _file_of(copied))

    def type(self, value: int) -> str:
        """Return what the kernel calls the type of what one of its handles means, for example ``File``."""
        copied = self._copy(value)
        if copied is None:
            return "unknown"
        buffer = ctypes.create_string_buffer(1024)
        status = _ntdll.NtQueryObject(copied, _TYPE, buffer, len(buffer), None)
        _kernel32.CloseHandle(copied)
        if status < 0:
            return "unknown"
        size, address = struct.unpack_from("<H6xQ", buffer)
        return ctypes.string_at(address, size).decode("utf-16-le")

    def _own_table(self, buffer: ctypes.Array[ctypes.c_char]) -> int:
        return int(_ntdll.NtQueryInformationProcess(self._process, _OWN_HANDLES, buffer, ctypes.sizeof(buffer), None))

    def _copy(self, value: int) -> int | None:
        copied = _handle()
        if not value or not _kernel32.DuplicateHandle(
            self._process,
            ctypes.c_ssize_t(value).value,
            _kernel32.GetCurrentProcess(),
            ctypes.byref(copied),
            0,
            False,
            _SAME_ACCESS,
        ):
            return None
        return copied.value


def _asked(ask: Callable[[ctypes.Array[ctypes.c_char]], int]) -> tuple[bool, bytes]:
    """Ask with a buffer that is large enough; tell whether there was an answer, and give it."""
    size = 1 << 16
    while size <= _LARGEST:
        buffer = ctypes.create_string_buffer(size)
        status = ask(buffer)
        if status >= 0:
            return True, buffer.raw
        if status & 0xFFFF_FFFF != _LENGTH_MISMATCH:
            break
        size *= 2
    return False, b""


def _rows(raw: bytes, start: int, count: int) -> Iterator[bytes]:
    return (raw[at : at + _ROW] for at in range(start, start + _ROW * count, _ROW))


def _file_of(copied: int) -> tuple[int, int] | None:
    """Tell a file as `os.stat` does, and let go of the handle."""
    if _kernel32.GetFileType(copied) != _DISK:
        _kernel32.CloseHandle(copied)
        return None
    descriptor = msvcrt.open_osfhandle(copied, os.O_RDONLY | os.O_NOINHERIT)
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return status.st_dev, status.st_ino


class _Asker:
    """One thread that asks what may not be answered, and is given up then."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[Callable[[], tuple[int, int] | None]] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        Thread(target=self._serve, daemon=True).start()

    def ask(self, question: Callable[[], tuple[int, int] | None]) -> tuple[int, int] | None:
        """Put one question.

        Raises:
            Empty: There is no answer in time.
        """
        self._questions.put(question)
        return self._answers.get(timeout=PATIENCE)

    def _serve(self) -> None:
        while True:
            self._answers.put(self._questions.get()())


_askers: list[_Asker] = []


def _patiently(question: Callable[[], tuple[int, int] | None]) -> tuple[int, int] | None:
    """Ask what a handle is. A pipe that its process waits at doesn't say; a file on a disk does."""
    asker = _askers.pop() if _askers else _Asker()
    try:
        answer = asker.ask(question)
    except Empty:
        return None
    _askers.append(asker)
    return answer
