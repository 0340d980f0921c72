"""Private directories, locks, claims, seals and descriptors of files."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from contextlib import suppress

from nvx_ref.errors import NvxError, Refused
from nvx_ref.platform.contract import FileId, FileKind, FileSeal, FileStat
from nvx_ref.platform.failures import failure

assert sys.platform == "linux"

from nvx_ref.platform.descriptors import let_go
from nvx_ref.platform.linux.directory import OPEN_DIRECTORY, Directory, identify, kind_of, sync_directory
from nvx_ref.platform.linux.mounts import read_mounts
from nvx_ref.platform.linux.ownership import staging_fault, try_own

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

PRIVATE_DIRECTORY = 0o700
DESCRIPTORS_HAVE_PATHS = True
"""Whether a process that inherits a descriptor can open it by a path (`/proc/self/fd/N`)."""
SEAL_SCHEME = "unix-file-v1"

# What an attempt to open a log may meet that is about the log itself, and so is no proof, rather than a fault here.
_NO_PROOF = {errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EROFS}


def file_id(fd: int) -> FileId:
    """Return which file a descriptor means."""
    return identify(_status(fd))


def names_file(directory: Directory, name: str, fd: int) -> bool:
    """Tell whether a name in a directory is the file of a descriptor.

    A lock or claim counts only where this holds *after* it was taken: a file that was unlinked meanwhile, or
    replaced, locks nothing.
    """
    found = directory.stat(name)
    return found is not None and found.id == file_id(fd)


def try_lock(fd: int) -> bool:
    """Take the exclusive lock (``flock``) without waiting; False while another open file description holds it.

    The lock belongs to the open file description: it ends when every copy of ``fd``, those of forked children
    included, is closed, or when any of them unlocks.
    """
    return _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(fd: int) -> None:
    """Release the lock, also for the copies that a concurrently forked child holds until its exec."""
    _flock(fd, fcntl.LOCK_UN)


def truncate(fd: int) -> None:
    """Empty the file."""
    try:
        os.ftruncate(fd, 0)
    except OSError as error:
        raise failure(error, _name_of(fd), "truncate") from error


def claim_log(fd: int) -> bool:
    """Claim an open log; the claim lasts while this descriptor, or one inherited from it, stays open.

    Returns:
        False while another open file description holds the claim, or somebody looks at it (:func:`claim_is_held`).
    """
    return try_lock(fd)


def claim_is_held(directory: Directory, name: str, expected: FileId) -> bool | None:
    """Tell whether the claim on a log is held, tested on the file that the claim was recorded of.

    A process that another thread forks holds a copy until its exec, so a caller looks again for a while before it
    concludes anything from True.

    Args:
        directory: The sandbox' directory.
        name: The log's name.
        expected: Which file was claimed.

    Returns:
        True or False for that very file; None where there is no proof: the name is missing, names another file (it
        was rotated or replaced), or can't be opened by this user.

    Raises:
        Refused: The system is out of descriptors or the like: that says nothing about the log.
    """
    found = directory.stat(name)
    if found is None or found.id != expected or found.kind is not FileKind.REGULAR:
        return None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(name, flags, dir_fd=directory.fileno())
    except OSError as error:
        if error.errno in _NO_PROOF:
            return None
        raise failure(error, directory.child_path(name), "open") from error
    try:
        if file_id(fd) != expected:
            return None
        # Shared, so that two who look at once don't take each other for the VMM.
        if not _flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return True
        unlock(fd)
        return False
    finally:
        let_go(fd)


def seal(fd: int) -> FileSeal:
    """Measure an open file by its metadata alone; nothing of its content is read."""
    found = _status(fd)
    kind = kind_of(found)
    return FileSeal(
        scheme=SEAL_SCHEME,
        volume=f"{found.st_dev:x}",
        file=f"{found.st_ino:x}",
        kind=kind,
        length=_capacity(fd) if kind is FileKind.BLOCK else found.st_size,
        modified=found.st_mtime_ns,
        changed=found.st_ctime_ns,
    )


def open_image(path: str) -> int:
    """Open a file to be read, close-on-exec, without waiting for anything; the caller checks its kind.

    Links are followed: what counts is the object that the descriptor then means.
    """
    return _open(path, os.O_RDONLY)


def open_scratch(path: str) -> int:
    """Open a file to be read and written, as :func:`open_image`."""
    return _open(path, os.O_RDWR)


def proc_path(fd: int) -> str:
    """Return the path under which a process that inherited the descriptor opens the same file.

    It *reopens* the file: by that path a read-only descriptor becomes a writable one where the file's mode allows
    it. Such a path is never persisted.
    """
    return f"/proc/self/fd/{fd}"


def set_apart(fd: int, least: int) -> int:
    """Give a descriptor a number of at least so much, close-on-exec; its own stays where there is none that high.

    Returns:
        The number that it has now.
    """
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:
        return fd
    let_go(fd)
    return moved


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise failure(error, path, "open") from error
    except ValueError as error:
        raise Refused("a path can't hold a NUL", subject=path, detail="name") from error


def _status(fd: int) -> os.stat_result:
    try:
        return os.fstat(fd)
    except OSError as error:
        raise failure(error, f"descriptor {fd}", "look at") from error


def _flock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        raise failure(error, _name_of(fd), "lock") from error
    return True


def _capacity(fd: int) -> int:
    try:
        end = os.lseek(fd, 0, os.SEEK_END)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError as error:
        raise failure(error, _name_of(fd), "measure") from error
    return end


def _name_of(fd: int) -> str:
    try:
        return os.readlink(proc_path(fd))
    except OSError:
        return f"descriptor {fd}"


def _absolute(path: str) -> str:
    if not path or "\0" in path:
        raise Refused("a directory's path is neither empty nor holds a NUL", subject=path, detail="name")
    # A final slash would follow a link. Nothing else is normalised: `..` behind a link isn't what its text says.
    return os.path.join(os.getcwd(), path).rstrip("/") or "/"


def open_private(path: str) -> Directory:
    """Open an existing private directory.

    Args:
        path: Its path; links above its last component are followed, a link there is refused.

    Returns:
        The directory, held by descriptor.

    Raises:
        NotFound: Nothing is there.
        Refused: It isn't a real directory, isn't this user's, or its mode isn't exactly 0700 (openvmm 1.4: the
            endpoint's directory). It is never changed.
    """
    path = _absolute(path)
    try:
        fd = os.open(path, OPEN_DIRECTORY)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR} and os.path.lexists(path):
            raise Refused(
                "it is a link or a file, not a directory", subject=path, hint="choose another path", detail="kind"
            ) from error
        raise failure(error, path, "open") from error
    try:
        _require_private(os.fstat(fd), path)
        return Directory(path, fd)
    except BaseException:
        let_go(fd)
        raise


def _require_private(found: os.stat_result, path: str) -> None:
    if found.st_uid != os.geteuid():
        raise Refused(
            f"it belongs to user {found.st_uid}, not to this one",
            subject=path,
            hint="act as that user, or choose another",
            detail="owner",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode != PRIVATE_DIRECTORY:
        raise Refused(
            f"its mode is {mode:04o}, not 0700: others may reach what is in it",
            subject=path,
            hint="look at what it holds, then set its mode with chmod 0700",
            detail="mode",
        )


def create_private(path: str) -> tuple[Directory, bool]:
    """Open a private directory, created with its missing parents where it is missing.

    What this creates has mode 0700 whatever the process' umask is, and its name survives a power cut. If that fails,
    the directory goes again.

    Args:
        path: As for :func:`open_private`.

    Returns:
        The directory, and whether this call created it.

    Raises:
        Refused: As for :func:`open_private`, for the directory; or it can't be created.
    """
    path = _absolute(path)
    created = _make(path)
    try:
        return open_private(path), created
    except BaseException:
        if created:
            _unmake(path)
        raise


def _make(path: str) -> bool:
    for _ in range(64):
        try:
            os.mkdir(path, PRIVATE_DIRECTORY)
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            parent = os.path.dirname(path)
            if parent == path:
                raise failure(error, path, "create") from error
            # A parent may vanish again meanwhile, so this is a loop; a dangling link would make it an endless one.
            if not _make(parent) and os.path.islink(parent) and not os.path.exists(parent):
                raise Refused("it is a link to nothing", subject=parent, detail="kind") from error
            continue
        except OSError as error:
            raise failure(error, path, "create") from error
        try:
            _settle(path)
        except BaseException:
            _unmake(path)
            raise
        return True
    raise NvxError("its parents are removed as fast as they are created", subject=path)


def _unmake(path: str) -> None:
    """Take back a directory that this call has created, unless somebody works in it by now."""
    with suppress(OSError):
        os.rmdir(path)


def _settle(path: str) -> None:
    """Give a directory that this call has just created its mode, and its name durability."""
    try:
        # O_PATH: a umask may have left no permission to open it otherwise.
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != PRIVATE_DIRECTORY:
                os.chmod(f"/proc/self/fd/{fd}", PRIVATE_DIRECTORY)
        finally:
            let_go(fd)
        _sync_names(os.path.dirname(path))
    except FileNotFoundError:
        # Removed again by somebody else; opening it says so.
        return
    except OSError as error:
        raise failure(error, path, "create") from error


def _sync_names(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # A directory that this user may write to but not read can't be synced by it.
        return
    try:
        sync_directory(fd)
    finally:
        let_go(fd)
