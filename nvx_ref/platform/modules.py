"""What the four modules of either operating system hold, checked by the type checker in ``nvx_ref.platform``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvx_ref.deadline import Deadline
    from nvx_ref.platform.contract import Child, Connection, FileId, FileSeal, ProcessIdentity, Reach


class ProcessModule(Protocol):
    """``nvx_ref.platform.process``; it also holds ``Pin``, with ``Pin.open(pid) -> Pin``."""

    def boot_identity(self) -> str:
        """Return this boot's name; raises Indeterminate where it can't be read."""
        ...

    def pid_namespace(self) -> int | None:
        """Return the PID namespace this process counts in, None where there are none or it can't be read."""
        ...

    def own_identity(self) -> ProcessIdentity:
        """Return the identity of this very process."""
        ...


class SpawnModule(Protocol):
    """``nvx_ref.platform.spawn``."""

    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdin: int,
        output: int,
        allowed: Sequence[int],
        cwd: str,
        breakaway: bool = False,
    ) -> Child:
        """Start a detached process; see the implementation for each argument."""
        ...

    def pipe_with(self, data: bytes) -> int:
        """Return the read end of a pipe that holds ``data`` and then ends; nothing holds its write end any more."""
        ...


class FilesModule(Protocol):
    """``nvx_ref.platform.files``; descriptors are plain integers on every system."""

    def file_id(self, fd: int) -> FileId:
        """Return which file a descriptor means."""
        ...

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock without waiting; False while another open file description holds it."""
        ...

    def unlock(self, fd: int) -> None:
        """Release the lock."""
        ...

    def truncate(self, fd: int) -> None:
        """Empty the file."""
        ...

    def claim_log(self, fd: int) -> bool:
        """Claim an open log; the claim lasts while this descriptor, or one inherited from it, stays open."""
        ...

    def staging_fault(self, path: str) -> str | None:
        """Say why a staged file isn't this account's alone to write, and read-only; None if it is."""
        ...

    def try_own(self, fd: int) -> bool:
        """Take a file for as long as any process holds this description; False while another one owns it."""
        ...

    def seal(self, fd: int) -> FileSeal:
        """Measure an open file by its metadata alone."""
        ...

    def open_image(self, path: str) -> int:
        """Open a file to be read, without waiting for anything; the caller checks its kind."""
        ...

    def open_scratch(self, path: str) -> int:
        """Open a file to be read and written likewise."""
        ...

    def read_mounts(self) -> list[Reach]:
        """Return what is mounted where, in the order in which one covers another; empty where nobody says."""
        ...

    def proc_path(self, fd: int) -> str:
        """Return the path under which a process that inherited the descriptor opens the same file."""
        ...

    def set_apart(self, fd: int, least: int) -> int:
        """Give a descriptor a number of at least so much, if the system has one, and return what it has now."""
        ...


class EndpointModule(Protocol):
    """``nvx_ref.platform.endpoint``."""

    def choose(self, directory: str) -> str:
        """Return the endpoint of a sandbox' directory; raises Refused where OpenVMM couldn't serve it."""
        ...

    def is_elsewhere(self, endpoint: str, directory: str) -> bool:
        """Tell whether an endpoint shows that it was chosen for another directory than this one."""
        ...

    def connect(self, endpoint: str, deadline: Deadline, *, alive: Callable[[], bool]) -> Connection:
        """Connect to an endpoint that may not be there yet.

        Raises:
            VmmExited: ``alive`` said no.
            TimedOut: The deadline passed.
            Refused: This user may not connect.
        """
        ...
