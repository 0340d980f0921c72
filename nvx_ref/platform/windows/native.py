"""The calls of Windows that this package makes: their prototypes, structures and constants, and nothing else.

Handles are plain integers here, as wide as a pointer. Every call of a library that sets the last error is made with
that error saved at once, so that nothing between the call and the look can change it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING, Any

assert sys.platform == "win32"

if TYPE_CHECKING:
    from collections.abc import Callable

HANDLE = ctypes.c_ssize_t
DWORD = ctypes.c_uint32
BOOL = ctypes.c_int
NTSTATUS = ctypes.c_int32
POINTER = ctypes.c_void_p
TEXT = ctypes.c_wchar_p
SIZE = ctypes.c_size_t

INVALID_HANDLE = -1

ERROR_FILE_NOT_FOUND = 2
ERROR_ACCESS_DENIED = 5
ERROR_SHARING_VIOLATION = 32
ERROR_LOCK_VIOLATION = 33
ERROR_INVALID_PARAMETER = 87
ERROR_BROKEN_PIPE = 109
ERROR_NOT_LOCKED = 158
ERROR_PIPE_BUSY = 231
ERROR_NO_DATA = 232
ERROR_PIPE_NOT_CONNECTED = 233
ERROR_ABANDONED_WAIT = 735
ERROR_OPERATION_ABORTED = 995
ERROR_IO_PENDING = 997

STATUS_NO_MORE_FILES = 0x80000006
STATUS_INVALID_INFO_CLASS = 0xC0000003
STATUS_NOT_IMPLEMENTED = 0xC0000002
STATUS_INFO_LENGTH_MISMATCH = 0xC0000004
STATUS_INVALID_PARAMETER = 0xC000000D
STATUS_INVALID_DEVICE_REQUEST = 0xC0000010
STATUS_DELETE_PENDING = 0xC0000056
STATUS_ILLEGAL_FUNCTION = 0xC00000AF
STATUS_NOT_SUPPORTED = 0xC00000BB

SYNCHRONIZE = 0x0010_0000
READ_CONTROL = 0x0002_0000
DELETE = 0x0001_0000
GENERIC_READ = 0x8000_0000
GENERIC_WRITE = 0x4000_0000
FILE_LIST_DIRECTORY = 0x1
FILE_TRAVERSE = 0x20
FILE_READ_ATTRIBUTES = 0x80
FILE_GENERIC_READ = 0x0012_0089
FILE_GENERIC_WRITE = 0x0012_0116

SHARE_READ = 1
SHARE_WRITE = 2
SHARE_DELETE = 4
SHARE_ALL = 7

ATTRIBUTE_READONLY = 0x1
ATTRIBUTE_DIRECTORY = 0x10
ATTRIBUTE_NORMAL = 0x80
ATTRIBUTE_REPARSE = 0x400
REPARSE_SYMLINK = 0xA000_000C
REPARSE_UNIX_SOCKET = 0x8000_0023
REPARSE_CONTENT = frozenset({0x8000_0013, 0x8000_0017})
"""Deduplicated, and compressed by the system."""
REPARSE_CLOUD, REPARSE_CLOUD_MASK = 0x9000_001A, 0xFFFF_0FFF
"""Kept in a cloud; four of the bits are the provider's."""

FILE_TYPE_DISK = 1
FILE_TYPE_PIPE = 3

PROCESS_TERMINATE = 0x1
PROCESS_VM_READ = 0x10
PROCESS_DUP_HANDLE = 0x40
PROCESS_QUERY_LIMITED = 0x1000

WAIT_OBJECT = 0
WAIT_TIMEOUT = 258
WAIT_FAILED = 0xFFFF_FFFF

HANDLE_FLAG_INHERIT = 1


class Overlapped(ctypes.Structure):
    """``OVERLAPPED``."""

    _fields_ = (
        ("internal", SIZE),
        ("internal_high", SIZE),
        ("offset", DWORD),
        ("offset_high", DWORD),
        ("event", HANDLE),
    )


class UnicodeString(ctypes.Structure):
    """``UNICODE_STRING``: lengths in bytes."""

    _fields_ = (
        ("length", ctypes.c_uint16),
        ("maximum", ctypes.c_uint16),
        ("buffer", TEXT),
    )


LONGEST_NAME = 32_766
"""UTF-16 units that a name of the kernel's has at most: its length in bytes, final NUL included, takes 16 bits."""


def kernel_name(text: str) -> UnicodeString:
    """Return a text as the kernel takes names: counted in UTF-16 units, of which some characters have two.

    Raises:
        OSError: It is longer than any name.
    """
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if units > LONGEST_NAME:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), text)
    return UnicodeString(units * 2, units * 2 + 2, text)


class ObjectAttributes(ctypes.Structure):
    """``OBJECT_ATTRIBUTES``."""

    _fields_ = (
        ("length", DWORD),
        ("root", HANDLE),
        ("name", ctypes.POINTER(UnicodeString)),
        ("attributes", DWORD),
        ("security", POINTER),
        ("quality", POINTER),
    )


