"""A launch in progress: what is on disk before, between and after the spawn.

Capability, log, claim and marker come before the VMM, its identity right after it, the runtime record once it has
proven itself, and the journal goes last. Whatever instant a crash picks, recovery can tell what may run.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import AlreadyExists, Indeterminate, NvxError, Refused
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.platform import files
from nvx_ref.platform import process as system
from nvx_ref.platform.descriptors import let_go
from nvx_ref.steps import Step
from nvx_ref.store import claim, cleanup, names
from nvx_ref.store.claim import Claim
from nvx_ref.store.reader import CAPABILITY_SIZE
from nvx_ref.store.records import FORMAT, Journal, RuntimeRecord, encode
from nvx_ref.store.recovery import Recovered, Recovery, recover

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.platform.contract import FileId, ProcessIdentity
    from nvx_ref.store.identity import RuntimeIdentity
    from nvx_ref.store.locked import LockedStore


class Launch:
    """A launch that was begun under the sandbox's lock; ends by :meth:`commit` or :meth:`abandon`.

    A crash at any point leaves the journal, which the next recovery judges. Made by
    :meth:`nvx_ref.store.LockedStore.begin_launch`.

    Args:
        store: The locked sandbox.
        identity: What is launched, for the runtime record.
        journal: The marker, as written.
        capability: As written to ``control.capability``.
        log: The claimed descriptor of the log; the launch owns it until :meth:`take_log`.
    """

    def __init__(
        self, store: LockedStore, identity: RuntimeIdentity, journal: Journal, capability: bytes, log: int
    ) -> None:
        self._store = store
        self._identity = identity
        self._journal = journal
        self._log = log
        self._ended = False
        self.capability = capability

    @property
    def launch_id(self) -> str:
        """The launch's random name, shared by its journal and its runtime record."""
        return self._journal.launch_id

    @property
    def endpoint(self) -> str:
        """Where the VMM has to serve its control session."""
        return self._journal.endpoint

    @property
    def log(self) -> FileId:
        """The log as an object: what the claim counts on."""
        return self._journal.log

    @property
    def ended(self) -> bool:
        """Whether it was committed or abandoned."""
        return self._ended

    def take_log(self) -> int:
        """Return the claimed descriptor, for the VMM's standard output and error.

        The caller owns it from now on and closes it once the VMM is spawned: the claim is then the VMM's alone.

        Raises:
            Refused: It was taken already, or the launch has ended.
        """
        self._require_open()
        if self._log < 0:
            raise self._misuse("the log was taken already")
        log, self._log = self._log, -1
        return log

    def record_process(self, process: ProcessIdentity) -> None:
        """Write the VMM's identity into the journal, right after its spawn (620.scope2.b).

        After a crash the journal is whole, with or without the identity.

        Raises:
            Refused: It could not be written; the marker stands, and the caller ends its child.
        """
        self._require_open()
        journal = msgspec.structs.replace(self._journal, process=process, boot=None)
        self._write(names.JOURNAL, journal)
        self._journal = journal
        self._store.observe(Step.START_IDENTITY_RECORDED)

    def commit(self) -> RuntimeRecord:
        """Write the runtime record, then remove the journal: from here on the VMM is the sandbox's.

        A journal that can't be removed fails nothing, since its launch id is the record's; after a crash between
        the two, recovery removes it and touches no process.

        Raises:
            Refused: The record could not be written, or no process was recorded; the launch goes on.
        """
        self._require_open()
        if self._journal.process is None:
            raise self._misuse("no process was recorded")
        record = RuntimeRecord(
            format=FORMAT,
            launch_id=self._journal.launch_id,
            process=self._journal.process,
            endpoint=self._journal.endpoint,
            log=self._journal.log,
            identity=self._identity,
        )
        self._write(names.RUNTIME, record)
        self._end()
        self._store.observe(Step.START_RUNTIME_WRITTEN)
        with contextlib.suppress(NvxError):
            self._store.directory.remove(names.JOURNAL)
            self._store.observe(Step.START_JOURNAL_REMOVED)
        return record

    def abandon(self, *, child_exited: bool, deadline: Deadline | None = None) -> Recovery:
        """End the launch without a VMM.

        Args:
            child_exited: Whether the caller has seen the VMM's exit through its own hold, or never spawned one. If
                not, the launch is judged as recovery would judge it after a crash: a recorded process is verified
                and terminated, and without one only a free claim counts.
            deadline: By when that must have happened; None: 10 s.

        Returns:
            What became of the launch. Log and outcome report stay.

        Raises:
            Indeterminate: A VMM may still run; ``launch.json`` was kept for a later recovery.
            Refused: A file could not be removed; ``launch.json`` was kept.
        """
        self._require_open()
        self._close_log()
        if child_exited:
            cleanup.clear_launch(self._store.directory, names.JOURNAL)
            recovery = Recovery(Recovered.EXITED, self.launch_id, self._journal.process)
        else:
            recovery = recover(self._store, None, deadline)
        self._end()
        return recovery

    def _write(self, name: str, record: Journal | RuntimeRecord) -> None:
        # Not durable beyond its content: these records die with the boot, they only have to be whole.
        self._store.directory.replace(name, encode(record, self._store.path_of(name)), durable=False)

    def _require_open(self) -> None:
        self._store.require_held()
        if self._ended:
            raise self._misuse("the launch has ended already")

    def _misuse(self, reason: str) -> Refused:
        return Refused(reason, subject=f"launch {self.launch_id}", detail="launch-state")

    def _close_log(self) -> None:
        log, self._log = self._log, -1
        if log >= 0:
            let_go(log)

    def _end(self) -> None:
        self._ended = True
        self._close_log()


