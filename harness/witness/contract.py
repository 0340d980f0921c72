"""What every operating system must be able to tell the witnesses: one contract, one module per system below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, TypedDict, Unpack

if TYPE_CHECKING:
    import os
    import subprocess
    from collections.abc import Iterable, Sequence

    from harness.deadline import Deadline


class Given(TypedDict, total=False):
    """What a process of the test's is started with; the names are Popen's."""

    stdin: int
    stdout: int | IO[bytes]
    stderr: int | IO[bytes]
    cwd: str
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stat:
    """One process at one moment.

    Attributes:
        pid: Its number.
        name: Its name as the kernel shows it.
        state: One letter: R, S, D, Z, T, X...
        parent: The number of its parent.
        session: The number of its session.
        start: When it started, in the kernel's own unit.
    """

    pid: int
    name: str
    state: str
    parent: int
    session: int
    start: int


@dataclass(frozen=True, slots=True, order=True)
class Descriptor:
    """One open descriptor: which number names which object."""

    number: int
    device: int
    inode: int
    target: str


class Pin(Protocol):
    """One process, held: its number can't be given to another one unnoticed."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    @property
    def start(self) -> int:
        """When it started, in the kernel's own unit."""
        ...

    def has_exited(self) -> bool:
        """Tell whether its last thread has ended; a zombie without live threads has."""
        ...

    def wait(self, deadline: Deadline) -> bool:
        """Wait for that; False once the deadline has passed."""
        ...

    def end(self) -> None:
        """End it with the signal that can't be caught; a process that has exited is left alone."""
        ...

    def reap(self) -> int | None:
        """Take it off the table if it is a child of ours that has exited; return its status, negative for a signal."""
        ...

    def status(self) -> int | None:
        """Return the status of what has exited, negative for a signal, child of ours or not; None where untold."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Host(Protocol):
    """The operating system as the witnesses see it."""

    @property
    def ownership_is_a_handle(self) -> bool:
        """Whether a VMM inherits the ownership of its scratch as a handle of its own, named by no argument."""
        ...

    @property
    def guards_files(self) -> bool:
        """Whether an open file can keep others from its name and content, as it does on Windows."""
        ...

    @property
    def serves_pipes(self) -> bool:
        """Whether endpoints are pipes of the system, which have no file."""
        ...

    def expose(self, path: str) -> None:
        """Let everybody reach a file or directory, as a careless administrator would."""
        ...

    def mode(self, path: str, status: os.stat_result) -> int:
        """Return a file's kind, and as mode bits who may reach it.

        Args:
            path: The file.
            status: What `lstat` says of it.
        """
        ...

    def adopt_orphans(self) -> None:
        """Have every descendant whose parent ends come to this process, or into the net of what it starts."""
        ...

    def start(self, command: Sequence[str], **given: Unpack[Given]) -> subprocess.Popen[bytes]:
        """Start a process of the test's, within its net from its first instruction."""
        ...

    def adopted(self, table: Sequence[Stat]) -> set[int]:
        """Return the numbers of those in a whole table that have come here, and of this process's own children."""
        ...

    def let_go(self) -> None:
        """Give up the net, after the last look."""
        ...

    def pin(self, pid: int) -> Pin | None:
        """Hold a process; None if there is none of that number."""
        ...

    def processes(self) -> list[int]:
        """Return the numbers of all processes that this user sees."""
        ...

    def owner(self, pid: int) -> str | None:
        """Return the name of the user whose a process is; None if it is this one's, or gone."""
        ...

    def stats(self, since: int = 0) -> list[Stat]:
        """Look at all of them at once.

        Args:
            since: Leave out what started earlier, in the unit of :attr:`Stat.start`.
        """
        ...

    def stat(self, pid: int) -> Stat | None:
        """Look at one process; None if there is none."""
        ...

    def arguments(self, pid: int) -> list[str]:
        """Return a process's arguments; empty for a zombie and for one that is gone."""
        ...

    def descriptors(self, pid: int) -> list[Descriptor] | None:
        """Return a process's descriptor table; None if it is gone or not ours to look at."""
        ...

    def inherited(self, pid: int) -> list[Descriptor] | None:
        """Return what a process was given at its start, whatever it opened since; None where that can't be told."""
        ...

    def now(self) -> int:
        """Return the time in the unit of :attr:`Stat.start`: what starts from now on starts no earlier."""
        ...

    def holders(self, device: int, inode: int, among: Iterable[int] | None = None) -> list[int]:
        """Return the processes, of all or of some, that have this object open under any number."""
        ...

    def is_locked(self, path: str) -> bool | None:
        """Tell whether somebody holds the file's lock, by trying it; None if there is no such file."""
        ...

    def explain(self, pid: int) -> str:
        """Return what can be told of a process that should be gone: state, wait channel, threads, descriptors."""
        ...

    def mounts(self, below: str) -> list[str]:
        """Return the mount points at or below a directory."""
        ...

    def sockets(self, below: str) -> list[str]:
        """Return the bound sockets below a directory that some process still has open."""
        ...
