"""Shares of a layered guest: each host directory or file at one guest path (nvx-host 3.3)."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import Malformed, Refused
from nvx_ref.plan.exports import (
    MAX_CHILDREN,
    SHARES_TARGET,
    Access,
    ExportChild,
    ExportPlan,
    Owner,
    Pin,
    check_target,
    limit,
)
from nvx_ref.plan.hostpaths import Territory, check_protected, look, within_guest
from nvx_ref.platform import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvx_ref.plan.hostpaths import HostPath, Protected

_RESERVED_TREES = ("/proc", "/sys", "/dev", "/.nvx-agent")
_RESERVED = ("/", "/etc")


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One share that a caller asks for.

    Args:
        target: Where the guest sees it.
        host: An existing directory or file, absolute, without a link in its path.
        access: Read-only or read-write.
        denied: Host paths below it that the guest doesn't see.
        allowed: Host paths below a denied one that it sees.
        writable: The only host paths below it that it may write.
        owner: Whom files seem to belong to; the same for all shares of a sandbox.
    """

    target: str
    host: str
    access: Access = Access.READ_ONLY
    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    owner: Owner = Owner.VMM


def parse_share(text: str) -> Share:
    """Read ``GUEST,HOST[,ro|rw]``, the value of ``--mount``. What it names is checked when it is planned.

    Raises:
        Malformed: It has another form.
    """
    fields = text.split(",")
    modes = [access.value for access in Access]
    if len(fields) not in {2, 3} or not all(fields) or (len(fields) > 2 and fields[2] not in modes):  # noqa: PLR2004
        raise Malformed(f"{text!r} isn't GUEST,HOST[,ro|rw]", subject="mount", detail="mount")
    return Share(target=fields[0], host=fields[1], access=Access(fields[2]) if len(fields) > 2 else Access.READ_ONLY)  # noqa: PLR2004


def plan_shares(shares: Sequence[Share], *, protected: Iterable[Protected] = ()) -> ExportPlan | None:
    """Plan the shares of a layered guest. None means none.

    Looks at the host paths; reads and changes nothing.

    Args:
        shares: In the caller's order.
        protected: What they may not reach.

    Returns:
        The plan to keep; the objects named inside read-write shares are pinned.

    Raises:
        NotFound: A host path is missing.
        Refused: A target is reserved, two targets or host paths overlap, a policy path isn't one that OpenVMM takes, a
            share reaches a protected path, or there are too many (``detail`` names the rule).
    """
    if not shares:
        return None
    limit(len(shares), MAX_CHILDREN, "shares")
    _check_targets(shares)
    roots = [look(share.host, what="shared path") for share in shares]
    check_disjoint(roots)
    _check_owner(shares, roots)
    check_protected(roots, protected)
    pins = [pin for share, root in zip(shares, roots, strict=True) for pin in _pins(share, root)]
    aggregate = len(shares) > 1 or not roots[0].directory
    return ExportPlan(
        target=SHARES_TARGET if aggregate else shares[0].target,
        aggregate=aggregate,
        owner=shares[0].owner,
        children=tuple(_child(index, share, aggregate=aggregate) for index, share in enumerate(shares)),
        pins=tuple(pins),
    )


def check_disjoint(roots: Sequence[HostPath]) -> None:
    """Refuse host paths that overlap: by text, by identity, or through a mount, as OpenVMM does.

    Raises:
        Refused: Two of them overlap (``detail="overlap"``).
    """
    territory = Territory(files.read_mounts(), roots)
    for root in roots:
        if other := next(territory.around(root), None):
            raise Refused(
                f"it and {other.path} reach the same files", subject=root.path, hint="share each once", detail="overlap"
            )


def _check_targets(shares: Sequence[Share]) -> None:
    for share in shares:
        target = share.target
        if target in _RESERVED or any(within_guest(target, tree) for tree in _RESERVED_TREES):
            raise Refused("the guest needs it for itself", subject=f"target {target}", detail="target")
        check_target(target)
    for one, two in combinations([share.target for share in shares], 2):
        if within_guest(one, two) or within_guest(two, one):
            raise Refused(f"it overlaps {two}", subject=f"target {one}", detail="target")


def _check_owner(shares: Sequence[Share], roots: Sequence[HostPath]) -> None:
    owners = {share.owner for share in shares}
    if len(owners) > 1:
        raise Refused("all shares of a sandbox have one owner", subject="shares", detail="owner")
    if owners != {Owner.CALLER}:
        return
    for root in roots:
        if 0 in root.owner:
            raise Refused("it belongs to root, which a caller's share may not", subject=root.path, detail="owner")
    if len({root.owner for root in roots}) > 1:
        raise Refused("shares with a caller's owner have one and the same", subject="shares", detail="owner")


def _child(index: int, share: Share, *, aggregate: bool) -> ExportChild:
    from hashlib import sha256  # noqa: PLC0415 - loaded by plans with shares only

    digest = sha256(share.target.encode("utf-8")).hexdigest()[:32]
    return ExportChild(
        name=f"{index}-{digest}" if aggregate else "0",
        host=share.host,
        access=share.access,
        target=share.target,
        denied=share.denied,
        allowed=share.allowed,
        writable=share.writable,
    )


def _pins(share: Share, root: HostPath) -> list[Pin]:
    pins: list[Pin] = []
    for path in dict.fromkeys((*share.denied, *share.allowed, *share.writable)):
        found = look(path, what="policy path", special=True)
        check_device(found, root)
        if share.access is Access.READ_WRITE and path != root.path:
            pins.append(Pin(path, *found.identity))
    return pins


def check_device(path: HostPath, root: HostPath) -> None:
    """Refuse a policy path on another file system than its share's.

    Raises:
        Refused: A mount lies between them (``detail="policy"``).
    """
    if not root.directory:
        raise Refused("a shared file has no paths below it", subject=path.path, detail="policy")
    if path.identity[0] != root.identity[0]:
        raise Refused(f"a mount lies between it and {root.path}", subject=path.path, detail="policy")
