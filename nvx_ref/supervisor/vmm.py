"""A committed VMM: waits for its exit, and stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvx_ref.closing import Closing
from nvx_ref.deadline import Deadline
from nvx_ref.errors import NvxError
from nvx_ref.steps import Step
from nvx_ref.supervisor.results import Forced, Graceful, Stopped, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.process import ProcessRef
    from nvx_ref.store import LockedStore, RuntimeRecord


class Vmm(Closing):
    """A VMM that was verified when this was made, and is held since. Letting go of it says nothing to it.

    A context manager; made by :meth:`Starting.commit`, :func:`reattach` and :func:`inspect`.

    Args:
        process: The verified process, which this owns.
        record: Its runtime record.
        locked: The sandbox under its lock, None if it wasn't locked.
        relock: Locks the sandbox anew.
        silent: Whether the guest must not be spoken to: another runtime started it.
    """

    def __init__(
        self,
        process: ProcessRef,
        record: RuntimeRecord,
        locked: LockedStore | None,
        relock: Callable[[Deadline], LockedStore],
        *,
        silent: bool = False,
    ) -> None:
        self.process = process
        self.record = record
        self._locked = locked
        self._relock = relock
        self._silent = silent

    def __repr__(self) -> str:
        return f"Vmm({self.record.launch_id}, process {self.record.process.pid})"

    def close(self) -> None:
        """Let go of the VMM, which goes on; idempotent."""
        self.process.close()

    @property
    def endpoint(self) -> str:
        """Where it serves its control session."""
        return self.record.endpoint

    def wait(self, deadline: Deadline) -> bool:
        """Wait for its exit, by event (656.wait); False once the deadline has passed."""
        return self.process.wait(deadline)

    def has_exited(self) -> bool:
        """Tell whether it has exited."""
        return self.process.has_exited()

    def exit_status(self) -> int | None:
        """Return its exit status (a signal's number negative), None where that isn't known or it runs."""
        return self.process.exit_status()

    def stop(
        self, graceful: Callable[[Vmm, Deadline], None] | None, deadline: Deadline, force: float | None = None
    ) -> Stopped:
        """Stop it: one graceful step, a wait for its exit, and a forced step only on request.

        The sandbox's lock is held throughout: the one under which this was made, else taken here. Once the VMM has
        exited its record is cleared, unless that names another launch by then. After a crash the VMM runs with its
        record, or has exited with it: the next transition finds out which.

        Args:
            graceful: Asks the guest to stop; gets this VMM and the deadline. If it fails, that is reported at once
                and not waited out. It is skipped if the VMM has exited already, and for a VMM of another runtime,
                whose guest isn't spoken to. None: nothing is asked.
            deadline: By when the VMM must have exited.
            force: Seconds that a forced step may take after that; None: there is none, and nothing is ever signalled.

        Returns:
            ``Graceful``, ``Forced`` or ``TimedOut``, with the error of a step that failed.

        Raises:
            Refused: ``force`` is out of range (before anything has run), or the cleared record can't be removed.
            Busy: The lock wasn't held, and couldn't be had by the deadline. Nothing has run.
        """
        if force is not None:
            Deadline.after(force)
        if self._locked is not None and self._locked.is_held:
            return self._stop(self._locked, graceful, deadline, force)
        with self._relock(deadline) as locked:
            return self._stop(locked, graceful, deadline, force)

    def _stop(
        self,
        locked: LockedStore,
        graceful: Callable[[Vmm, Deadline], None] | None,
        deadline: Deadline,
        force: float | None,
    ) -> Stopped:
        stopped: Stopped = self._ask(locked, graceful, deadline)
        if isinstance(stopped, TimedOut) and force is not None:
            stopped = self._force(locked, stopped.error, force)
        if not isinstance(stopped, TimedOut):
            locked.observe(Step.STOP_EXITED)
            locked.clear_runtime(self.record.launch_id)
        return stopped

    def _ask(
        self, locked: LockedStore, graceful: Callable[[Vmm, Deadline], None] | None, deadline: Deadline
    ) -> Graceful | TimedOut:
        if self.has_exited():
            return Graceful()
        if graceful is not None and not self._silent:
            try:
                graceful(self, deadline)
            except Exception as error:  # noqa: BLE001 - whatever the caller's step raises is the caller's to read
                # A step may well fail because the VMM is faster than its own answer.
                return Graceful(error) if self.has_exited() else TimedOut(error)
            locked.observe(Step.STOP_REQUESTED)
        return Graceful() if self.wait(deadline) else TimedOut()

    def _force(self, locked: LockedStore, error: Exception | None, force: float) -> Stopped:
        if self.has_exited():
            return Graceful(error)
        try:
            told = self.process.terminate()
        except NvxError as failure:
            failure.__context__ = error
            return Graceful(error) if self.has_exited() else TimedOut(failure)
        if not told:
            return Graceful(error)
        locked.observe(Step.STOP_FORCED)
        if not self.wait(Deadline.after(force)):
            return TimedOut(error)
        # It may have ended by itself in the same instant: its status tells, where the kernel gives it.
        return Graceful(error) if self.process.ended_by_force() is False else Forced(error)
