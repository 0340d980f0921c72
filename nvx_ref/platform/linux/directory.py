"""A private directory by descriptor: no access goes through a path that somebody could swap meanwhile."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress

from nvx_ref.closing import Closing
from nvx_ref.errors import AlreadyExists, Malformed, NotFound, Refused
from nvx_ref.platform.contract import FileId, FileKind, FileStat
from nvx_ref.platform.failures import failure

assert sys.platform == "linux"

from nvx_ref.platform.descriptors import let_go

PRIVATE_FILE = 0o600

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20

_KINDS = {
    stat.S_IFREG: FileKind.REGULAR,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFBLK: FileKind.BLOCK,
    stat.S_IFCHR: FileKind.CHARACTER,
}


def identify(status: os.stat_result) -> FileId:
    """Return which file a ``stat`` result is about."""
    return FileId(volume=f"{status.st_dev:x}", file=f"{status.st_ino:x}")


def kind_of(status: os.stat_result) -> FileKind:
    """Return what a ``stat`` result is about."""
    return _KINDS[stat.S_IFMT(status.st_mode)]


def write_all(fd: int, data: bytes) -> None:
    """Write all the bytes: one ``write`` may take only a part of them."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int, limit: int) -> bytes:
    """Return up to ``limit`` bytes from the start of a file."""
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(fd, min(limit, _CHUNK))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def sync_directory(fd: int) -> None:
    """``fsync`` a directory, where its file system can."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


class Directory(Closing):
    """See :class:`nvx_ref.platform.contract.Directory`; made by ``open_private`` and ``create_private``."""

    __slots__ = ("_fd", "_id", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._id = identify(os.fstat(fd))

    @property
    def path(self) -> str:
        """The absolute path that it was opened by."""
        return self._path

    @property
    def id(self) -> FileId:
        """Which directory it is."""
        return self._id

    def __del__(self) -> None:
        # A reader that lost its directory to an exception must not also lose a descriptor.
        self.close()

    def close(self) -> None:
        """Let go of it; idempotent."""
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            let_go(fd)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def child_path(self, name: str) -> str:
        """Return a name's path, for messages and for a VMM's arguments."""
        return os.path.join(self._path, name)

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        try:
            # A descriptor of its own: a listing moves the position that all copies of one share.
            fd = os.open(".", OPEN_DIRECTORY, dir_fd=self._fd)
            try:
                return sorted(os.listdir(fd))
            finally:
                let_go(fd)
        except OSError as error:
            raise failure(error, self._path, "list") from error

    def stat(self, name: str) -> FileStat | None:
        """Return what a name is, None if it is absent."""
        found = self._look(name)
        return None if found is None else _describe(found)

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the whole content of a regular file, None only if the name is absent."""
        try:
            fd = self._open_plain(name, os.O_RDONLY)
        except NotFound:
            return None
        try:
            data = read_all(fd, limit + 1)
        except OSError as error:
            raise failure(error, self.child_path(name), "read") from error
        finally:
            let_go(fd)
        if len(data) > limit:
            raise Malformed(f"it is longer than {limit} bytes", subject=self.child_path(name), detail="too-long")
        return data

    def open_lock(self, name: str) -> int:
        """Open a file for locking, created empty with mode 0600 where it is missing; nothing is locked yet."""
        return self._open_plain(name, os.O_RDWR | os.O_CREAT)

    def open_log(self, name: str) -> int:
        """Open a file for appending, created where it is missing, not truncated."""
        return self._open_plain(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def create_new(self, name: str, data: bytes) -> None:
        """Create a file that must not exist, with mode 0600 and this content."""
        try:
            self._write_new(name, data, sync=False)
        except FileExistsError as error:
            raise AlreadyExists("it exists already", subject=self.child_path(name)) from error
        except OSError as error:
            raise failure(error, self.child_path(name), "create") from error

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        """Set a file's whole content at once."""
        path = self.child_path(_single(name))
        temporary = f".{name}.{os.urandom(16).hex()}.tmp"
        try:
            self._write_new(temporary, data, sync=True)
            try:
                os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except BaseException:
                self._forget(temporary)
                raise
            if durable:
                sync_directory(self._fd)
        except OSError as error:
            raise failure(error, path, "write") from error

    def rename(self, name: str, other: str) -> None:
        """Give a file another name, and take that from whatever file has it."""
        try:
            os.rename(_single(name), _single(other), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            raise failure(error, self.child_path(other), "rename") from error

    def remove(self, name: str) -> bool:
        """Remove a name, whatever file it is; False if it is absent. Directories are refused."""
        try:
            os.unlink(_single(name), dir_fd=self._fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failure(error, self.child_path(name), "remove") from error
        return True

    def is_current(self) -> bool:
        """Tell whether the path still names this directory."""
        try:
            return identify(os.stat(self._path, follow_symlinks=False)) == self._id
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise failure(error, self._path, "look at") from error

    def remove_self(self) -> bool:
        """Remove the directory; True once the path no longer names it, False while something is still in it."""
        # The held descriptor keeps the inode from being reused, so an equal id is this very directory.
        if not self.is_current():
            return True
        try:
            os.rmdir(self._path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return False
            raise failure(error, self._path, "remove") from error
        return True

    def sync(self) -> None:
        """Make the names in it survive a power cut."""
        try:
            sync_directory(self._fd)
        except OSError as error:
            raise failure(error, self._path, "sync") from error

    def _look(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(_single(name), dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failure(error, self.child_path(name), "look at") from error

    def _open_plain(self, name: str, flags: int) -> int:
        # Looked at before it is opened: opening a FIFO or a device already does something to it.
        found = self._look(name)
        if found is not None:
            _require_plain(found, self.child_path(name))
        try:
            fd = os.open(name, flags | _SAFE, PRIVATE_FILE, dir_fd=self._fd)
        except OSError as error:
            raise failure(error, self.child_path(name), "open") from error
        try:
            status = os.fstat(fd)
            _require_plain(status, self.child_path(name))
            if found is None and stat.S_IMODE(status.st_mode) != PRIVATE_FILE:
                # Created just now, under a umask that takes even this user's permissions.
                os.fchmod(fd, PRIVATE_FILE)
        except BaseException:
            let_go(fd)
            raise
        return fd

    def _write_new(self, name: str, data: bytes, *, sync: bool) -> None:
        fd = os.open(_single(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, PRIVATE_FILE, dir_fd=self._fd)
        try:
            try:
                if stat.S_IMODE(os.fstat(fd).st_mode) != PRIVATE_FILE:
                    os.fchmod(fd, PRIVATE_FILE)
                write_all(fd, data)
                if sync:
                    os.fsync(fd)
            finally:
                _finish(fd)
        except BaseException:
            self._forget(name)
            raise

    def _forget(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except OSError:
            # The failure that led here is the one to report; the name is a known leftover at worst.
            return


def _finish(fd: int) -> None:
    # A network file system may report a failed write only here.
    with suppress(InterruptedError):
        os.close(fd)


def _single(name: str) -> str:
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        raise Refused("a name in a private directory is a single component", subject=name, detail="name")
    return name


def _describe(found: os.stat_result) -> FileStat:
    return FileStat(
        kind=kind_of(found),
        size=found.st_size,
        links=found.st_nlink,
        mine=found.st_uid == os.geteuid(),
        private=not stat.S_IMODE(found.st_mode) & 0o077,
        id=identify(found),
    )


def _require_plain(found: os.stat_result, path: str) -> None:
    kind = kind_of(found)
    if kind is not FileKind.REGULAR:
        raise Refused(f"it is a {kind}, not a regular file", subject=path, hint="remove it", detail="kind")
    if found.st_uid != os.geteuid():
        raise Refused(f"it belongs to user {found.st_uid}", subject=path, hint="remove it", detail="owner")
    # No name at all is fine: it was replaced or removed between its opening and this look.
    if found.st_nlink > 1:
        raise Refused(
            f"it has {found.st_nlink} names, so writing to it would change another file",
            subject=path,
            hint="remove it",
            detail="links",
        )
