"""Shared host paths as data. Their lowering is the next change; a plan with shares is refused until then."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Access(StrEnum):
    """What a sandbox may do below a share."""

    READ_ONLY = "ro"
    READ_WRITE = "rw"


class Owner(StrEnum):
    """Whom the guest sees as the owner of shared files."""

    VMM = "vmm"
    CALLER = "caller"


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One shared host path.

    Args:
        target: Where the guest sees it.
        host: The host path.
        access: Read-only or read-write.
        denied: Host paths below it that the guest doesn't see.
        allowed: Host paths below a denied one that it sees.
        writable: The only host paths below it that it may write.
        owner: Whom files seem to belong to.
    """

    target: str
    host: str
    access: Access = Access.READ_ONLY
    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    owner: Owner = Owner.VMM
