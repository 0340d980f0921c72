"""What a guest's answers are to the caller: features, how a program ended, and refusals."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from nvx_ref.errors import GuestRefused
from nvx_ref.nvxc.frame import category

if TYPE_CHECKING:
    from nvx_ref.nvxc.frame import Frame, Kind

UNSUPPORTED = 95
"""The status of an ERROR from a guest that doesn't know the request."""

Stream = Literal["stdout", "stderr"]


class Feature(IntFlag):
    """Bits of a guest's feature mask. A bit that isn't named here stays in the mask.

    A layered guest takes a working directory without announcing it.
    """

    CANCEL = 1 << 0
    WORKLOAD_ACCOUNT = 1 << 2
    EXEC_CGROUP = 1 << 3
    EXEC_ENVIRONMENT = 1 << 4
    EXEC_CWD = 1 << 5
    MAPPING_TABLE = 1 << 6


class ExecResult(Struct, frozen=True):
    """How an EXEC ended.

    Args:
        category: ``exit``, ``signal``, ``timeout``, ``output-limit``, ``failed`` or ``cancelled``; for a request that
            the guest refused, the word of its ERROR, such as ``busy`` or ``cwd-failed``.
        status: The exit status, 128 + signal, or the category's own; for an ERROR its errno-like status.
        refused: Whether it was an ERROR: the program didn't run to an end of its own.
    """

    category: str
    status: int
    refused: bool = False


class Unsupported(GuestRefused):
    """The guest doesn't know the request (status 95): an agent older than this contract."""


def refusal(kind: Kind, reply: Frame, about: str | None = None) -> GuestRefused:
    """Return the error that an ERROR is to the caller of its request.

    Args:
        kind: The request.
        reply: The ERROR, valid.
        about: Which part of the request it is about.
    """
    word = category(reply)
    error = Unsupported if reply.status == UNSUPPORTED else GuestRefused
    return error(
        f"the guest refused {kind.name}: {word} (status {reply.status})",
        category=word,
        status=reply.status,
        subject=about or "NVXC",
    )
