"""What guests found that are Linux itself, as the report tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.backends.contract import GuestFacts, TestSide


def found(side: TestSide) -> list[dict[str, object]]:
    """Return what the guests of a test found, each once; nothing of a guest that is a model."""
    told = [described for vm in side.vms() if (described := _described(side.guest_facts(vm)))]
    return [one for place, one in enumerate(told) if one not in told[:place]]


def _described(facts: GuestFacts) -> dict[str, object]:
    if facts.kernel is None:
        return {}
    return {
        "kernel": facts.kernel,
        "format": facts.image_format or "",
        "upper": facts.upper or "",
        "identity": facts.identity or "",
        "blockSize": facts.block_size or 0,
        "scratch": facts.scratch is True,
        "commandLine": facts.command_line or "",
        "mounts": (facts.mounts or "").splitlines(),
    }
