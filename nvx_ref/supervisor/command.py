"""What to execute, and what it may inherit."""

from __future__ import annotations

import msgspec

from nvx_ref.platform import files


class Inherited(msgspec.Struct, frozen=True):
    """A descriptor that the VMM inherits besides its standard streams, under the number that it has here.

    It stays close-on-exec in this process, so no process that another thread starts inherits it (656.spawn.b, d).
    On hosts that can't pass one, a launch refuses it (656.spawn.k).

    Args:
        fd: The descriptor; the caller keeps it open until the launch has returned, and closes it.
    """

    fd: int

    def proc_path(self) -> str:
        """Return the path by which the VMM opens the same file: ``/proc/self/fd/N``. It is never persisted."""
        return files.proc_path(self.fd)


class VmmCommand(msgspec.Struct, frozen=True):
    """A command whose first word becomes the VMM itself, no wrapper that starts it.

    Args:
        argv: The command; never the capability, which comes by standard input.
        inherited: What it inherits; a duplicate is passed once.
        breakaway: Whether it leaves the job that its launcher is in, and so outlives that (Windows). A job that
            forbids it makes the launch fail, before anything runs. Elsewhere it says nothing.
    """

    argv: list[str]
    inherited: list[Inherited] = []
    breakaway: bool = False
