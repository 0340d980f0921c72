"""The outcome report that a VMM publishes as it ends (contract openvmm section 4)."""

from __future__ import annotations

from typing import Literal

import msgspec

from nvx_ref.errors import Malformed


class Outcome(msgspec.Struct, frozen=True):
    """How a VMM's run ended, in its own words.

    Args:
        operation: ``run`` or ``managed``.
        category: ``success``, ``guest-exit``, ``vmm-failure`` or ``teardown-failure``.
        status_code: The status that goes with it.
    """

    operation: str
    category: str
    status_code: int


class _Report(msgspec.Struct, frozen=True):
    schema_version: Literal[1]
    outcome: Outcome
    network_policy: dict[str, object]
    teardown: dict[str, object]


def decode_outcome(raw: bytes, subject: str) -> Outcome:
    """Read a report; keys that a newer VMM adds are ignored.

    Args:
        raw: The file's bytes, bounded by whoever read it.
        subject: The file, for the error.

    Raises:
        Malformed: It isn't a report of schema 1.
    """
    try:
        return msgspec.json.decode(raw, type=_Report).outcome
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Malformed(f"not an outcome report: {str(error)[:200]}", subject=subject, detail="report") from None
