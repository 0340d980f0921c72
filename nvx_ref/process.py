"""A verified reference to one process: never a bare number.

A process is pinned, then compared with what was recorded, then acted on through the pin. What can't be proven either
way is :class:`~nvx_ref.errors.Indeterminate`, never "exited" and never "live".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from nvx_ref.closing import Closing
from nvx_ref.errors import Indeterminate, Refused
from nvx_ref.platform import process
from nvx_ref.platform.contract import ProcessGone, ProcessIdentity, Unpinnable

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.platform.contract import Child, Connection, FileId, Pin

__all__ = ["ProcessIdentity", "ProcessRef"]


class ProcessRef(Closing):
    """One process that was verified when this was made, held since; made by the class methods only.

    It says nothing to the process by being made, closed or lost.
    """

    __slots__ = ("_identity", "_pin")

    def __init__(self, pin: Pin, identity: ProcessIdentity) -> None:
        self._pin = pin
        self._identity = identity

    @classmethod
    def open(cls, identity: ProcessIdentity) -> Self | None:
        """Find a recorded process again.

        First match (design, verdicts of reattach): an earlier boot is exited without any look at the number; another
        PID namespace is unknown, for the number isn't asked; a number without a process, with an ended one, or with
        another one (this process and 1 included) is exited; what can't be held or looked at is unknown.

        With the kernel's own number (``pidfs_inode``) on both sides that one decides, and the start time is a
        cross-check. Without it, a stranger that got the number *and* started in the same tick is taken for the
        recorded process: a known residue, for which the caller has the claim on the log as a second witness.

        Args:
            identity: What was recorded.

        Returns:
            The process, or None if it has provably exited.

        Raises:
            Indeterminate: Neither can be proven. ``detail`` is ``pid-namespace``, ``contradiction``, ``boot``,
                ``stat`` or one of :class:`~nvx_ref.platform.contract.Unpinnable`'s.
        """
        if identity.boot != process.boot_identity():
            return None
        _require_namespace(identity)
        try:
            pin = process.Pin.open(identity.pid)
        except ProcessGone:
            return None
        except Unpinnable:
            if process.exited_by_number(identity):
                return None
            raise
        try:
            current = _verify(pin, identity)
        except BaseException:
            pin.close()
            raise
        if current is None:
            pin.close()
            return None
        return cls(pin, current)

    @classmethod
    def from_peer(cls, connection: Connection) -> Self:
        """Hold the process that serves a connection, as the kernel names it.

        Raises:
            VmmExited: That process has ended.
            Indeterminate: It can't be named, held or looked at.
        """
        return cls._of(connection.peer())

    @classmethod
    def from_child(cls, child: Child) -> Self:
        """Hold a child that this process has just spawned, whether or not it has ended since.

        Raises:
            VmmExited: It was gone before it could be looked at.
            Indeterminate: It can't be looked at.
        """
        identity = child.identity()
        return cls(child.pin(), identity)

    @classmethod
    def _of(cls, pin: Pin) -> Self:
        try:
            return cls(pin, pin.identity())
        except BaseException:
            pin.close()
            raise

    def __repr__(self) -> str:
        return f"ProcessRef({self._identity!r})"

    @property
    def identity(self) -> ProcessIdentity:
        """What was verified, complete for the running system."""
        return self._identity

    def has_exited(self) -> bool:
        """Tell whether the whole process, its last thread included, has ended; a zombie has."""
        return self._pin.has_exited()

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the exit event; False once the deadline has passed."""
        return self._pin.wait(deadline)

    def terminate(self) -> bool:
        """End the process at once and for good; no error if it has ended already. Doesn't wait.

        Returns:
            Whether it was told to end; False: it had ended before. See also :meth:`ended_by_force`.

        Raises:
            Refused: This user may not, or it is this process itself.
            Indeterminate: There is no hold on it, so nothing was sent.
        """
        if self._identity.pid == os.getpid():
            raise Refused("it is this process itself", subject=f"process {self._identity.pid}", detail="self")
        return self._pin.terminate()

    def ended_by_force(self) -> bool | None:
        """Tell whether it ended as :meth:`terminate` ends a process, None where that isn't known or it runs.

        A process that ends by itself may be told to end just before it is gone, and keeps its own status then.
        """
        status = self.exit_status()
        return None if status is None else status == process.ENDED_BY_FORCE

    def exit_status(self) -> int | None:
        """Return the status it ended with (a signal's number negative), None where that isn't known or it runs."""
        return self._pin.exit_status()

    def holds_output(self, file: FileId) -> bool:
        """Tell whether its standard output or error is that file: the log that the VMM of a launch inherited.

        Raises:
            VmmExited: It has ended and been reaped.
            Indeterminate: It can't be looked at.
        """
        return self._pin.holds_output(file)

    def close(self) -> None:
        """Let go of the process, which goes on; idempotent."""
        self._pin.close()


def _require_namespace(identity: ProcessIdentity) -> None:
    if identity.pid_namespace is not None and identity.pid_namespace != process.pid_namespace():
        raise Indeterminate(
            "it was recorded in another PID namespace, where its number means another process",
            subject=f"process {identity.pid}",
            hint="ask from where the VMM was started",
            detail="pid-namespace",
        )


def _verify(pin: process.Pin, identity: ProcessIdentity) -> ProcessIdentity | None:
    """Compare a pinned process with a recorded one; None if the recorded one has exited."""
    if pin.has_exited():
        return None
    inode = pin.pidfs_inode
    known = identity.pidfs_inode is not None and inode is not None
    if known and inode != identity.pidfs_inode:
        return None
    try:
        current = pin.identity()
    except ProcessGone:
        return None
    if current.start_time == identity.start_time:
        return current
    if known:
        raise Indeterminate(
            "the kernel's own number says that it is the recorded process, its start time that it isn't",
            subject=f"process {identity.pid}",
            hint="a time namespace shifts start times: look from where the VMM was started",
            detail="contradiction",
        )
    return None
