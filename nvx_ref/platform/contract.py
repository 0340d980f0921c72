"""What both operating systems promise: the shared types and the classes' contract.

``nvx_ref.platform`` exports ``process``, ``spawn``, ``files`` and ``endpoint`` from ``linux`` or from ``windows``.
The protocols here (:class:`Pin`, :class:`Child`, :class:`Directory`, :class:`Connection`) carry the promises; an
implementation adds only what is peculiar to its system. :mod:`nvx_ref.platform.modules` says what each of the four
modules holds.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Protocol

from msgspec import Meta, Struct

from nvx_ref.errors import Indeterminate, VmmExited

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline

MAX_PID = 2**22 if sys.platform == "linux" else 2**32 - 1
"""The largest process number that the kernel hands out."""

_MAX_INTEGER = 2**63 - 1

Pid = Annotated[int, Meta(ge=1, le=MAX_PID)]
Counter = Annotated[int, Meta(ge=1, le=_MAX_INTEGER)]
Ticks = Annotated[int, Meta(ge=0, le=_MAX_INTEGER)]
BootName = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z:.-]{1,64}\Z")]
Hexadecimal = Annotated[str, Meta(pattern=r"\A(?:0|[1-9a-f][0-9a-f]{0,31})\Z")]


class ProcessIdentity(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """Which process a number means: what is recorded of a VMM, and compared before anything is done to it.

    Args:
        pid: The process number, as its own and the reader's PID namespace counts.
        start_time: When it started, in the system's own raw unit since its boot (Linux: clock ticks, Windows:
            creation FILETIME). Compared, never computed with.
        boot: The boot it started in; numbers of different boots say nothing about each other.
        pid_namespace: The PID namespace that ``pid`` counts in, where the system has them.
        pidfs_inode: The kernel's own unique number of the process, where it has one. It decides: in a forced reuse
            of a number the start time is mostly the same too.
    """

    pid: Pid
    start_time: Ticks
    boot: BootName
    pid_namespace: Counter | None = None
    pidfs_inode: Counter | None = None


class FileId(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Which file an open descriptor means, whatever its names are.

    Args:
        volume: The device (Linux) or volume serial number (Windows), lowercase hexadecimal without leading zeros.
        file: The inode or file id, likewise.
    """

    volume: Hexadecimal
    file: Hexadecimal


class FileKind(StrEnum):
    """What a name in a directory is, links not followed."""

    REGULAR = "regular"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    BLOCK = "block"
    CHARACTER = "character"
    REPARSE = "reparse"


class FileStat(Struct, frozen=True):
    """What a look at one name found.

    Args:
        kind: What it is.
        size: Its length in bytes.
        links: How many names it has.
        mine: Whether this user owns it.
        private: Whether nobody else has a permission on it.
        id: Which file it is.
    """

    kind: FileKind
    size: int
    links: int
    mine: bool
    private: bool
    id: FileId


