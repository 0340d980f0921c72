"""Files by handle: opened relative to a directory, identified, measured, renamed and removed as objects."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING, NamedTuple, TypeVar

assert sys.platform == "win32"

from nvx_ref.deadline import Deadline
from nvx_ref.platform.contract import FileId, FileKind
from nvx_ref.platform.windows import native

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

RETRY_SECONDS = 2.0
"""For how long a file that another program has open in the way is tried again, every 25 ms: a virus scanner or an
indexer holds what has just been written for some tenths of a second."""

OPEN = 1
CREATE = 2
OPEN_OR_CREATE = 3

_CASE_INSENSITIVE = 0x40
_DIRECTORY = 0x1
_SYNCHRONOUS = 0x20
_NOT_DIRECTORY = 0x40
_BACKUP = 0x4000
_REPARSE = 0x20_0000

_BASIC, _STANDARD, _TAG, _ID = 0, 1, 9, 18
_RENAME, _RENAME_EX = 10, 65
_DISPOSITION, _DISPOSITION_EX = 13, 64
_NAMES = 12
_MOST = 1 << 24
_EXTENDED = "\\\\?\\"
_ORDINARY = 259
_OLDER_KERNEL = {
    native.STATUS_INVALID_INFO_CLASS,
    native.STATUS_NOT_IMPLEMENTED,
    native.STATUS_NOT_SUPPORTED,
    native.STATUS_INVALID_PARAMETER,
    native.STATUS_INVALID_DEVICE_REQUEST,
    native.STATUS_ILLEGAL_FUNCTION,
}
"""What kernels, file systems and redirectors say that don't know a call's newer form."""
_IN_THE_WAY = {native.ERROR_ACCESS_DENIED, native.ERROR_SHARING_VIOLATION, native.ERROR_LOCK_VIOLATION}


_UNDER_WINE = native.running_under_wine() is not None
_volumes: dict[int, int] = {}


class DeletePendingError(FileNotFoundError):
    """The name is of a file that was removed and that somebody still has open: gone, but not free yet."""


class OpenTargetError(PermissionError):
    """The file that is to be replaced is open, and its file system can't replace such a one."""


class Facts(NamedTuple):
    """What a handle's file is.

    Args:
        kind: What it is.
        size: Its length in bytes.
        links: How many names it has.
        written: Last write, 100 ns since 1601.
        changed: Last change of anything, likewise; 0 where the file system keeps none.
        attributes: Its attribute bits.
    """

    kind: FileKind
    size: int
    links: int
    written: int
    changed: int
    attributes: int


def open_path(path: str, access: int, share: int, *, directory: bool = False, follow: bool = False) -> int:
    """Open an existing file or directory by its absolute path, of whatever length.

    Raises:
        OSError: As Windows says.
    """
    options = (_DIRECTORY if directory else 0) | (0 if follow else _REPARSE)
    return _create(0, kernel_path(path), path, access, share, OPEN, options, None)


def open_at(
    root: int, name: str, access: int, share: int, *, disposition: int = OPEN, security: int | None = None
) -> int:
    """Open a name in an open directory, links not followed.

    Args:
        root: The directory's handle.
        name: A single component; empty for the directory itself.
        access: Rights; to wait and to read attributes come with each.
        share: What others may do meanwhile.
        disposition: Whether it is created.
        security: The address of a new file's security descriptor.

    Raises:
        DeletePendingError: It was removed, and somebody still has it open.
        OSError: As Windows says.
    """
    return _create(root, name, name, access, share, disposition, _REPARSE, security)


def make_directory(path: str, security: int) -> None:
    """Create a directory that must not exist; a link of that name exists, wherever it leads."""
    options = _DIRECTORY | _REPARSE
    handle = _create(
        0, kernel_path(path), path, native.FILE_READ_ATTRIBUTES, native.SHARE_ALL, CREATE, options, security
    )
    native.release(handle)


def reopen(handle: int, access: int, share: int) -> int:
    """Open the object of a handle anew, with other rights: the object, whatever its names are by now."""
    return _create(handle, "", "", access, share, OPEN, 0, None)


