"""The one vocabulary of steps.

The code announces these, the harness crashes at them, and failures, cell ids and goldens print them. An observer is
called *after* the step has happened; it may end the process there, which is what the harness does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """What an operation has just done; the value is ``operation.step``."""

    PROVISION_LOCKED = "provision.locked"
    PROVISION_DIRECTORY = "provision.directory"
    PROVISION_BINDING = "provision.binding"
    PROVISION_CONFIGURATION = "provision.configuration"

    START_LOCKED = "start.locked"
    START_RECOVERED = "start.recovered"
    START_INPUTS_CHECKED = "start.inputs_checked"
    START_POLICY_AUTHORISED = "start.policy_authorised"
    START_STALE_REMOVED = "start.stale_removed"
    START_CAPABILITY_WRITTEN = "start.capability_written"
    START_LOG_CREATED = "start.log_created"
    START_LOG_CLAIMED = "start.log_claimed"
    START_MARKER_WRITTEN = "start.marker_written"
    START_SPAWNED = "start.spawned"
    START_IDENTITY_RECORDED = "start.identity_recorded"
    START_ENDPOINT_UP = "start.endpoint_up"
    START_SESSION_READY = "start.session_ready"
    START_MAPS_APPLIED = "start.maps_applied"
    START_RUNTIME_WRITTEN = "start.runtime_written"
    START_JOURNAL_REMOVED = "start.journal_removed"

    FAILED_START_REPORT_AWAITED = "failed_start.report_awaited"
    FAILED_START_ABANDONED = "failed_start.abandoned"

    STOP_LOCKED = "stop.locked"
    STOP_REQUESTED = "stop.requested"
    STOP_EXITED = "stop.exited"
    STOP_FORCED = "stop.forced"
    STOP_RECORD_CLEARED = "stop.record_cleared"

    RECOVER_PROBED = "recover.probed"
    RECOVER_VERIFIED = "recover.verified"
    RECOVER_TERMINATED = "recover.terminated"
    RECOVER_CLEARED = "recover.cleared"

    REMOVAL_LOCKED = "removal.locked"
    REMOVAL_CHECKED = "removal.checked"
    REMOVAL_FILE = "removal.file"
    REMOVAL_LOCK_UNLINKED = "removal.lock_unlinked"
    REMOVAL_DIRECTORY = "removal.directory"


Observer = Callable[[Step], None]
"""Called with each step once it has happened."""


def ignore(_step: Step) -> None:
    """Observe nothing: the default, which costs one call."""