class FileSeal(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What tells by metadata alone that a staged file is still the one that was verified (622.p1, seal).

    It detects accidents, not tampering by the account that may write the file.

    Args:
        scheme: How the fields were measured: ``unix-file-v1`` or ``windows-file-v1``.
        volume: As :class:`FileId`.
        file: As :class:`FileId`.
        kind: What the file is.
        length: Bytes, a block device's capacity included.
        modified: Modification time in nanoseconds, on the file system's clock; compared for equality only.
        changed: Change time likewise, where the system keeps one that a user can't set.
    """

    scheme: Annotated[str, Meta(pattern=r"\A(?:unix|windows)-file-v[1-9]\Z")]
    volume: Hexadecimal
    file: Hexadecimal
    kind: FileKind
    length: Annotated[int, Meta(ge=0, le=_MAX_INTEGER)]
    modified: Annotated[int, Meta(ge=-_MAX_INTEGER, le=_MAX_INTEGER)]
    changed: Annotated[int, Meta(ge=-_MAX_INTEGER, le=_MAX_INTEGER)] | None = None

    @property
    def id(self) -> FileId:
        """Which file it was."""
        return FileId(self.volume, self.file)


class Reach(Struct, frozen=True):
    """A part of a file system, and where it is shown.

    Args:
        device: The file system, in the system's own text.
        inside: The directory or file within it.
        point: Where it is mounted.
    """

    device: str
    inside: str
    point: str


class ProcessGone(VmmExited):
    """The number names no process: no such process, a thread of another one, or one that has been reaped."""


class Unpinnable(Indeterminate):
    """The kernel gave no hold on a process that may well live, so nothing can be sent to it.

    ``detail`` is ``no-pidfd``, ``denied``, ``hidden``, ``foreign-namespace``, ``descriptors``, ``spawn`` or
    ``closed``.
    """


class Pin(Protocol):
    """A hold on one process: while it lasts, the number can't come to mean another one unnoticed.

    It proves nothing about *which* process it holds. Pin first, then compare :meth:`identity`, then act.
    Not shared between threads, but for :meth:`has_exited`, which any thread may ask.
    """

    @property
    def pid(self) -> int:
        """The number that was pinned."""
        ...

    def identity(self) -> ProcessIdentity:
        """Return the identity of the held process, proven to be its own and not a successor's.

        Raises:
            ProcessGone: It has been reaped, so that nothing about it can be read any more.
            Unpinnable: It lives, and the system doesn't let this user look.
        """
        ...

    def has_exited(self) -> bool:
        """Tell whether the whole process, its last thread included, has ended; reaped or not makes no difference."""
        ...

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the exit event; False once the deadline has passed."""
        ...

    def terminate(self) -> bool:
        """End the process at once and for good; no error if it has ended already.

        Returns:
            Whether it was told to end; False: it had ended before, and nobody was told anything. A process that ends
            in that very instant may have been told as well: its status says what it ended by.

        Raises:
            Refused: This user may not.
            Unpinnable: There is no hold (a child on a system without pidfds), so nothing was sent.
        """
        ...

    def exit_status(self) -> int | None:
        """Return the status it ended with, a negative signal number included, or None where that isn't known.

        None is also the answer while it runs. An unknown status is never rounded to 0.
        """
        ...

    def holds_output(self, file: FileId) -> bool:
        """Tell whether the process' standard output or error is that file.

        Raises:
            ProcessGone: It has been reaped.
            Unpinnable: It lives, and the system doesn't let this user look.
        """
        ...

    def close(self) -> None:
        """Let go of the process, which goes on; idempotent."""
        ...


class Child(Protocol):
    """A process that this one has just started, detached: it outlives its parent.

    Dropping it says nothing to the process and warns nobody; once anything here has seen the exit, it is reaped.
    """

    @property
    def pid(self) -> int:
        """Its number, for messages."""
        ...

    def pin(self) -> Pin:
        """Return a new hold on it, which the caller closes."""
        ...

    def identity(self) -> ProcessIdentity:
        """Return its identity, also when it has exited since."""
        ...

    def terminate(self, deadline: Deadline) -> bool:
        """End it through the pin taken at its spawn and wait for it; False once the deadline has passed."""
        ...

    def close(self) -> None:
        """Let go of it; it goes on."""
        ...


class Connection(Protocol):
    """A connection to a VMM's endpoint. One thread may send while another receives, and any may close."""

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all the bytes.

        Raises:
            TimedOut: The deadline passed; some of the bytes may have been sent.
            SessionFailed: The other end has closed it.
        """
        ...

    def receive(self, limit: int, deadline: Deadline) -> bytes:
        """Return what has arrived, 1 to ``limit`` bytes, or ``b""`` once the other end has closed.

        Raises:
            TimedOut: The deadline passed and nothing has arrived.
            SessionFailed: The connection is broken, or closed on this side.
        """
        ...

    def exchange(self, data: memoryview, limit: int, deadline: Deadline) -> tuple[int, bytes | None]:
        """Wait until either direction can move, then move what can be moved without waiting.

        Args:
            data: What to send, at least one byte.
            limit: The most bytes to receive; 0 leaves what arrives alone.
            deadline: By when.

        Returns:
            How many bytes were sent, and what arrived: None for nothing, ``b""`` at the end.

        Raises:
            TimedOut: The deadline passed and nothing moved.
            SessionFailed: The connection is broken, or closed on this side.
        """
        ...

    def peer(self) -> Pin:
        """Return a hold on the process that serves the endpoint, as the kernel names it.

        Raises:
            ProcessGone: That process has ended.
            Unpinnable: It can't be named or held.
        """
        ...

    def fileno(self) -> int:
        """Return the descriptor, for waits on several things at once."""
        ...

    def close(self) -> None:
        """Close it, which also ends a wait in another thread; idempotent."""
        ...


class Directory(Protocol):
    """A private directory, held by descriptor: every access goes through it, none through its path.

    Whatever a name turns out to be (link, FIFO, device), it is neither followed nor waited for. Names are single
    components. Every failure is an ``NvxError`` that names the file: :class:`Refused` with the system's own reason
    (no space, no permission, read-only, I/O error) unless said otherwise.
    """

    @property
    def path(self) -> str:
        """The absolute path that it was opened by."""
        ...

    @property
    def id(self) -> FileId:
        """Which directory it is."""
        ...

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        ...

    def stat(self, name: str) -> FileStat | None:
        """Return what a name is, None if it is absent."""
        ...

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the whole content of a regular file, None only if the name is absent.

        Raises:
            Malformed: It is longer than ``limit`` bytes.
            Refused: It isn't a regular file of this user with one name.
        """
        ...

    def open_lock(self, name: str) -> int:
        """Open a file for locking, created empty with mode 0600 where it is missing; nothing is locked yet.

        Raises:
            Refused: The name is a link, has several names, or is no regular file of this user. It is untouched.
        """
        ...

    def open_log(self, name: str) -> int:
        """Open a file for appending, created where it is missing, *not* truncated; refuses as :meth:`open_lock`."""
        ...

    def create_new(self, name: str, data: bytes) -> None:
        """Create a file that must not exist, with mode 0600 and this content.

        After a crash it may hold a part of it. After a failure there is none.

        Raises:
            AlreadyExists: The name is taken.
        """
        ...

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        """Set a file's whole content at once.

        After a crash, at any instant, the name has its old or its new content, whole; beside it a temporary file
        ``.NAME.<32 hex>.tmp`` may stay. A failure leaves the old content and no temporary file, except that one of
        the last step, with ``durable``, leaves the new content, which may not survive a power cut.

        Args:
            name: The file.
            data: The content.
            durable: Whether the name must also survive a power cut (one more ``fsync``, of the directory).
        """
        ...

    def rename(self, name: str, other: str) -> None:
        """Give a file another name, and take that from whatever file has it; both may be open, here and elsewhere.

        Raises:
            AlreadyExists: The file system replaces an open file in two steps, and somebody has made one in between.
            Refused: It can't be done.
        """
        ...

    def remove(self, name: str) -> bool:
        """Remove a name, whatever file it is; False if it is absent. Directories are refused."""
        ...

    def is_current(self) -> bool:
        """Tell whether the path still names this directory."""
        ...

    def remove_self(self) -> bool:
        """Remove the directory; True once the path no longer names it, False while something is still in it."""
        ...

    def sync(self) -> None:
        """Make the names in it survive a power cut."""
        ...

    def close(self) -> None:
        """Let go of it; idempotent."""
        ...
