"""The sandbox store: layout, records, lifecycle lock, launch journal, recovery and removal."""

from __future__ import annotations

from nvx_ref.platform.contract import FileId, ProcessIdentity
from nvx_ref.store.claim import Claim
from nvx_ref.store.identity import IdentityPart, RuntimeIdentity
from nvx_ref.store.launch import Launch
from nvx_ref.store.locked import LockedStore
from nvx_ref.store.names import CallerFiles
from nvx_ref.store.reader import Reader
from nvx_ref.store.records import Journal, RuntimeRecord
from nvx_ref.store.recovery import Probe, Recovered, Recovery
from nvx_ref.store.store import Store

__all__ = [
    "CallerFiles",
    "Claim",
    "FileId",
    "IdentityPart",
    "Journal",
    "Launch",
    "LockedStore",
    "Probe",
    "ProcessIdentity",
    "Reader",
    "Recovered",
    "Recovery",
    "RuntimeIdentity",
    "RuntimeRecord",
    "Store",
]
