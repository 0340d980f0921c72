"""Private directories, locks, claims, seals and descriptors of files."""

from __future__ import annotations

import ctypes
import errno
import msvcrt
import os
import sys

from nvx_ref.errors import NvxError, Refused
from nvx_ref.platform.contract import FileId, FileKind, FileSeal, FileStat, Reach
from nvx_ref.platform.failures import failure

assert sys.platform == "win32"

from nvx_ref.platform.windows import handles, native, security
from nvx_ref.platform.windows.directory import LOOK, Directory

__all__ = [
    "DESCRIPTORS_HAVE_PATHS",
    "Directory",
    "FileId",
    "FileKind",
    "FileSeal",
    "FileStat",
    "claim_is_held",
    "claim_log",
    "create_private",
    "file_id",
    "names_file",
    "open_image",
    "open_private",
    "open_scratch",
    "proc_path",
    "read_mounts",
    "seal",
    "set_apart",
    "staging_fault",
    "truncate",
    "try_lock",
    "try_own",
    "unlock",
]

DESCRIPTORS_HAVE_PATHS = False
"""Whether a process that inherits a descriptor can open it by a path (it can't; a guard keeps the file there)."""
SEAL_SCHEME = "windows-file-v1"
_EPOCH = 116_444_736_000_000_000
"""1970 in 100 ns since 1601."""
_EXCLUSIVE_AT_ONCE = 1 | 2
_NO_SHARED_WRITE = native.SHARE_READ | native.SHARE_DELETE
_NO_SHARED_DELETE = native.SHARE_READ | native.SHARE_WRITE
_BUSY = {native.ERROR_SHARING_VIOLATION}
_NO_PROOF = {native.ERROR_ACCESS_DENIED, native.ERROR_FILE_NOT_FOUND, 3, 1920, 4390}


def file_id(fd: int) -> FileId:
    """Return which file a descriptor means."""
    try:
        return handles.identify(_handle(fd))
    except OSError as error:
        raise failure(error, f"descriptor {fd}", "look at") from error


def names_file(directory: Directory, name: str, fd: int) -> bool:
    """Tell whether a name in a directory is the file of a descriptor.

    A lock or claim counts only where this holds *after* it was taken: a file that was removed meanwhile, or
    replaced, locks nothing.
    """
    found = directory.stat(name)
    return found is not None and found.id == file_id(fd)


def try_lock(fd: int) -> bool:
    """Take the exclusive lock (``LockFileEx``, the first byte) without waiting; False while another handle holds it.

    It ends when this process closes its last handle of that opening, or ends; a copy that a child inherited doesn't
    keep it.
    """
    sys.audit("msvcrt.locking", fd, _EXCLUSIVE_AT_ONCE, 1)
    where = native.Overlapped()
    if native.lock_file(_handle(fd), _EXCLUSIVE_AT_ONCE, 0, 1, 0, ctypes.byref(where)):
        return True
    error = native.last_error()
    if error.winerror in {native.ERROR_LOCK_VIOLATION, native.ERROR_IO_PENDING}:
        return False
    raise failure(error, _name_of(fd), "lock")


def unlock(fd: int) -> None:
    """Release the lock."""
    where = native.Overlapped()
    if not native.unlock_file(_handle(fd), 0, 1, 0, ctypes.byref(where)):
        error = native.last_error()
        if error.winerror not in {native.ERROR_NOT_LOCKED, native.ERROR_LOCK_VIOLATION}:
            raise failure(error, _name_of(fd), "unlock")


def truncate(fd: int) -> None:
    """Empty the file."""
    try:
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError as error:
        raise failure(error, _name_of(fd), "truncate") from error


def claim_log(fd: int) -> bool:
    """Claim an open log: the descriptor becomes one that may write and lets nobody else write.

    The claim is that write handle itself, so it lasts while this descriptor, or one inherited from it, stays open
    (620.scope2.c). Others may read, rename and remove the file.

    Returns:
        False while somebody else may write to it, or looks at it (:func:`claim_is_held`).
    """
    access = native.FILE_GENERIC_READ | native.FILE_GENERIC_WRITE
    return _strengthen(fd, access, _NO_SHARED_WRITE, "claim")


