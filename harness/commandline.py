"""Where the bytes of a guest's kernel command line go, by the family of its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CALLER = "caller"
JOINTS = "spaces and NUL"

FAMILIES = {
    "earlycon": "console",
    "console": "console",
    "reboot": "console",
    "panic": "console",
    "nr_cpus": "machine",
    "tsc_early_khz": "machine",
    "lapic_timer_hz": "machine",
    "driver_async_probe": "machine",
    "virtio_mmio.device": "devices",
    "nvx_control_tty": "devices",
    "nvx_lifecycle": "machine",
    "nvx_workload_uid": "machine",
    "nvx_workload_gid": "machine",
    "nvx_snapshot_tier": "machine",
}
"""The family of each token that has a name of its own; see :data:`PREFIXES` for the others."""

PREFIXES = {"virtnet_": "network", "virtfs_": "shares", "nvx_": "sandbox"}


def longest(lines: Iterable[str | None]) -> dict[str, int]:
    """Return the bytes of the longest of some command lines, by family; none where none was seen."""
    seen = [line for line in lines if line]
    return measure(max(seen, key=lambda line: len(line.encode()))) if seen else {}


def measure(line: str) -> dict[str, int]:
    """Return the bytes of a command line by family; their sum is its length and the NUL."""
    tokens = line.split(" ")
    found: dict[str, int] = {}
    for token in tokens:
        if token:
            name = family(token)
            found[name] = found.get(name, 0) + len(token.encode())
    # As many spaces as tokens but one, empty tokens between two spaces included, and the NUL.
    return {**found, JOINTS: len(tokens)}


def family(token: str) -> str:
    """Return the family of one token; whatever has no name here is the caller's text."""
    key = token.partition("=")[0]
    by_prefix = (name for prefix, name in PREFIXES.items() if key.startswith(prefix))
    return FAMILIES.get(key) or next(by_prefix, CALLER)
