"""Processes held by pidfd: pinned, then identified, then acted on through the pin alone."""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING, Self

from nvx_ref.closing import Closing
from nvx_ref.platform.contract import FileId, ProcessGone, ProcessIdentity, Unpinnable

assert sys.platform == "linux"

from nvx_ref.platform.descriptors import let_go
from nvx_ref.platform.linux import children, pidfd, procfs
from nvx_ref.platform.linux.directory import identify
from nvx_ref.platform.linux.procfs import boot_identity, exited_by_number, pid_namespace
from nvx_ref.platform.linux.waiting import wait_for

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline

__all__ = [
    "ENDED_BY_FORCE",
    "Pin",
    "ProcessGone",
    "ProcessIdentity",
    "Unpinnable",
    "boot_identity",
    "exited_by_number",
    "own_identity",
    "pid_namespace",
]

ENDED_BY_FORCE = -9
"""The exit status of a process that this one has ended: ``SIGKILL``'s."""


class Pin(Closing):
    """See :class:`nvx_ref.platform.contract.Pin`.

    Args:
        pid: The number that was pinned.
        fd: The pidfd, which the pin owns; None for a child of this process on a kernel without pidfds, which can
            be waited for (by polling) but not signalled.
        own: The record of the child, where it is one that this process spawned.
    """

    __slots__ = ("_closed", "_fd", "_own", "_pid")

    def __init__(self, pid: int, fd: int | None, own: children.OwnChild | None = None) -> None:
        self._pid = pid
        self._fd = fd
        self._own = own
        self._closed = False

    @classmethod
    def open(cls, pid: int) -> Self:
        """Pin the process that a number names now.

        Args:
            pid: The number.

        Raises:
            ProcessGone: No process has it; a thread of another process may.
            Unpinnable: The kernel gives no hold (``ENOSYS``, or ``EPERM`` by a filter).
            Refused: It is no process number.
        """
        fd = pidfd.open_pidfd(pid)
        try:
            return cls(pid, fd, children.find(pid))
        except BaseException:
            let_go(fd)
            raise

    @classmethod
    def of_descriptor(cls, fd: int) -> Self:
        """Pin by a pidfd that the kernel handed out otherwise; the pin owns it from here on, also after a failure.

        Raises:
            ProcessGone: The process has been reaped.
            Unpinnable: It is in another PID namespace, where this one's numbers don't reach.
        """
        try:
            pid = _number(fd)
            return cls(pid, fd, children.find(pid))
        except BaseException:
            let_go(fd)
            raise

    @classmethod
    def of_child(cls, own: children.OwnChild) -> Self:
        """Pin a child that this process spawned, whether or not it has ended."""
        return cls(own.pid, own.duplicate(), own)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the process, which goes on; idempotent."""
        fd, self._fd = getattr(self, "_fd", None), None
        self._closed = True
        if fd is not None:
            let_go(fd)

    @property
    def pid(self) -> int:
        """The number that was pinned."""
        return self._pid

    @property
    def pidfs_inode(self) -> int | None:
        """The kernel's own unique number of the process, None where it has none."""
        return None if self._fd is None else pidfd.unique_inode(self._fd, self._pid)

    def identity(self) -> ProcessIdentity:
        """Return the identity of the held process, proven to be its own and not a successor's."""
        found = procfs.read_stat(self._pid)
        # Only now: as long as the number is still the held process', what was read under it was about that one.
        if not self._has_number():
            raise ProcessGone("it has exited and been reaped", subject=f"process {self._pid}")
        if found is None:
            raise Unpinnable("/proc hides it from this user", subject=f"process {self._pid}", detail="hidden")
        return ProcessIdentity(
            pid=self._pid,
            start_time=found.start_time,
            boot=boot_identity(),
            pid_namespace=pid_namespace(),
            pidfs_inode=self.pidfs_inode,
        )

    def has_exited(self) -> bool:
        """Tell whether the whole process, its last thread included, has ended; reaped or not makes no difference."""
        if self._fd is None:
            return self._require_own().collect()
        if not _readable(self._fd):
            return False
        if self._own is not None:
            self._own.collect()
        return True

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the exit event; False once the deadline has passed.

        Without a pidfd the kernel has no such event for one process: then it is looked at every 25 ms.
        """
        if self._fd is not None:
            if not wait_for(self._fd, select.POLLIN, deadline):
                return False
            if self._own is not None:
                self._own.collect()
            return True
        while not self.has_exited():
            if not deadline.pause():
                return False
        return True

    def terminate(self) -> bool:
        """End the process at once and for good (``SIGKILL`` through the pidfd); False if it had ended already."""
        if self._fd is None:
            if self._require_own().collect():
                return False
            raise Unpinnable(
                "without a pidfd nothing is sent to it",
                subject=f"process {self._pid}",
                hint="end it by hand after making sure which process it is",
                detail="no-pidfd",
            )
        # An ended process that nobody has reaped takes a signal like any other.
        return not self.has_exited() and pidfd.send_kill(self._fd, self._pid)

    def exit_status(self) -> int | None:
        """Return the status it ended with, a negative signal number included, or None where that isn't known."""
        if not self.has_exited():
            return None
        if self._own is not None and self._own.reaped:
            return self._own.status
        if self._fd is None:
            return None
        try:
            # A child that somebody else spawned: looked at, and left for them to reap.
            seen = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            return pidfd.exit_status(self._fd)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    def holds_output(self, file: FileId) -> bool:
        """Tell whether the process' standard output or error is that file."""
        held = any(self._descriptor_is(number, file) for number in (1, 2))
        if not self._has_number():
            raise ProcessGone("it has exited and been reaped", subject=f"process {self._pid}")
        return held

    def _descriptor_is(self, number: int, file: FileId) -> bool:
        procfs.require_own_view()
        try:
            return identify(os.stat(f"/proc/{self._pid}/fd/{number}")) == file
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError as error:
            raise procfs.unreadable(error, self._pid) from error

    def _has_number(self) -> bool:
        if self._fd is None:
            return self._require_own().has_number()
        return not _readable(self._fd) or pidfd.number_of(self._fd) == self._pid

    def _require_own(self) -> children.OwnChild:
        if self._own is None or self._closed:
            raise Unpinnable("the hold on it has been given up", subject=f"process {self._pid}", detail="closed")
        return self._own


def own_identity() -> ProcessIdentity:
    """Return the identity of this very process.

    Raises:
        Indeterminate: ``/proc`` can't be read.
    """
    pid = os.getpid()
    found = procfs.read_stat(pid)
    if found is None:
        raise Unpinnable("/proc hides this process from itself", subject=f"process {pid}", detail="hidden")
    inode: int | None = None
    try:
        with Pin.open(pid) as pin:
            inode = pin.pidfs_inode
    except Unpinnable:
        # A kernel without pidfds has no such number either.
        pass
    return ProcessIdentity(
        pid=pid,
        start_time=found.start_time,
        boot=boot_identity(),
        pid_namespace=pid_namespace(),
        pidfs_inode=inode,
    )


def _number(fd: int) -> int:
    pid = pidfd.number_of(fd)
    if pid < 0:
        raise ProcessGone("the process has exited", subject="the held process")
    if pid == 0:
        raise Unpinnable("it counts in another PID namespace", detail="foreign-namespace")
    return pid


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
