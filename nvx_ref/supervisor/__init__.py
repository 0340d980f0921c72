"""The supervisor of one VMM: launch, wait, stop, reattach. It owns no control session: callers bring their own."""

from __future__ import annotations

from nvx_ref.supervisor.command import Inherited, VmmCommand
from nvx_ref.supervisor.probe import peer_probe
from nvx_ref.supervisor.reattach import inspect, reattach
from nvx_ref.supervisor.results import (
    Exited,
    Forced,
    Graceful,
    Indeterminate,
    Live,
    Mismatched,
    Stopped,
    TimedOut,
    Verdict,
)
from nvx_ref.supervisor.starting import Starting, launch
from nvx_ref.supervisor.vmm import Vmm

__all__ = [
    "Exited",
    "Forced",
    "Graceful",
    "Indeterminate",
    "Inherited",
    "Live",
    "Mismatched",
    "Starting",
    "Stopped",
    "TimedOut",
    "Verdict",
    "Vmm",
    "VmmCommand",
    "inspect",
    "launch",
    "peer_probe",
    "reattach",
]
