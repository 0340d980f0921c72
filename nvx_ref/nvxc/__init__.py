"""NVXC: the application protocol of NVX's guest agent, an adapter over an NVXS session (contract openvmm 3.6)."""

from __future__ import annotations

from nvx_ref.errors import GuestRefused
from nvx_ref.nvxc.client import Channel, NvxcClient, random_request_id
from nvx_ref.nvxc.frame import Frame, Kind, decode_frame, decode_reply, encode_frame
from nvx_ref.nvxc.requests import ExecRequest, MapEntry, encode_exec, encode_maps
from nvx_ref.nvxc.results import ExecResult, Feature, Stream, Unsupported

__all__ = [
    "Channel",
    "ExecRequest",
    "ExecResult",
    "Feature",
    "Frame",
    "GuestRefused",
    "Kind",
    "MapEntry",
    "NvxcClient",
    "Stream",
    "Unsupported",
    "decode_frame",
    "decode_reply",
    "encode_exec",
    "encode_frame",
    "encode_maps",
    "random_request_id",
]