def claim_is_held(directory: Directory, name: str, expected: FileId) -> bool | None:
    """Tell whether the claim on a log is held, tested on the file that the claim was recorded of.

    It is opened without sharing writes, which a single write handle of anybody forbids. A program that has it open
    without sharing reads looks the same, so a caller looks again for a while before it concludes anything from True.

    Args:
        directory: The sandbox' directory.
        name: The log's name.
        expected: Which file was claimed.

    Returns:
        True or False for that very file; None where there is no proof: the name is missing, names another file (it
        was rotated or replaced), or can't be opened by this user.

    Raises:
        Refused: The system is out of handles or the like: that says nothing about the log.
    """
    found = directory.stat(name)
    if found is None or found.id != expected or found.kind is not FileKind.REGULAR:
        return None
    try:
        handle = directory.open_handle(name, native.FILE_GENERIC_READ, _NO_SHARED_WRITE)
    except OSError as error:
        if error.winerror in _BUSY:
            return True
        if isinstance(error, FileNotFoundError) or error.winerror in _NO_PROOF:
            return None
        raise failure(error, directory.child_path(name), "open") from error
    try:
        return False if handles.identify(handle) == expected else None
    except OSError as error:
        raise failure(error, directory.child_path(name), "look at") from error
    finally:
        native.release(handle)


def try_own(fd: int) -> bool:
    """Take a scratch: the descriptor becomes one with the right to delete, which no other handle shares.

    Two owners exclude each other, and nobody can remove or rename the file, while readers and writers that share
    deletion, as the VMM does, come and go. It ends with the last copy of the descriptor: the VMM's.
    """
    access = native.FILE_GENERIC_READ | native.FILE_GENERIC_WRITE | native.DELETE
    return _strengthen(fd, access, _NO_SHARED_DELETE, "own")


def _strengthen(fd: int, access: int, share: int, doing: str) -> bool:
    """Open a descriptor's file anew with other rights, and put that under the same number."""
    sys.audit("open", _name_of(fd), None, os.O_RDWR)
    try:
        handle = handles.reopen(_handle(fd), access, share)
    except OSError as error:
        if error.winerror in _BUSY:
            return False
        raise failure(error, _name_of(fd), doing) from error
    try:
        stronger = msvcrt.open_osfhandle(handle, os.O_NOINHERIT)
    except OSError as error:
        native.release(handle)
        raise failure(error, _name_of(fd), doing) from error
    try:
        os.dup2(stronger, fd, inheritable=False)
    except OSError as error:
        raise failure(error, _name_of(fd), doing) from error
    finally:
        os.close(stronger)
    return True


def seal(fd: int) -> FileSeal:
    """Measure an open file by its metadata alone; nothing of its content is read."""
    handle = _handle(fd)
    try:
        found = handles.facts(handle, followed=True)
        where = handles.identify(handle) if native.get_file_type(handle) == native.FILE_TYPE_DISK else FileId("0", "0")
    except OSError as error:
        raise failure(error, _name_of(fd), "look at") from error
    return FileSeal(
        scheme=SEAL_SCHEME,
        volume=where.volume,
        file=where.file,
        kind=found.kind,
        length=found.size,
        modified=(found.written - _EPOCH) * 100,
        changed=(found.changed - _EPOCH) * 100 if found.changed else None,
    )


def open_image(path: str) -> int:
    """Open a file to be read; while it is open nobody can write, rename or remove it. The caller checks its kind.

    Links are followed: what counts is the object that the descriptor then means.
    """
    return _open(path, native.FILE_GENERIC_READ, native.SHARE_READ)


def open_scratch(path: str) -> int:
    """Open a file to be read and written, as :func:`open_image`, and shared for that; :func:`try_own` guards it."""
    return _open(path, native.FILE_GENERIC_READ | native.FILE_GENERIC_WRITE, native.SHARE_ALL)


def proc_path(fd: int) -> str:
    """Return the path that a descriptor's file has now: what a guard keeps it from losing (622.scope3.c).

    Windows has no path that names an open object. While the descriptor denies its deletion no other file gets there.
    """
    try:
        return handles.final_path(_handle(fd))
    except OSError as error:
        raise failure(error, f"descriptor {fd}", "name") from error


def set_apart(fd: int, least: int) -> int:
    """Do nothing: a spawn here gets a list of handles, and how their numbers lie is all the same to it."""
    del least
    return fd


def read_mounts() -> list[Reach]:
    """Windows has no table of mounts over directories; junctions are refused where they are met."""
    return []


def staging_fault(path: str) -> str | None:
    """Say why a staged file, or the directory it is in, isn't only this account's to write; None if it is."""
    try:
        handle = handles.open_path(os.path.dirname(handles.absolute(path)), LOOK, native.SHARE_ALL, directory=True)
        try:
            if security.permissions(handle).others_write():
                return "others can write to its directory"
        finally:
            native.release(handle)
        handle = handles.open_path(handles.absolute(path), LOOK, native.SHARE_ALL, follow=True)
        try:
            access = security.permissions(handle)
            if not access.mine:
                return f"it belongs to {access.owner}"
            if access.others_write() or not handles.facts(handle).attributes & native.ATTRIBUTE_READONLY:
                return "it isn't read-only"
        finally:
            native.release(handle)
    except OSError as error:
        raise failure(error, path, "look at") from error
    return None


