"""The cold launch plan: typed and persistable, and the prepared launch that owns what it opened.

Nothing here reads image content. The CLI and external orchestrators plan through the same code; authorisation, image
resolution, transport and product policy stay theirs.
"""

from __future__ import annotations

from nvx_ref.plan.argv import MAX_PROCESS_LINE, PROCESS_LINE_RESERVE, disk_path
from nvx_ref.plan.model import (
    Blocks,
    ColdPlan,
    Guest,
    GuestKind,
    Hypervisor,
    Lifecycle,
    Limits,
    Machine,
    Upper,
    Workload,
    decode_plan,
    encode_plan,
    json_schema,
)
from nvx_ref.plan.network import NetworkMode, NetworkPolicy
from nvx_ref.plan.prepared import Command, PreparedLaunch, prepare
from nvx_ref.plan.shares import Access, Owner, Share
from nvx_ref.plan.tokens import CALLER_BUDGET, Budget, BudgetPart, caller_text, explain, layer_token

__all__ = [
    "CALLER_BUDGET",
    "MAX_PROCESS_LINE",
    "PROCESS_LINE_RESERVE",
    "Access",
    "Blocks",
    "Budget",
    "BudgetPart",
    "ColdPlan",
    "Command",
    "Guest",
    "GuestKind",
    "Hypervisor",
    "Lifecycle",
    "Limits",
    "Machine",
    "NetworkMode",
    "NetworkPolicy",
    "Owner",
    "PreparedLaunch",
    "Share",
    "Upper",
    "Workload",
    "caller_text",
    "decode_plan",
    "disk_path",
    "encode_plan",
    "explain",
    "json_schema",
    "layer_token",
    "prepare",
]
