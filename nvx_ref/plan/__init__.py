"""The cold launch plan: typed and persistable, and the prepared launch that owns what it opened.

Nothing here reads image content. The CLI and external orchestrators plan through the same code; authorisation, image
resolution, transport and product policy stay theirs.
"""

from __future__ import annotations

from nvx_ref.plan.argv import MAX_PROCESS_LINE, PROCESS_LINE_RESERVE, disk_path
from nvx_ref.plan.exports import Access, ExportChild, ExportPlan, MapAction, Owner, Pin, check_exports
from nvx_ref.plan.hostpaths import Protected
from nvx_ref.plan.mappings import MappingPolicy, plan_mappings
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
from nvx_ref.plan.network import (
    Forward,
    NetworkMode,
    NetworkPlan,
    NetworkPolicy,
    parse_forward,
    parse_proxy,
    plan_network,
    read_policy,
)
from nvx_ref.plan.prepared import Command, PreparedLaunch, check_command, prepare
from nvx_ref.plan.rules import Protocol, Rule, parse_rule
from nvx_ref.plan.shares import Share, parse_share, plan_shares
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
    "ExportChild",
    "ExportPlan",
    "Forward",
    "Guest",
    "GuestKind",
    "Hypervisor",
    "Lifecycle",
    "Limits",
    "Machine",
    "MapAction",
    "MappingPolicy",
    "NetworkMode",
    "NetworkPlan",
    "NetworkPolicy",
    "Owner",
    "Pin",
    "PreparedLaunch",
    "Protected",
    "Protocol",
    "Rule",
    "Share",
    "Upper",
    "Workload",
    "caller_text",
    "check_command",
    "check_exports",
    "decode_plan",
    "disk_path",
    "encode_plan",
    "explain",
    "json_schema",
    "layer_token",
    "parse_forward",
    "parse_proxy",
    "parse_rule",
    "parse_share",
    "plan_mappings",
    "plan_network",
    "plan_shares",
    "prepare",
    "read_policy",
]