def begin(store: LockedStore, identity: RuntimeIdentity) -> Launch:
    """Begin a launch; see :meth:`nvx_ref.store.LockedStore.begin_launch`."""
    identity.validate()
    directory = store.directory
    _require_free(store)
    endpoint = endpoints.choose(directory.path)
    found = directory.stat(names.LOG)
    if found is not None and claim.settle(directory, found.id, store.deadline) is Claim.HELD:
        raise _claimed(store)
    cleanup.remove_stale(directory)
    store.observe(Step.START_STALE_REMOVED)
    log = -1
    try:
        capability = _capability()
        directory.create_new(names.CAPABILITY, capability)
        store.observe(Step.START_CAPABILITY_WRITTEN)
        log = directory.open_log(names.LOG)
        store.observe(Step.START_LOG_CREATED)
        _claim(store, log)
        store.observe(Step.START_LOG_CLAIMED)
        journal = Journal(
            format=FORMAT,
            launch_id=os.urandom(16).hex(),
            endpoint=endpoint,
            log=files.file_id(log),
            boot=system.boot_identity(),
        )
        directory.replace(names.JOURNAL, encode(journal, store.path_of(names.JOURNAL)), durable=False)
        store.observe(Step.START_MARKER_WRITTEN)
    except BaseException:
        if log >= 0:
            let_go(log)
        # The failure that led here is the one to report; nothing was spawned, so whatever stays is stale.
        with contextlib.suppress(NvxError):
            cleanup.clear_launch(directory, names.JOURNAL)
        raise
    return Launch(store, identity, journal, capability, log)


def _require_free(store: LockedStore) -> None:
    if store.directory.stat(names.JOURNAL) is not None:
        raise Refused(
            "an earlier launch isn't finished",
            subject=store.path_of(names.JOURNAL),
            hint="recover the sandbox first",
            detail="launch-unfinished",
        )
    if store.directory.stat(names.RUNTIME) is not None:
        raise AlreadyExists(
            "a VMM is recorded already",
            subject=store.path_of(names.RUNTIME),
            hint="reattach to it, or stop it",
            detail="running",
        )


def _capability() -> bytes:
    while True:
        capability = os.urandom(CAPABILITY_SIZE)
        if any(capability):
            return capability


def _claim(store: LockedStore, log: int) -> None:
    """Claim the log, then empty it: never before, since an unproven VMM may still write to it."""
    until = store.deadline.sooner(claim.CLAIM_WAIT)
    while not files.claim_log(log):
        if not until.pause():
            raise _claimed(store)
    if not files.names_file(store.directory, names.LOG, log):
        raise Refused(
            "it was replaced while it was being claimed", subject=store.path_of(names.LOG), detail="log-replaced"
        )
    files.truncate(log)


def _claimed(store: LockedStore) -> Indeterminate:
    return Indeterminate(
        "a process of an earlier launch still has it, so a VMM may run",
        subject=store.path_of(names.LOG),
        hint="find and end the process that has it open, then start again",
        detail="claim-held",
    )
