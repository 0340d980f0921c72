"""A private directory by handle: every access is relative to it, none goes through a path that could be swapped.

What goes through ctypes is reported to audit hooks here, by the events that Python's own calls have on every system.
"""

from __future__ import annotations

import errno
import msvcrt
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nvx_ref.closing import Closing
from nvx_ref.errors import AlreadyExists, Malformed, Refused
from nvx_ref.platform.contract import FileKind, FileStat
from nvx_ref.platform.failures import failure

assert sys.platform == "win32"

from nvx_ref.platform.windows import handles, native, security

if TYPE_CHECKING:
    from nvx_ref.platform.contract import FileId

LOOK = native.READ_CONTROL | native.FILE_READ_ATTRIBUTES
_CHUNK = 1 << 20
_FORBIDDEN = frozenset('/\\:*?"<>|\0')


class Directory(Closing):
    """See :class:`nvx_ref.platform.contract.Directory`; made by ``open_private`` and ``create_private``.

    Its handle shares everything, deletion included, so whoever holds a directory keeps nobody from removing it.

    Args:
        path: The absolute path that it was opened by.
        handle: Its handle, which this owns.
    """

    __slots__ = ("_handle", "_id", "_path")

    def __init__(self, path: str, handle: int) -> None:
        self._path = path
        self._handle = handle
        self._id = handles.identify(handle)

    @property
    def path(self) -> str:
        """The absolute path that it was opened by."""
        return self._path

    @property
    def id(self) -> FileId:
        """Which directory it is."""
        return self._id

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it; idempotent."""
        handle, self._handle = getattr(self, "_handle", 0), 0
        if handle:
            native.release(handle)

    def child_path(self, name: str) -> str:
        """Return a name's path, for messages and for a VMM's arguments."""
        return os.path.join(self._path, name)

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        try:
            # A handle of its own: a listing moves the position that all users of one share.
            handle = handles.reopen(self._handle, native.FILE_LIST_DIRECTORY, native.SHARE_ALL)
            try:
                return handles.names(handle)
            finally:
                native.release(handle)
        except OSError as error:
            raise failure(error, self._path, "list") from error

    def stat(self, name: str) -> FileStat | None:
        """Return what a name is, None if it is absent; one that is being deleted is."""
        try:
            handle = handles.open_at(self._handle, _single(name), LOOK, native.SHARE_ALL)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failure(error, self.child_path(name), "look at") from error
        try:
            return _describe(handle)
        except OSError as error:
            raise failure(error, self.child_path(name), "look at") from error
        finally:
            native.release(handle)

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the whole content of a regular file, None only if the name is absent."""
        path = self.child_path(name)
        try:
            handle = handles.patiently(
                lambda: handles.open_at(
                    self._handle, _single(name), native.FILE_GENERIC_READ, native.SHARE_ALL, disposition=handles.OPEN
                )
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failure(error, path, "open") from error
        fd = adopt(handle, path)
        try:
            data = _read_all(fd, limit + 1)
        except OSError as error:
            raise failure(error, path, "read") from error
        finally:
            os.close(fd)
        if len(data) > limit:
            raise Malformed(f"it is longer than {limit} bytes", subject=path, detail="too-long")
        return data

    def open_lock(self, name: str) -> int:
        """Open a file for locking, created empty and private where it is missing; nothing is locked yet."""
        return self._open_plain(name, native.FILE_GENERIC_READ | native.FILE_GENERIC_WRITE)

    def open_log(self, name: str) -> int:
        """Open a log, created where it is missing; without a right to its content until it is claimed.

        A handle that could write would be a claim already: :func:`nvx_ref.platform.windows.files.claim_log` turns the
        descriptor into one that can, if nobody else's does.
        """
        return self._open_plain(name, LOOK)

    def create_new(self, name: str, data: bytes) -> None:
        """Create a file that must not exist, private, with this content."""
        try:
            native.release(self._write_new(name, data, sync=False))
        except FileExistsError as error:
            raise AlreadyExists("it exists already", subject=self.child_path(name)) from error
        except OSError as error:
            raise failure(error, self.child_path(name), "create") from error

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        """Set a file's whole content at once.

        Another program that has the file open without sharing its deletion is waited for, up to two seconds. There is
        nothing to flush for a name: ``durable`` flushes the file, and NTFS journals the rename.
        """
        del durable
        path = self.child_path(_single(name))
        temporary = f".{name}.{os.urandom(16).hex()}.tmp"
        try:
            handle = self._write_new(temporary, data, sync=True)
            try:
                sys.audit("os.rename", temporary, name, -1, -1)
                handles.patiently(lambda: handles.rename(handle, self._handle, name))
            except BaseException:
                _discard(handle)
                raise
            native.release(handle)
        except OSError as error:
            raise failure(error, path, "write") from error

    def rename(self, name: str, other: str) -> None:
        """Give a file another name, and take that from whatever file has it.

        A file system that can't replace an open file does it in two steps, between which nothing has the name.

        Raises:
            AlreadyExists: Somebody has created a file in between. That one stays.
        """
        sys.audit("os.rename", name, other, -1, -1)
        try:
            handles.patiently(lambda: self._rename(_single(name), _single(other)))
        except FileExistsError as error:
            raise AlreadyExists("somebody has created it meanwhile", subject=self.child_path(other)) from error
        except OSError as error:
            raise failure(error, self.child_path(other), "rename") from error

    def remove(self, name: str) -> bool:
        """Remove a name, whatever file it is; False if it is absent. Directories are refused.

        Another program that has the file open without sharing its deletion is waited for, up to two seconds. Where a
        removed file keeps its name until it is closed, that is a temporary one by then: its own is free at once.
        """
        path = self.child_path(_single(name))
        sys.audit("os.remove", name, -1)
        try:
            handles.patiently(lambda: self._remove(name, path))
        except handles.DeletePendingError:
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failure(error, path, "remove") from error
        return True

    def is_current(self) -> bool:
        """Tell whether the path still names this directory."""
        try:
            handle = handles.open_path(self._path, native.FILE_READ_ATTRIBUTES, native.SHARE_ALL)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise failure(error, self._path, "look at") from error
        try:
            return handles.identify(handle) == self._id
        except OSError as error:
            raise failure(error, self._path, "look at") from error
        finally:
            native.release(handle)

    def remove_self(self) -> bool:
        """Remove the directory; True once the path no longer names it, False while something is still in it."""
        try:
            handle = handles.open_path(
                self._path, native.DELETE | native.FILE_READ_ATTRIBUTES, native.SHARE_ALL, directory=True
            )
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            if error.winerror == native.ERROR_SHARING_VIOLATION:
                return False
            raise failure(error, self._path, "remove") from error
        try:
            # The handle that is held keeps the id from being reused, so an equal one is this very directory.
            if handles.identify(handle) != self._id:
                return True
            sys.audit("os.rmdir", self._path, -1)
            handles.delete(handle)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST} or error.winerror == native.ERROR_SHARING_VIOLATION:
                return False
            raise failure(error, self._path, "remove") from error
        finally:
            native.release(handle)
        return True

    def sync(self) -> None:
        """NTFS journals the names of a directory; there is no call that flushes them."""

    def open_handle(self, name: str, access: int, share: int) -> int:
        """Open an existing name with rights and sharing of the caller's choice; raises OSError as Windows says."""
        return handles.open_at(self._handle, _single(name), access, share)

    def _rename(self, name: str, other: str) -> None:
        handle = handles.open_at(self._handle, name, native.DELETE | native.FILE_READ_ATTRIBUTES, native.SHARE_ALL)
        try:
            try:
                handles.rename(handle, self._handle, other)
            except handles.OpenTargetError:
                self._remove(other, self.child_path(other))
                handles.rename(handle, self._handle, other, replace=False)
        finally:
            native.release(handle)

    def _remove(self, name: str, path: str) -> None:
        handle = handles.open_at(self._handle, name, native.DELETE | native.FILE_READ_ATTRIBUTES, native.SHARE_ALL)
        try:
            if handles.facts(handle).kind is FileKind.DIRECTORY:
                raise Refused("it is a directory", subject=path, hint="move it away", detail="EISDIR")
            if not handles.delete_at_once(handle):
                with suppress(OSError):
                    handles.rename(handle, self._handle, f".removed.{os.urandom(16).hex()}.tmp", replace=False)
                handles.delete(handle)
        finally:
            native.release(handle)

    def _open_plain(self, name: str, access: int) -> int:
        path = self.child_path(_single(name))
        sys.audit("open", name, None, os.O_RDWR | os.O_CREAT)
        try:
            handle = handles.patiently(
                lambda: handles.open_at(
                    self._handle,
                    name,
                    access | native.READ_CONTROL,
                    native.SHARE_ALL,
                    disposition=handles.OPEN_OR_CREATE,
                    security=security.private(directory=False),
                )
            )
        except OSError as error:
            raise failure(error, path, "open") from error
        return adopt(handle, path)

    def _write_new(self, name: str, data: bytes, *, sync: bool) -> int:
        sys.audit("open", name, None, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        handle = handles.patiently(
            lambda: handles.open_at(
                self._handle,
                _single(name),
                native.FILE_GENERIC_WRITE | native.DELETE,
                native.SHARE_ALL,
                disposition=handles.CREATE,
                security=security.private(directory=False),
            )
        )
        try:
            handles.write_all(handle, data)
            if sync:
                handles.flush(handle)
        except BaseException:
            _discard(handle)
            raise
        return handle


def adopt(handle: int, path: str) -> int:
    """Make a descriptor of a plain file's handle, which is closed if it isn't one.

    Raises:
        Refused: It is no regular file of this user with one name.
    """
    try:
        require_plain(handle, path)
        return msvcrt.open_osfhandle(handle, os.O_NOINHERIT)
    except OSError as error:
        native.release(handle)
        raise failure(error, path, "look at") from error
    except BaseException:
        native.release(handle)
        raise


def require_plain(handle: int, path: str) -> None:
    """Refuse what is no regular file of this user with one name."""
    found = handles.facts(handle)
    if found.kind is not FileKind.REGULAR:
        raise Refused(f"it is a {found.kind}, not a regular file", subject=path, hint="remove it", detail="kind")
    owner = security.permissions(handle)
    if not owner.mine:
        raise Refused(f"it belongs to {owner.owner}", subject=path, hint="remove it", detail="owner")
    # No name at all is fine: it was replaced or removed between its opening and this look.
    if found.links > 1:
        raise Refused(
            f"it has {found.links} names, so writing to it would change another file",
            subject=path,
            hint="remove it",
            detail="links",
        )


def _describe(handle: int) -> FileStat:
    found = handles.facts(handle)
    access = security.permissions(handle)
    return FileStat(
        kind=found.kind,
        size=found.size,
        links=found.links,
        mine=access.mine,
        private=access.private,
        id=handles.identify(handle),
    )


def _discard(handle: int) -> None:
    """Remove a file that was being written; the failure that led here is the one to report."""
    try:
        handles.delete(handle)
    except OSError:
        return
    finally:
        native.release(handle)


def _read_all(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(fd, min(limit, _CHUNK))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _single(name: str) -> str:
    # A colon names a stream of a file, a final dot or space is dropped by other programs.
    if not name or name in {".", ".."} or not _FORBIDDEN.isdisjoint(name) or name[-1] in ". ":
        raise Refused("a name in a private directory is a single component", subject=name, detail="name")
    return name