def _create(
    root: int, name: str, shown: str, access: int, share: int, disposition: int, options: int, security: int | None
) -> int:
    text = native.kernel_name(name)
    about = native.ObjectAttributes(
        ctypes.sizeof(native.ObjectAttributes), root, ctypes.pointer(text), _CASE_INSENSITIVE, security, None
    )
    handle = native.HANDLE()
    result = native.IoStatus()
    status = native.nt_create_file(
        ctypes.byref(handle),
        access | native.SYNCHRONIZE | native.FILE_READ_ATTRIBUTES,
        ctypes.byref(about),
        ctypes.byref(result),
        None,
        native.ATTRIBUTE_NORMAL,
        share,
        disposition,
        options | _SYNCHRONOUS | _BACKUP,
        None,
        0,
    )
    if status < 0:
        if status & 0xFFFF_FFFF == native.STATUS_DELETE_PENDING:
            raise DeletePendingError(errno.ENOENT, "it is being deleted", shown)
        raise native.status_error(status, shown)
    return handle.value


def kernel_path(path: str) -> str:
    """Return an absolute path as the kernel names it, whatever its length."""
    path = path.replace("/", "\\")
    for prefix in ("\\\\?\\", "\\\\.\\"):
        if path.startswith(prefix):
            return "\\??\\" + path[len(prefix) :]
    return "\\??\\UNC" + path[1:] if path.startswith("\\\\") else "\\??\\" + path


def facts(handle: int, *, followed: bool = False) -> Facts:
    """Look at a handle's file.

    Args:
        handle: The file.
        followed: Whether it was opened through links. What is still marked then is no link but a file whose content
            the system keeps elsewhere: deduplicated, compressed or in a cloud.

    Raises:
        OSError: It can't be looked at.
    """
    kind = native.get_file_type(handle)
    if kind != native.FILE_TYPE_DISK:
        return Facts(FileKind.FIFO if kind == native.FILE_TYPE_PIPE else FileKind.CHARACTER, 0, 1, 0, 0, 0)
    basic, standard, tag = native.BasicInfo(), native.StandardInfo(), native.TagInfo()
    _query(handle, _BASIC, basic)
    _query(handle, _STANDARD, standard)
    if basic.attributes & native.ATTRIBUTE_REPARSE:
        _query(handle, _TAG, tag)
    shape = _kind(basic.attributes, tag.tag, followed=followed)
    return Facts(shape, standard.size, standard.links, basic.written, basic.changed, basic.attributes)


def _kind(attributes: int, tag: int, *, followed: bool) -> FileKind:
    is_content = followed and (tag in native.REPARSE_CONTENT or tag & native.REPARSE_CLOUD_MASK == native.REPARSE_CLOUD)
    if attributes & native.ATTRIBUTE_REPARSE and not is_content:
        special = {native.REPARSE_SYMLINK: FileKind.SYMLINK, native.REPARSE_UNIX_SOCKET: FileKind.SOCKET}
        return special.get(tag, FileKind.REPARSE)
    return FileKind.DIRECTORY if attributes & native.ATTRIBUTE_DIRECTORY else FileKind.REGULAR


def identify(handle: int) -> FileId:
    """Return which file a handle means: its volume's serial number and its 128-bit id.

    Raises:
        OSError: It can't be looked at; ``ENOTSUP`` where its file system has no such ids.
    """
    found = native.IdInfo()
    try:
        _query(handle, _ID, found)
    except OSError as error:
        if error.winerror == native.ERROR_INVALID_PARAMETER:
            # FAT and exFAT keep none that outlives a change of the directory.
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP)) from error
        raise
    number = int.from_bytes(bytes(found.file), "little")
    volume = found.volume
    if _UNDER_WINE:
        # It forgets the volume of a handle whose file is renamed through another one.
        volume = _volumes.setdefault(number, volume) if volume == 0 else volume
        _volumes[number] = volume
    return FileId(volume=f"{volume:x}", file=f"{number:x}")


def _query(handle: int, what: int, into: ctypes.Structure) -> None:
    if not native.get_file_information(handle, what, ctypes.byref(into), ctypes.sizeof(into)):
        raise native.last_error()


def names(handle: int) -> list[str]:
    """Return the names in a directory, sorted; the handle's own position is spent."""
    buffer = ctypes.create_string_buffer(1 << 16)
    result = native.IoStatus()
    found: list[str] = []
    restart = 1
    while True:
        status = native.nt_query_directory(
            handle, 0, None, None, ctypes.byref(result), buffer, len(buffer), _NAMES, 0, None, restart
        )
        if status & 0xFFFF_FFFF == native.STATUS_NO_MORE_FILES:
            return sorted(set(found) - {".", ".."})
        if status < 0:
            raise native.status_error(status)
        restart = 0
        raw = buffer.raw
        offset = 0
        while True:
            step, length = (int.from_bytes(raw[offset + at : offset + at + 4], "little") for at in (0, 8))
            found.append(raw[offset + 12 : offset + 12 + length].decode("utf-16-le", "surrogatepass"))
            if not step:
                break
            offset += step


