"""A sandbox under its lifecycle lock: every change of its directory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from nvx_ref.errors import NvxError, Refused
from nvx_ref.platform.descriptors import let_go
from nvx_ref.steps import Step
from nvx_ref.store import cleanup, launch, lock, names, recovery, removal
from nvx_ref.store.reader import Reader
from nvx_ref.store.records import MAX_CONFIGURATION

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.steps import Observer
    from nvx_ref.store.identity import RuntimeIdentity
    from nvx_ref.store.launch import Launch
    from nvx_ref.store.names import CallerFiles
    from nvx_ref.store.recovery import Probe, Recovery


class LockedStore(Reader):
    """The holder of a sandbox's lock.

    A context manager: leaving it releases the lock. Made by :class:`nvx_ref.store.Store`. Not shared between
    threads; a forked child that leaves it lets go of its copies only.

    Args:
        held: The lock.
        caller: The caller's files.
        observe: Called with each step once it has happened.
        deadline: The bound of the transition; waits without one of their own end by it.
    """

    def __init__(self, held: lock.Held, caller: CallerFiles, observe: Observer, deadline: Deadline) -> None:
        super().__init__(held.directory, caller)
        self._held: lock.Held | None = held
        self._owner = os.getpid()
        self.observe = observe
        self.deadline = deadline
        self.recovered = False

    @property
    def fd(self) -> int:
        """The locked file's descriptor."""
        return self.require_held().fd

    @property
    def is_held(self) -> bool:
        """Whether the lock is still held here."""
        return self._held is not None and os.getpid() == self._owner

    def require_held(self) -> lock.Held:
        """Return the lock, if it is still held.

        Raises:
            Refused: It was released.
        """
        if self._held is None or os.getpid() != self._owner:
            raise Refused("the sandbox's lock isn't held any more", subject=self.path, detail="unlocked")
        return self._held

    def close(self) -> None:
        """Release the lock; idempotent. Without a configuration the lock file goes as well (620.scope6.f)."""
        held, self._held = self._held, None
        if held is None:
            super().close()
        elif os.getpid() == self._owner:
            lock.release(held, self.caller.configuration)
        else:
            # An unlock here would be the parent's: the lock belongs to the open file that both share.
            let_go(held.fd)
            super().close()

    def release_removed(self) -> None:
        """Release the lock of a removed sandbox; the directory stays open for its own removal."""
        held = self.require_held()
        self._held = None
        let_go(held.fd)

    def relock(self, deadline: Deadline) -> LockedStore:
        """Lock the same sandbox anew, after this lock was released.

        Raises:
            NotFound: It isn't provisioned any more.
            Busy: Another transition was in progress until the deadline.
        """
        held = lock.take_existing(self.path, self.caller.configuration, deadline)
        return LockedStore(held, self.caller, self.observe, deadline)

    def write_configuration(self, data: bytes) -> None:
        """Write the caller's configuration record: with it the sandbox is provisioned.

        After a crash or a power cut the old or the new record is there, whole. A first one that can't be made to
        survive a power cut isn't left there either: the sandbox isn't provisioned.

        Raises:
            Refused: It is over :data:`nvx_ref.store.records.MAX_CONFIGURATION` bytes, or can't be written.
        """
        self.require_held()
        if len(data) > MAX_CONFIGURATION:
            raise Refused(
                f"a configuration has at most {MAX_CONFIGURATION} bytes, this one {len(data)}",
                subject=self.path_of(self.caller.configuration),
                detail="too-long",
            )
        name = self.caller.configuration
        first = self.directory.stat(name) is None
        cleanup.remove_staged(self.directory)
        try:
            self.directory.replace(name, data, durable=True)
        except BaseException:
            if first:
                with contextlib.suppress(NvxError):
                    self.directory.remove(name)
            raise

    def begin_launch(self, identity: RuntimeIdentity) -> Launch:
        """Begin a launch: stale files go, then capability, log, claim and marker are there (620.scope2.a, c).

        A crash leaves a marker whose claim is free, or less; the next recovery or launch clears either. A failure
        leaves nothing of the launch but its log.

        Args:
            identity: What will be launched.

        Raises:
            Malformed: The identity has an empty part.
            AlreadyExists: A VMM is recorded.
            Refused: An interrupted launch hasn't been recovered, the endpoint can't be served from this path, or a
                file can't be written.
            Indeterminate: The log's claim stayed held for a second: a VMM may run.
        """
        self.require_held()
        self.recovered = False
        return launch.begin(self, identity)

    def recover(self, probe: Probe | None = None, *, deadline: Deadline | None = None) -> Recovery:
        """Finish an interrupted launch: nothing of it runs, and nothing of it is left, afterwards.

        Journal and runtime record with one launch id are a commit cut short: the journal goes. Otherwise the journal
        is the newest launch. With a process in it, that is verified and terminated; without one, a free claim
        proves that it has exited, and a server of its endpoint that has its log is its VMM (620.scope2.d, e).

        After a crash the next recovery starts over.

        Args:
            probe: Asks the endpoint who serves it; None never asks.
            deadline: By when a terminated VMM must have exited; None: 10 s.

        Raises:
            Indeterminate: A VMM may run; every record was kept. ``detail`` says why: ``claim-held``,
                ``log-replaced``, ``exit-pending``, or what kept the process from being verified.
            Malformed: A record is damaged, and was kept.
            Refused: A record can't be read, or a file not be removed.
        """
        self.require_held()
        self.recovered = False
        found = recovery.recover(self, probe, deadline)
        self.recovered = True
        return found

    def clear_runtime(self, launch_id: str, *, step: Step = Step.STOP_RECORD_CLEARED) -> bool:
        """Remove the runtime files of a VMM that has verifiably exited, its record last (656.stop.e).

        The log and the outcome report stay. After a crash the record is still there, or everything is gone.

        Args:
            launch_id: The launch whose VMM has exited; a record of another one is left alone.
            step: What to announce.

        Returns:
            Whether there was such a record.

        Raises:
            Malformed: The record is damaged, and was kept.
            Refused: A file can't be removed; the record was kept.
        """
        self.require_held()
        runtime = self.runtime()
        if runtime is None or runtime.launch_id != launch_id:
            return False
        journal = self.journal()
        if journal is None or journal.launch_id == launch_id:
            cleanup.clear_launch(self.directory, names.JOURNAL, names.RUNTIME)
        else:
            self.directory.remove(names.RUNTIME)
        self.observe(step)
        return True

    def remove(self, *, deadline: Deadline | None = None) -> None:
        """Remove the sandbox, and release its lock.

        Valid only if no VMM of it can run: after :meth:`recover`, with no runtime record and a free log. Everything
        is looked at before anything is deleted; then the VMM's files go, the caller's others, the configuration, the
        lock file, and the directory. After a crash a repeated removal finishes. A provision that takes the directory
        over meanwhile keeps it, which is success.

        Args:
            deadline: By when lingering names must be gone; None: the transition's.

        Raises:
            Refused: Recovery hasn't settled that nothing runs, or a file can't be removed.
            AlreadyExists: A VMM is recorded.
            Indeterminate: Some process has the log.
            ForeignEntries: Somebody else's files are in the directory; nothing was removed.
            TimedOut: All files are gone, and names of deleted files that are still open keep the directory; removing
                again finishes it.
        """
        self.require_held()
        try:
            removal.remove(self, self.deadline if deadline is None else deadline)
        finally:
            if self._held is None:
                self.directory.close()
