"""What each step means to a reader: the texts of `docs/launch.md`."""

from __future__ import annotations

from nvx_ref.steps import Step

OPERATIONS = {
    "provision": "A sandbox's directory is made, and what it will boot from is written down. Nothing runs.",
    "start": "A VM monitor is launched. Each trace is on the disk before the thing that it is the trace of.",
    "failed_start": "A guest gave up before it was ready. The VM monitor is ended; its log and report stay to be read.",
    "stop": "The guest is asked; force is another request, with a bound of its own.",
    "recover": "Whatever comes next ends a launch that was cut short, before it does anything else.",
    "removal": "Deprovisioning takes everything away, the lock and the directory last.",
}
"""What an operation is about, by the first part of its steps' names."""

TEXTS = {
    Step.PROVISION_DIRECTORY: "The directory is there, for its owner alone.",
    Step.PROVISION_LOCKED: "The lifecycle lock is held: one transition at a time.",
    Step.PROVISION_BINDING: "The images are the ones that were verified; nothing of them was read.",
    Step.PROVISION_CONFIGURATION: "The configuration is on the disk, and survives a loss of power.",
    Step.START_LOCKED: "The lifecycle lock is held.",
    Step.START_RECOVERED: "No earlier launch is open, and no VM monitor of this sandbox runs.",
    Step.START_INPUTS_CHECKED: "Images, kernel and initramfs are open and checked; what is open is what will boot.",
    Step.START_POLICY_AUTHORISED: "The caller's policy has said yes.",
    Step.START_STALE_REMOVED: "What the last run left is gone: its socket, its report, its staging files.",
    Step.START_CAPABILITY_WRITTEN: "A fresh secret for the control connection is in its file.",
    Step.START_LOG_CREATED: "The log is open, and not emptied yet.",
    Step.START_LOG_CLAIMED: "The log is claimed by a lock that the VM monitor will inherit, then emptied.",
    Step.START_MARKER_WRITTEN: "The journal says that a launch has begun, and which log is its own.",
    Step.START_SPAWNED: "The VM monitor runs, with the log's claim, the checked files and nothing else of ours.",
    Step.START_IDENTITY_RECORDED: "The journal says which process it is.",
    Step.START_ENDPOINT_UP: "Something answers at the endpoint, and the kernel says that it is that process.",
    Step.START_SESSION_READY: "Both sides have proven that they know the secret.",
    Step.START_MAPS_APPLIED: "Every mapping is made, in order.",
    Step.START_RUNTIME_WRITTEN: "The launch is committed: the runtime record names the process and its release.",
    Step.START_JOURNAL_REMOVED: "The journal is gone, since the record says it all.",
    Step.FAILED_START_REPORT_AWAITED: "The VM monitor's report of the failure has come, or won't.",
    Step.FAILED_START_ABANDONED: "The VM monitor has exited, and the launch's records are gone.",
    Step.STOP_LOCKED: "The lifecycle lock is held, and the VM monitor is verified.",
    Step.STOP_REQUESTED: "The guest was asked to power off.",
    Step.STOP_FORCED: "The verified process was ended through the hold on it, since the caller asked for that.",
    Step.STOP_EXITED: "The VM monitor has exited.",
    Step.STOP_RECORD_CLEARED: "The runtime record is gone, after everything else of the run.",
    Step.RECOVER_PROBED: "It is known whether a process of the open launch is left.",
    Step.RECOVER_VERIFIED: "There is one, and it is that launch's: by its identity, or by its endpoint and its log.",
    Step.RECOVER_TERMINATED: "It was ended, and its exit has been seen.",
    Step.RECOVER_CLEARED: "The records of what has exited are gone.",
    Step.REMOVAL_LOCKED: "The lifecycle lock is held.",
    Step.REMOVAL_CHECKED: "Nothing runs, and every entry of the directory is one that belongs there.",
    Step.REMOVAL_FILE: "One more file is gone; this step comes once for each.",
    Step.REMOVAL_LOCK_UNLINKED: "The lock's file is gone; who still waits for it starts over.",
    Step.REMOVAL_DIRECTORY: "The directory is gone.",
}
"""What has just happened at each step, in the order in which an operation passes them."""
