"""NVXS: the record layer between a host and OpenVMM's broker (contract openvmm 3.3 to 3.5).

It carries opaque payloads for whichever application protocol runs on top, and knows none of them.
"""

from __future__ import annotations

from nvx_ref.session.driver import DuplexTransport, SessionDriver, Transport
from nvx_ref.session.host import Closed, Data, Event, Failed, HostSession, Ready, State, Waiting
from nvx_ref.session.parser import RecordParser
from nvx_ref.session.record import CAPABILITY_SIZE, MAX_DATA, Record, RecordType, encode

__all__ = [
    "CAPABILITY_SIZE",
    "MAX_DATA",
    "Closed",
    "Data",
    "DuplexTransport",
    "Event",
    "Failed",
    "HostSession",
    "Ready",
    "Record",
    "RecordParser",
    "RecordType",
    "SessionDriver",
    "State",
    "Transport",
    "Waiting",
    "encode",
]
