"""Recovery: what an interrupted launch left, judged by evidence alone, and ended only once verified."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.deadline import POLL_INTERVAL, Deadline
from nvx_ref.errors import Indeterminate, NvxError, Refused
from nvx_ref.platform.contract import ProcessIdentity
from nvx_ref.process import ProcessRef
from nvx_ref.steps import Step
from nvx_ref.store import claim, cleanup, evidence, names
from nvx_ref.store.claim import Claim

if TYPE_CHECKING:
    from nvx_ref.platform.contract import FileId
    from nvx_ref.store.locked import LockedStore
    from nvx_ref.store.records import Journal

RECOVERY_WAIT = 10.0
"""Seconds that recovery waits for the exit of a VMM that it ended, unless its caller says otherwise."""

Probe = Callable[[str, Deadline], ProcessRef | None]
"""Asks an endpoint who serves it: the caller's transport, the kernel's answer.

It gets the endpoint and a short deadline, makes one try, and returns a reference to the process at the other end, or
None. Whether that process is the launch's VMM isn't taken from it: it must have the launch's log as its standard
output or error. A probe that fails proves nothing.
"""


class Recovered(StrEnum):
    """What recovery found."""

    NOTHING = "nothing"
    """No launch was interrupted."""
    COMPLETED = "completed"
    """The commit was cut short after its record: the journal went, the VMM was left alone."""
    EXITED = "exited"
    """No process of the launch was left."""
    TERMINATED = "terminated"
    """Its VMM was verified, ended, and seen to exit."""


class Recovery(msgspec.Struct, frozen=True):
    """The result of a recovery.

    Args:
        kind: What it found.
        launch_id: The interrupted launch.
        process: Its VMM, where its identity was recorded or proven.
    """

    kind: Recovered
    launch_id: str | None = None
    process: ProcessIdentity | None = None


def recover(store: LockedStore, probe: Probe | None, deadline: Deadline | None) -> Recovery:
    """Finish an interrupted launch; see :meth:`nvx_ref.store.LockedStore.recover`."""
    journal = store.journal()
    if journal is None:
        return Recovery(Recovered.NOTHING)
    runtime = store.runtime()
    if runtime is not None and runtime.launch_id == journal.launch_id:
        with contextlib.suppress(Refused):
            store.directory.remove(names.JOURNAL)
            store.observe(Step.RECOVER_CLEARED)
        return Recovery(Recovered.COMPLETED, runtime.launch_id, runtime.process)
    until = Deadline.after(RECOVERY_WAIT) if deadline is None else deadline
    try:
        found = _find(store, journal, probe, until)
        process = journal.process if found is None else found.identity
        if found is not None:
            store.observe(Step.RECOVER_VERIFIED)
            _end(store, found, until)
    except Indeterminate as error:
        raise _kept(store, error) from error
    if runtime is None:
        cleanup.clear_launch(store.directory, names.JOURNAL)
    else:
        # An older record is still to be judged, and what else is there may be its VMM's.
        store.directory.remove(names.JOURNAL)
    store.observe(Step.RECOVER_CLEARED)
    return Recovery(Recovered.EXITED if found is None else Recovered.TERMINATED, journal.launch_id, process)


def _find(store: LockedStore, journal: Journal, probe: Probe | None, deadline: Deadline) -> ProcessRef | None:
    """Return the launch's verified VMM, or None if it has provably exited."""
    if evidence.is_of_earlier_boot(journal):
        found = None
    elif journal.process is None:
        found = _find_unrecorded(store, journal, probe, deadline)
    else:
        found = evidence.examine(store.directory, journal.process, journal.log, journal.endpoint, deadline)
    store.observe(Step.RECOVER_PROBED)
    return found


def _find_unrecorded(
    store: LockedStore, journal: Journal, probe: Probe | None, deadline: Deadline
) -> ProcessRef | None:
    until = deadline.sooner(claim.CLAIM_WAIT)
    if evidence.is_copied(store.directory, journal.log, journal.endpoint):
        # Whoever serves that endpoint and has that log is the original's.
        probe = None
    while True:
        state = store.look_at_claim(journal.log)
        if state is Claim.FREE:
            return None
        if probe is not None:
            found = _ask(probe, journal, until)
            if found is not None:
                return found
        if (state is Claim.UNPROVEN and probe is None) or not until.pause():
            break
    if state is Claim.UNPROVEN:
        raise Indeterminate(
            "the launch recorded no process, and its log is missing or was replaced, so nothing tells whether a VMM "
            "runs",
            detail="log-replaced",
        )
    raise Indeterminate(
        "the launch recorded no process, and some process still has its log, so a VMM may run", detail="claim-held"
    )


def _ask(probe: Probe, journal: Journal, deadline: Deadline) -> ProcessRef | None:
    try:
        found = probe(journal.endpoint, deadline.sooner(POLL_INTERVAL))
    except NvxError:
        return None
    if found is None or _has_log(found, journal.log):
        return found
    found.close()
    return None


def _has_log(found: ProcessRef, log: FileId) -> bool:
    try:
        return found.holds_output(log)
    except NvxError:
        return False


def _end(store: LockedStore, found: ProcessRef, deadline: Deadline) -> None:
    with found:
        try:
            found.terminate()
        except Refused as error:
            raise Indeterminate(f"the VMM could not be ended: {error}", detail="denied") from error
        if not found.wait(deadline):
            raise Indeterminate(
                f"the VMM (process {found.identity.pid}) was ended and hasn't exited yet", detail="exit-pending"
            )
    store.observe(Step.RECOVER_TERMINATED)


def _kept(store: LockedStore, error: Indeterminate) -> Indeterminate:
    return Indeterminate(
        error.reason,
        subject=store.path_of(names.JOURNAL),
        hint=error.hint or "the launch is kept; once its process has exited, the next transition clears it",
        detail=error.detail,
    )
