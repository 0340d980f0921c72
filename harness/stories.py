"""What happened in a test, on one axis: what was asked, what orchestrators said, what VMMs noted, what was found.

All of it is on the machine's monotonic clock. What an orchestrator said has the moment at which the harness read it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from harness.backends.contract import Vm
    from harness.table import Moment

LIMIT = 400
"""Moments that a story has at most: its end is what matters."""

TEXT = 200
"""Characters of a moment at most."""

WITNESS = "witness"
MICROSECOND = 1000


@runtime_checkable
class Storyteller(Protocol):
    """A run of a VMM that tells when what happened in it."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    def moments(self) -> list[tuple[int, str]]:
        """Return what happened, each with nanoseconds of the monotonic clock."""
        ...


def tell(
    told: Iterable[Moment], vms: Iterable[Vm], finding: str, redact: Callable[[bytes], bytes]
) -> list[tuple[int, str, str]]:
    """Return a story.

    Args:
        told: Moments of the harness and of orchestrators, in nanoseconds.
        vms: The runs of VMMs; those that tell nothing are left out.
        finding: What was found at the end.
        redact: Takes secrets out.

    Returns:
        Moments in order, in microseconds since the first one.
    """
    found = [*told]
    for vm in vms:
        if isinstance(vm, Storyteller):
            found += [(when, f"VMM {vm.pid}", what) for when, what in vm.moments()]
    found = [*sorted(found, key=lambda moment: moment[0]), (time.monotonic_ns(), WITNESS, finding)]
    begin = found[0][0]
    return [((when - begin) // MICROSECOND, who, clean(what, redact)) for when, who, what in found[-LIMIT:]]


def clean(text: str, redact: Callable[[bytes], bytes], *, limit: int | None = TEXT) -> str:
    """Return a text without secrets, and no longer than a limit, if there is one."""
    told = redact(text.encode(errors="surrogateescape")).decode(errors="replace")
    return told if limit is None or len(told) <= limit else f"{told[: limit - 1]}…"