def _open(path: str, access: int, share: int) -> int:
    if not path or "\0" in path:
        raise Refused("a path is neither empty nor holds a NUL", subject=path, detail="name")
    try:
        handle = handles.patiently(lambda: handles.open_path(handles.absolute(path), access, share, follow=True))
        try:
            return msvcrt.open_osfhandle(handle, os.O_NOINHERIT)
        except OSError:
            native.release(handle)
            raise
    except OSError as error:
        raise failure(error, path, "open") from error


def _handle(fd: int) -> int:
    try:
        return msvcrt.get_osfhandle(fd)
    except (OSError, ValueError, OverflowError) as error:
        reason = OSError(errno.EBADF, os.strerror(errno.EBADF)) if not isinstance(error, OSError) else error
        raise failure(reason, f"descriptor {fd}", "use") from error


def _name_of(fd: int) -> str:
    try:
        return handles.final_path(_handle(fd))
    except (OSError, NvxError):
        return f"descriptor {fd}"


def _absolute(path: str) -> str:
    if not path or "\0" in path:
        raise Refused("a directory's path is neither empty nor holds a NUL", subject=path, detail="name")
    return handles.absolute(path)


def open_private(path: str) -> Directory:
    """Open an existing private directory.

    Args:
        path: Its path; links above its last component are followed, a link or junction there is refused.

    Returns:
        The directory, held by handle.

    Raises:
        NotFound: Nothing is there, or it is being deleted.
        Refused: It isn't a real directory, isn't this user's, or anybody else than this user, the system and its
            administrators has a right to it. It is never changed.
    """
    path = _absolute(path)
    try:
        handle = handles.open_path(path, LOOK | native.FILE_LIST_DIRECTORY | native.FILE_TRAVERSE, native.SHARE_ALL)
    except OSError as error:
        raise failure(error, path, "open") from error
    try:
        _require_private(handle, path)
        return Directory(path, handle)
    except OSError as error:
        native.release(handle)
        raise failure(error, path, "look at") from error
    except BaseException:
        native.release(handle)
        raise


def _require_private(handle: int, path: str) -> None:
    if handles.facts(handle).kind is not FileKind.DIRECTORY:
        raise Refused(
            "it is a link or a file, not a directory", subject=path, hint="choose another path", detail="kind"
        )
    access = security.permissions(handle)
    if not access.mine:
        raise Refused(
            f"it belongs to {access.owner}, not to this user", subject=path, hint="choose another", detail="owner"
        )
    if not access.private:
        raise Refused(
            "its access list lets others reach what is in it",
            subject=path,
            hint="look at what it holds, then leave only yourself and SYSTEM in it (icacls /inheritance:r)",
            detail="mode",
        )


def create_private(path: str) -> tuple[Directory, bool]:
    """Open a private directory, created with its missing parents where it is missing.

    What this creates is for this user and the system alone, and inherits nothing from above.

    Args:
        path: As for :func:`open_private`.

    Returns:
        The directory, and whether this call created it.

    Raises:
        NotFound: The directory was being deleted; the next try may create it.
        Refused: As for :func:`open_private`, for the directory; or it can't be created.
    """
    path = _absolute(path)
    created = _make(path)
    return open_private(path), created


def _make(path: str) -> bool:
    for _ in range(64):
        sys.audit("os.mkdir", path, 0o700, -1)
        try:
            handles.make_directory(path, security.private(directory=True))
        except FileExistsError:
            return False
        except handles.DeletePendingError as error:
            raise failure(error, path, "create") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            parent = os.path.dirname(path)
            if parent == path:
                raise failure(error, path, "create") from error
            # A parent may vanish again meanwhile, so this is a loop; one that stays and is none would make it endless.
            if not _make(parent) and os.path.lexists(parent) and not os.path.isdir(parent):
                is_link = not os.path.exists(parent)
                reason = "it is a link to nothing" if is_link else "it is a file, not a directory"
                raise Refused(reason, subject=parent, hint="choose another path", detail="kind") from error
            continue
        except OSError as error:
            raise failure(error, path, "create") from error
        return True
    raise NvxError("its parents are removed as fast as they are created", subject=path)