class IoStatus(ctypes.Structure):
    """``IO_STATUS_BLOCK``."""

    _fields_ = (("status", ctypes.c_ssize_t), ("information", SIZE))


class IdInfo(ctypes.Structure):
    """``FILE_ID_INFO``."""

    _fields_ = (("volume", ctypes.c_uint64), ("file", ctypes.c_ubyte * 16))


class BasicInfo(ctypes.Structure):
    """``FILE_BASIC_INFO``: times in 100 ns since 1601."""

    _fields_ = (
        ("created", ctypes.c_int64),
        ("accessed", ctypes.c_int64),
        ("written", ctypes.c_int64),
        ("changed", ctypes.c_int64),
        ("attributes", DWORD),
    )


class StandardInfo(ctypes.Structure):
    """``FILE_STANDARD_INFO``."""

    _fields_ = (
        ("allocated", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("links", DWORD),
        ("delete_pending", ctypes.c_ubyte),
        ("directory", ctypes.c_ubyte),
    )


class TagInfo(ctypes.Structure):
    """``FILE_ATTRIBUTE_TAG_INFO``."""

    _fields_ = (("attributes", DWORD), ("tag", DWORD))


class StartupInfo(ctypes.Structure):
    """``STARTUPINFOEXW``."""

    _fields_ = (
        ("size", DWORD),
        ("reserved", POINTER),
        ("desktop", POINTER),
        ("title", POINTER),
        ("x", DWORD),
        ("y", DWORD),
        ("width", DWORD),
        ("height", DWORD),
        ("columns", DWORD),
        ("rows", DWORD),
        ("fill", DWORD),
        ("flags", DWORD),
        ("show", ctypes.c_uint16),
        ("more_size", ctypes.c_uint16),
        ("more", POINTER),
        ("input", HANDLE),
        ("output", HANDLE),
        ("error", HANDLE),
        ("attributes", POINTER),
    )


class ProcessInformation(ctypes.Structure):
    """``PROCESS_INFORMATION``."""

    _fields_ = (
        ("process", HANDLE),
        ("thread", HANDLE),
        ("pid", DWORD),
        ("tid", DWORD),
    )


class PipeInfo(ctypes.Structure):
    """``FILE_PIPE_LOCAL_INFORMATION``."""

    _fields_ = (
        ("type", DWORD),
        ("configuration", DWORD),
        ("maximum", DWORD),
        ("instances", DWORD),
        ("inbound", DWORD),
        ("readable", DWORD),
        ("outbound", DWORD),
        ("writable", DWORD),
        ("state", DWORD),
        ("end", DWORD),
    )


class BasicProcess(ctypes.Structure):
    """``PROCESS_BASIC_INFORMATION``."""

    _fields_ = (
        ("status", NTSTATUS),
        ("environment_block", SIZE),
        ("affinity", SIZE),
        ("priority", ctypes.c_int32),
        ("pid", SIZE),
        ("parent", SIZE),
    )


kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
ntdll = ctypes.WinDLL("ntdll")


def _call(library: ctypes.WinDLL, name: str, result: type[Any] | None, *arguments: type[Any]) -> Callable[..., Any]:
    function: Any = getattr(library, name)
    function.restype = result
    function.argtypes = arguments
    declared: Callable[..., Any] = function
    return declared


close_handle = _call(kernel32, "CloseHandle", BOOL, HANDLE)
get_current_process = _call(kernel32, "GetCurrentProcess", HANDLE)
open_process = _call(kernel32, "OpenProcess", HANDLE, DWORD, BOOL, DWORD)
get_process_id = _call(kernel32, "GetProcessId", DWORD, HANDLE)
get_process_times = _call(kernel32, "GetProcessTimes", BOOL, HANDLE, POINTER, POINTER, POINTER, POINTER)
get_exit_code = _call(kernel32, "GetExitCodeProcess", BOOL, HANDLE, POINTER)
terminate_process = _call(kernel32, "TerminateProcess", BOOL, HANDLE, DWORD)
wait_for_single_object = _call(kernel32, "WaitForSingleObject", DWORD, HANDLE, DWORD)
read_process_memory = _call(kernel32, "ReadProcessMemory", BOOL, HANDLE, POINTER, POINTER, SIZE, POINTER)
duplicate_handle = _call(kernel32, "DuplicateHandle", BOOL, HANDLE, HANDLE, HANDLE, POINTER, DWORD, BOOL, DWORD)
is_process_in_job = _call(kernel32, "IsProcessInJob", BOOL, HANDLE, HANDLE, POINTER)
create_process = _call(
    kernel32, "CreateProcessW", BOOL, TEXT, POINTER, POINTER, POINTER, BOOL, DWORD, POINTER, TEXT, POINTER, POINTER
)
initialize_attributes = _call(kernel32, "InitializeProcThreadAttributeList", BOOL, POINTER, DWORD, DWORD, POINTER)
update_attribute = _call(
    kernel32, "UpdateProcThreadAttribute", BOOL, POINTER, DWORD, SIZE, POINTER, SIZE, POINTER, POINTER
)
delete_attributes = _call(kernel32, "DeleteProcThreadAttributeList", None, POINTER)
get_handle_information = _call(kernel32, "GetHandleInformation", BOOL, HANDLE, POINTER)
set_handle_information = _call(kernel32, "SetHandleInformation", BOOL, HANDLE, DWORD, DWORD)
create_pipe = _call(kernel32, "CreatePipe", BOOL, POINTER, POINTER, POINTER, DWORD)
create_file = _call(kernel32, "CreateFileW", HANDLE, TEXT, DWORD, DWORD, POINTER, DWORD, DWORD, HANDLE)
get_file_type = _call(kernel32, "GetFileType", DWORD, HANDLE)
get_file_information = _call(kernel32, "GetFileInformationByHandleEx", BOOL, HANDLE, ctypes.c_int, POINTER, DWORD)
get_final_path = _call(kernel32, "GetFinalPathNameByHandleW", DWORD, HANDLE, POINTER, DWORD, DWORD)
get_short_path = _call(kernel32, "GetShortPathNameW", DWORD, TEXT, POINTER, DWORD)
write_file = _call(kernel32, "WriteFile", BOOL, HANDLE, POINTER, DWORD, POINTER, POINTER)
flush_file = _call(kernel32, "FlushFileBuffers", BOOL, HANDLE)
lock_file = _call(kernel32, "LockFileEx", BOOL, HANDLE, DWORD, DWORD, DWORD, DWORD, POINTER)
unlock_file = _call(kernel32, "UnlockFileEx", BOOL, HANDLE, DWORD, DWORD, DWORD, POINTER)
create_event = _call(kernel32, "CreateEventW", HANDLE, POINTER, BOOL, BOOL, TEXT)
set_event = _call(kernel32, "SetEvent", BOOL, HANDLE)
get_pipe_server = _call(kernel32, "GetNamedPipeServerProcessId", BOOL, HANDLE, POINTER)
local_free = _call(kernel32, "LocalFree", POINTER, POINTER)

open_token = _call(advapi32, "OpenProcessToken", BOOL, HANDLE, DWORD, POINTER)
get_token = _call(advapi32, "GetTokenInformation", BOOL, HANDLE, ctypes.c_int, POINTER, DWORD, POINTER)
sid_to_text = _call(advapi32, "ConvertSidToStringSidW", BOOL, POINTER, POINTER)
text_to_security = _call(
    advapi32, "ConvertStringSecurityDescriptorToSecurityDescriptorW", BOOL, TEXT, DWORD, POINTER, POINTER
)
security_to_text = _call(
    advapi32, "ConvertSecurityDescriptorToStringSecurityDescriptorW", BOOL, POINTER, DWORD, DWORD, POINTER, POINTER
)
get_security = _call(advapi32, "GetKernelObjectSecurity", BOOL, HANDLE, DWORD, POINTER, DWORD, POINTER)

nt_create_file = _call(
    ntdll,
    "NtCreateFile",
    NTSTATUS,
    POINTER,
    DWORD,
    POINTER,
    POINTER,
    POINTER,
    DWORD,
    DWORD,
    DWORD,
    DWORD,
    POINTER,
    DWORD,
)
nt_query_file = _call(ntdll, "NtQueryInformationFile", NTSTATUS, HANDLE, POINTER, POINTER, DWORD, ctypes.c_int)
nt_set_file = _call(ntdll, "NtSetInformationFile", NTSTATUS, HANDLE, POINTER, POINTER, DWORD, ctypes.c_int)
nt_query_directory = _call(
    ntdll,
    "NtQueryDirectoryFile",
    NTSTATUS,
    HANDLE,
    HANDLE,
    POINTER,
    POINTER,
    POINTER,
    POINTER,
    DWORD,
    ctypes.c_int,
    ctypes.c_ubyte,
    POINTER,
    ctypes.c_ubyte,
)
nt_query_system = _call(ntdll, "NtQuerySystemInformation", NTSTATUS, ctypes.c_int, POINTER, DWORD, POINTER)
nt_query_process = _call(ntdll, "NtQueryInformationProcess", NTSTATUS, HANDLE, ctypes.c_int, POINTER, DWORD, POINTER)
status_to_error = _call(ntdll, "RtlNtStatusToDosError", DWORD, DWORD)


def last_error(subject: str | None = None) -> OSError:
    """Return the saved last error as an exception."""
    return error_of(ctypes.get_last_error(), subject)


def error_of(code: int, subject: str | None = None) -> OSError:
    """Return an error code of Windows as an exception, of the kind that Python maps it to."""
    return OSError(None, ctypes.FormatError(code).strip(), subject, code)


def status_error(status: int, subject: str | None = None) -> OSError:
    """Return a status of the kernel as an exception."""
    return error_of(status_to_error(status & 0xFFFF_FFFF), subject)


def release(handle: int) -> None:
    """Close a handle through which nothing was written."""
    close_handle(handle)


def running_under_wine() -> str | None:
    """Return Wine's version, None on Windows itself: some promises of the kernel are kept by the latter alone."""
    try:
        version = _call(ntdll, "wine_get_version", ctypes.c_char_p)
    except AttributeError:
        return None
    found: bytes = version()
    return found.decode("ascii", "replace")
