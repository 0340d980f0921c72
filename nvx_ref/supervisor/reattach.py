"""Finding the VMM again after the orchestrator restarted, and looking at it without a lock.

The verdicts, first match:

- a journal whose launch isn't the record's is judged first, by recovery;
- record of an earlier boot: exited, nothing is probed;
- record of another PID namespace: exited if the log's claim is free, else indeterminate;
- record unreadable, process denied or hidden, no way to hold it: indeterminate;
- process gone, its number another's, or ended: exited;
- verified, of a record that was copied here from another directory: indeterminate;
- verified, and a part of the runtime identity differs: mismatched;
- verified, same runtime identity: live;
- neither journal nor record: exited, unless some process has the log's claim, which is indeterminate.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nvx_ref import errors
from nvx_ref.steps import Step
from nvx_ref.store import Claim, Recovered, Recovery, evidence
from nvx_ref.supervisor.results import Exited, Indeterminate, Live, Mismatched, Verdict
from nvx_ref.supervisor.vmm import Vmm

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.deadline import Deadline
    from nvx_ref.process import ProcessRef
    from nvx_ref.store import Journal, LockedStore, Probe, Reader, RuntimeIdentity, RuntimeRecord, Store

UNFINISHED = "launch-unfinished"
"""The ``detail`` of a launch that somebody began, and whose VMM may run."""

_LOOKS = 8


def reattach(
    locked: LockedStore, identity: RuntimeIdentity, probe: Probe | None = None, *, deadline: Deadline
) -> Verdict:
    """Find the sandbox's VMM again, within the same host boot (620.scope3.k, l).

    An interrupted launch is ended first, which may terminate its verified VMM. Nothing unverified is signalled, the
    guest isn't spoken to, and Start and MAPS aren't replayed (620.notscope.a). After a crash the next reattach
    starts over.

    Args:
        locked: The sandbox.
        identity: The caller's own runtime identity, to be compared with the record's.
        probe: As for :meth:`LockedStore.recover`.
        deadline: By when.

    Returns:
        ``Live``, ``Mismatched`` with what differs, ``Exited`` with the record that was cleared, or ``Indeterminate``
        with every record kept.

    Raises:
        Malformed: The caller's identity has an empty part. Nothing was done.
        Refused: The lock isn't held; or the record of an exited VMM can't be removed.
    """
    identity.validate()
    locked.require_held()
    try:
        recovery = locked.recover(probe, deadline=deadline)
        record = locked.runtime()
        found = None if record is None else _examine(locked, record, deadline)
        if record is None and recovery.kind is Recovered.NOTHING:
            evidence.require_unclaimed(locked.directory, deadline)
    except (errors.Indeterminate, errors.Malformed, errors.Refused) as error:
        return _unknown(error)
    if record is None or found is None:
        if record is not None:
            locked.clear_runtime(record.launch_id, step=Step.RECOVER_CLEARED)
        return Exited(record, None if recovery.kind is Recovered.NOTHING else recovery)
    return _compare(found, record, identity, locked, locked.relock)


def inspect(store: Store, name: str, identity: RuntimeIdentity) -> Verdict:
    """Look at a sandbox without its lock: nothing is recovered, cleared, waited for or said to anybody.

    Args:
        store: The store.
        name: The sandbox.
        identity: The caller's own runtime identity.

    Returns:
        As :func:`reattach`, at this instant: an unfinished launch that may run is ``Indeterminate``
        (``launch-unfinished``), and what an ``Exited`` carries is still there.

    Raises:
        NotFound: There is no such directory.
        Malformed: The caller's identity has an empty part.
        Refused: The name isn't one, or something else is there.
    """
    identity.validate()
    with store.peek(name) as reader:
        try:
            journal, record = _snapshot(reader)
            recovery = None
            if journal is not None and (record is None or record.launch_id != journal.launch_id):
                _require_finished(reader, journal)
                recovery = Recovery(Recovered.EXITED, journal.launch_id, journal.process)
            found = None if record is None else _examine(reader, record, None)
            if record is None and journal is None:
                evidence.require_unclaimed(reader.directory, None)
        except (errors.Indeterminate, errors.Malformed, errors.Refused) as error:
            return _unknown(error)
    if record is None or found is None:
        return Exited(record, recovery)
    return _compare(found, record, identity, None, partial(_relock, store, name))


def _relock(store: Store, name: str, deadline: Deadline) -> LockedStore:
    return store.lock_existing(name, deadline=deadline)


def _examine(reader: Reader, record: RuntimeRecord, deadline: Deadline | None) -> ProcessRef | None:
    return evidence.examine(reader.directory, record.process, record.log, record.endpoint, deadline)


def _compare(
    found: ProcessRef,
    record: RuntimeRecord,
    identity: RuntimeIdentity,
    locked: LockedStore | None,
    relock: Callable[[Deadline], LockedStore],
) -> Live | Mismatched:
    parts = record.check_identity(identity)
    vmm = Vmm(found, record, locked, relock, silent=bool(parts))
    return Mismatched(vmm, parts) if parts else Live(vmm)


def _snapshot(reader: Reader) -> tuple[Journal | None, RuntimeRecord | None]:
    """Read both records as they were together.

    The journal comes first, so that a commit in between is seen by its record; and it is read again, since a journal
    that was finished meanwhile must not be compared with the next launch's record.
    """
    journal = reader.journal()
    for _ in range(_LOOKS):
        record = reader.runtime()
        again = reader.journal()
        if again == journal:
            return journal, record
        journal = again
    return journal, reader.runtime()


def _require_finished(reader: Reader, journal: Journal) -> None:
    """Raise unless a launch that isn't committed has provably exited."""
    if evidence.is_of_earlier_boot(journal):
        return
    if journal.process is not None:
        found = evidence.examine(reader.directory, journal.process, journal.log, journal.endpoint, None)
        if found is None:
            return
        found.close()
    else:
        state = reader.look_at_claim(journal.log)
        if state is Claim.FREE:
            return
        if state is Claim.UNPROVEN:
            raise errors.Indeterminate(
                "an unfinished launch recorded no process, and its log is missing or was replaced",
                subject=reader.path,
                detail="log-replaced",
            )
    raise errors.Indeterminate("a launch of it was begun and isn't finished", subject=reader.path, detail=UNFINISHED)


def _unknown(error: errors.NvxError) -> Indeterminate:
    return Indeterminate(str(error), error.detail)