def rename(handle: int, root: int, name: str, *, replace: bool = True) -> None:
    """Give a file another name in a directory, replacing what has it, at once.

    Windows 10 replaces a file that somebody has open too, if they share its deletion, on NTFS.

    Raises:
        OpenTargetError: A file system or kernel that can't replace a file that is open.
        OSError: As Windows says.
    """
    if _UNDER_WINE:
        identify(handle)
    raw = name.encode("utf-16-le", "surrogatepass")
    data = root.to_bytes(8, "little") + len(raw).to_bytes(4, "little") + raw + b"\0\0"
    status = _set(handle, _RENAME_EX, (int(replace) | 2).to_bytes(8, "little") + data)
    older = status & 0xFFFF_FFFF in _OLDER_KERNEL
    if older:
        status = _set(handle, _RENAME, int(replace).to_bytes(8, "little") + data)
    if status < 0:
        error = native.status_error(status, name)
        if older and error.winerror == native.ERROR_ACCESS_DENIED:
            raise OpenTargetError(None, error.strerror, name, error.winerror)
        raise error


def delete(handle: int) -> None:
    """Remove a handle's file or directory: at once where the kernel can, else when its last handle is closed.

    Raises:
        OSError: As Windows says.
    """
    if delete_at_once(handle):
        return
    status = _set(handle, _DISPOSITION, b"\1")
    if status < 0:
        raise native.status_error(status)


def delete_at_once(handle: int) -> bool:
    """Remove a handle's file or directory, its name included, whoever has it open; False if that isn't possible here.

    Raises:
        OSError: As Windows says.
    """
    posix = 0x1 | 0x2 | 0x10
    status = _set(handle, _DISPOSITION_EX, posix.to_bytes(4, "little"))
    if status & 0xFFFF_FFFF in _OLDER_KERNEL:
        return False
    if status < 0:
        raise native.status_error(status)
    return True


def _set(handle: int, what: int, data: bytes) -> int:
    result = native.IoStatus()
    status: int = native.nt_set_file(handle, ctypes.byref(result), data, len(data), what)
    return status


def write_all(handle: int, data: bytes) -> None:
    """Write all the bytes at the handle's position.

    Raises:
        OSError: As Windows says.
    """
    written = native.DWORD()
    view = memoryview(data)
    while view:
        chunk = bytes(view[:_MOST])
        if not native.write_file(handle, chunk, len(chunk), ctypes.byref(written), None):
            raise native.last_error()
        view = view[written.value :]


def flush(handle: int) -> None:
    """Make a file's content survive a power cut.

    Raises:
        OSError: As Windows says.
    """
    if not native.flush_file(handle):
        raise native.last_error()


def final_path(handle: int) -> str:
    """Return the path that a handle's file has now, links resolved."""
    size = 512
    while True:
        buffer = ctypes.create_unicode_buffer(size)
        length = native.get_final_path(handle, buffer, size, 0)
        if not length:
            raise native.last_error()
        if length < size:
            break
        size = length + 1
    path = buffer.value
    if len(path) >= _ORDINARY + len(_EXTENDED):
        # Only in this form is a longer path taken by a program that knows nothing of long ones.
        return path
    if path.startswith("\\\\?\\UNC\\"):
        return "\\" + path[7:]
    return path.removeprefix(_EXTENDED)


def patiently(action: Callable[[], T]) -> T:
    """Do what another program may be in the way of, and try again for a while (contract test T48).

    Raises:
        OSError: It still is after :data:`RETRY_SECONDS`, or failed otherwise.
    """
    until = Deadline.after(RETRY_SECONDS)
    while True:
        try:
            return action()
        except OSError as error:
            blocked = isinstance(error, DeletePendingError) or error.winerror in _IN_THE_WAY
            if not blocked or not until.pause():
                raise


def absolute(path: str) -> str:
    """Return a path from its root on; its parts stay as they are written."""
    return os.path.abspath(path)
