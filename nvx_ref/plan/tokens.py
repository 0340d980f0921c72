"""Boot tokens, and the budget that they must fit in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import Refused
from nvx_ref.plan.exports import export_fragment, share_tokens
from nvx_ref.plan.model import GuestKind, Upper

if TYPE_CHECKING:
    from nvx_ref.images import ImageFormat
    from nvx_ref.plan.model import Blocks, ColdPlan

CALLER_BUDGET = 1024
"""Bytes of caller text, share fragment and NUL: 2,048 that the guest kernel reads, less a reserve for OpenVMM's own."""

DISTRO_BASE = "0xd0003000"
SCRATCH_BASE = "0xd0006000"


class BudgetPart(msgspec.Struct, frozen=True, rename="camel"):
    """What one part takes of the budget.

    Args:
        name: The plan's field, or who adds it.
        text: The bytes that it adds, its leading space included.
        size: How many they are.
    """

    name: str
    text: str
    size: int


class Budget(msgspec.Struct, frozen=True, rename="camel"):
    """Where each byte of the caller's budget goes.

    Args:
        text: The caller text, as ``--cmdline`` gets it.
        parts: In their order; their sizes add up to ``used``.
        used: In bytes, NUL and share fragment included.
        limit: In bytes.
    """

    text: str
    parts: tuple[BudgetPart, ...]
    used: int
    limit: int = CALLER_BUDGET


def layer_token(image_format: ImageFormat, identity: str | None) -> str:
    """Return the token that names the distro: its slot, its format and, where known, its identity (622.scope2.c)."""
    return f"nvx_layer=distro,{DISTRO_BASE},{image_format.value}" + (f":{identity}" if identity else "")


def explain(plan: ColdPlan) -> Budget:
    """Render a plan's caller text, and say where each byte of the budget goes. Refuses nothing.

    Args:
        plan: A valid plan.
    """
    parts: list[BudgetPart] = []
    text = ""
    for name, token in _tokens(plan):
        piece = f" {token}" if text else token
        text += piece
        parts.append(BudgetPart(name, piece, len(piece.encode())))
    if plan.exports is not None:
        fragment = export_fragment(plan.exports)
        parts.append(BudgetPart("OpenVMM: share", fragment, len(fragment.encode())))
    parts.append(BudgetPart("end of line", "\0", 1))
    return Budget(text, tuple(parts), sum(part.size for part in parts))


def caller_text(plan: ColdPlan) -> str:
    """Return what ``--cmdline`` gets.

    Raises:
        Refused: It is over the budget (``detail="budget"``); nothing has been written or started by then.
    """
    budget = explain(plan)
    if budget.used > budget.limit:
        raise Refused(
            f"the caller's part is {budget.used} bytes with its NUL, over the budget of {budget.limit}",
            subject="command line",
            hint="shorten it; run --dry-run --explain shows where each byte goes",
            detail="budget",
        )
    return budget.text


def _tokens(plan: ColdPlan) -> list[tuple[str, str]]:
    guest = plan.guest
    tokens: list[tuple[str, str]] = []
    if extra := guest.extra.strip(" "):
        tokens.append(("extra", extra))
    if guest.kind is GuestKind.DIRECT:
        tokens.append(("hostname", f"hostname={guest.hostname}"))
        if guest.create_account:
            tokens.append(("account", "nvx_workload_account=create"))
        return tokens + _mapping_tokens(plan)
    tokens.append(("guest kind", "nvx_sandbox=1"))
    if plan.blocks:
        tokens.extend(_block_tokens(plan.blocks))
    tokens.append(("entrypoint", f"nvx_entrypoint={guest.entrypoint}"))
    tokens.append(("hostname", f"nvx_hostname={guest.hostname}"))
    tokens.extend(("arguments", f"nvx_arg={argument}") for argument in guest.arguments)
    if plan.limits.memory_max is not None:
        tokens.append(("memory limit", f"nvx_memory_max={plan.limits.memory_max}"))
    if plan.limits.pids_max is not None:
        tokens.append(("process limit", f"nvx_pids_max={plan.limits.pids_max + 1}"))
    if plan.exports is not None:
        tokens.extend(("shares", token) for token in share_tokens(plan.exports))
    return tokens + _mapping_tokens(plan)


def _mapping_tokens(plan: ColdPlan) -> list[tuple[str, str]]:
    count = len(plan.exports.mappings) if plan.exports is not None else 0
    return [("mappings", f"nvx_maps={count}")] if count else []


def _block_tokens(blocks: Blocks) -> list[tuple[str, str]]:
    upper = f"nvx_scratch={SCRATCH_BASE},ext4" if blocks.upper is Upper.EXT4 else "nvx_overlay_upper=ramfs"
    return [("distro", layer_token(blocks.format, blocks.identity)), ("upper", upper)]
