"""The children that this process has spawned and not yet reaped.

A child is reaped by whoever first sees its exit through any pin, and its status kept. Reaping is always of one
named child: ``waitpid(-1)`` would take the status of somebody else's.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock

from nvx_ref.platform.contract import ProcessGone, Unpinnable

assert sys.platform == "linux"

from nvx_ref.platform.descriptors import let_go
from nvx_ref.platform.linux import pidfd, procfs

_children: dict[int, OwnChild] = {}


class OwnChild:
    """One child of this process.

    Args:
        pid: Its number, which stays its own until it is reaped.
    """

    __slots__ = ("_fd", "_lock", "pid", "reaped", "status")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd: int | None = None
        self.reaped = False
        self.status: int | None = None
        self._lock = allocate_lock()

    def hold(self) -> None:
        """Pin it, where the kernel can.

        Raises:
            ProcessGone: It ended and was reaped by somebody else.
        """
        self._fd = _hold(self.pid)

    def collect(self) -> bool:
        """Reap it if it has ended; tell whether it has."""
        with self._lock:
            if self.reaped:
                return True
            try:
                result = self._wait()
            except ChildProcessError:
                # Reaped by somebody else, by the kernel where SIGCHLD is ignored, or this is a fork of its parent.
                return self._lost()
            if result is None:
                return False
            ended = result.si_code == os.CLD_EXITED
            self._settle(result.si_status if ended else -result.si_status)
            return True

    def has_number(self) -> bool:
        """Tell whether the number is still this child's, zombie or not."""
        with self._lock:
            if self.reaped:
                return False
            return self._fd is None or pidfd.number_of(self._fd) == self.pid

    def duplicate(self) -> int | None:
        """Return another hold on it, None once it has been reaped or where the kernel gives none.

        Raises:
            Unpinnable: There are no descriptors left.
        """
        with self._lock:
            if self.reaped:
                return None
            if self._fd is None:
                # There may have been no descriptor left at its spawn; unreaped, it still has its number.
                try:
                    self.hold()
                except ProcessGone:
                    self._settle(None)
                    return None
            try:
                return None if self._fd is None else os.dup(self._fd)
            except OSError as error:
                raise procfs.unreadable(error, self.pid) from error

    def forget(self) -> None:
        """Give it up: it was gone before it could be held, and its status is unknown."""
        self._settle(None)

    def _wait(self) -> os.waitid_result | None:
        flags = os.WEXITED | os.WNOHANG
        if self._fd is not None:
            try:
                return os.waitid(os.P_PIDFD, self._fd, flags)
            except ChildProcessError:
                raise
            except OSError:
                # Linux 5.3 has pidfds and can't wait for them.
                pass
        return os.waitid(os.P_PID, self.pid, flags)

    def _lost(self) -> bool:
        if self._fd is not None:
            try:
                if pidfd.number_of(self._fd) != -1:
                    return False
            except Unpinnable:
                return False
            self._settle(pidfd.exit_status(self._fd))
            return True
        try:
            found = procfs.read_stat(self.pid)
        except Unpinnable:
            return False
        if found is None or found.exited:
            self._settle(None)
        return self.reaped

    def _settle(self, status: int | None) -> None:
        self.status = status
        self.reaped = True
        fd, self._fd = self._fd, None
        if fd is not None:
            let_go(fd)
        if _children.get(self.pid) is self:
            del _children[self.pid]


def adopt(pid: int) -> OwnChild:
    """Take charge of a child that has just been spawned, holding it while its number is still its own.

    A kernel that gives no hold leaves a child without one: it can be waited for, and nothing is ever sent to it.
    """
    sweep()
    child = OwnChild(pid)
    try:
        child.hold()
    except ProcessGone:
        child.forget()
    else:
        _children[pid] = child
    return child


def _hold(pid: int) -> int | None:
    try:
        fd = pidfd.open_pidfd(pid)
    except Unpinnable:
        return None
    # Where SIGCHLD is ignored the number may be free by now, and even a stranger's.
    if _is_child(fd):
        return fd
    let_go(fd)
    raise ProcessGone("it ended and left no trace", subject=f"process {pid}")


def _is_child(fd: int) -> bool:
    try:
        os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except OSError:
        return True
    return True


def find(pid: int) -> OwnChild | None:
    """Return the unreaped child with a number.

    A pin that was opened *before* this call found the same process: the child has had its number all along.
    """
    child = _children.get(pid)
    return child if child is not None and child.has_number() else None


def sweep() -> None:
    """Reap the children that have ended without anybody looking."""
    for child in list(_children.values()):
        child.collect()
