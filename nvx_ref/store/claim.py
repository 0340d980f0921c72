"""The claim on the log: what proves that no process of a launch is left, without any process number.

The VMM inherits the claimed descriptor, so the claim is held for as long as the VMM, or anything it started, has
its log. It counts on the very file that was claimed: a missing, replaced or rotated log proves nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nvx_ref.platform import files
from nvx_ref.store import names

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline
    from nvx_ref.platform.contract import FileId

CLAIM_WAIT = 1.0
"""Seconds for which a claim found held is looked at again: another thread's child holds copies until its exec."""


class Claim(StrEnum):
    """What a look at a log's claim proves."""

    FREE = "free"
    """No process of the launch has its log any more."""
    HELD = "held"
    """Some process has it."""
    UNPROVEN = "unproven"
    """The log is missing, or isn't the file that was claimed."""


def look(directory: files.Directory, log: FileId) -> Claim:
    """Look once, with a try-lock that leaves no trace."""
    held = files.claim_is_held(directory, names.LOG, log)
    if held is None:
        return Claim.UNPROVEN
    return Claim.HELD if held else Claim.FREE


def settle(directory: files.Directory, log: FileId, deadline: Deadline) -> Claim:
    """Look until the claim isn't held, every 25 ms for up to :data:`CLAIM_WAIT` or the deadline (656.recheck)."""
    until = deadline.sooner(CLAIM_WAIT)
    while (claim := look(directory, log)) is Claim.HELD and until.pause():
        pass
    return claim
