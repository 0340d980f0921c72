"""Mappings of a direct or adapter guest: three lists of host paths to exports and the ordered table (nvx-host 3.3)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import NotFound, Refused
from nvx_ref.plan.exports import (
    HOSTFS_TARGET,
    MAX_CHILDREN,
    MAX_MAPPINGS,
    Access,
    ExportChild,
    ExportPlan,
    MapAction,
    Owner,
    Pin,
    below,
    limit,
)
from nvx_ref.plan.hostpaths import HostPath, Territory, check_protected, look, within, within_guest
from nvx_ref.plan.shares import check_device, check_disjoint
from nvx_ref.platform import files
from nvx_ref.platform.guestpaths import guest_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvx_ref.plan.hostpaths import Protected

GUEST_DIRECTORIES = frozenset(
    f"/{name}"
    for name in ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")
)
"""What a guest keeps for itself: a mapping to one of these or below it is refused."""


class MappingPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Which host paths a guest sees, each at the same path as on the host, or below `/mnt/c` for drive C.

    Args:
        readonly_paths: What it may read.
        readwrite_paths: What it may write too.
        denied_paths: What it doesn't see of these.
    """

    readonly_paths: tuple[str, ...] = ()
    readwrite_paths: tuple[str, ...] = ()
    denied_paths: tuple[str, ...] = ()


class _Mapped(msgspec.Struct, frozen=True):
    place: HostPath
    access: Access

    @property
    def path(self) -> str:
        return self.place.path


def plan_mappings(
    policy: MappingPolicy, *, protected: Iterable[Protected] = (), owner: Owner = Owner.VMM
) -> ExportPlan | None:
    """Plan the exports and the mapping table of a direct or adapter guest. None means none.

    The exports are the outermost mapped directories, and the parents of outermost mapped files, hidden but for those
    files: never a common parent, which would show what nobody mapped. Looks at the host paths; changes nothing.

    Args:
        policy: What the caller wants, already authorised.
        protected: What the guest may not reach.
        owner: Whom files seem to belong to.

    Returns:
        The plan to keep. The table lists outer paths before inner ones. Objects inside read-write mappings are pinned.

    Raises:
        NotFound: A mapped path is missing, or a denied one inside a mapped one.
        Refused: A read-only path lies in a read-write mapping (``detail="read-only-inside-read-write"``,
            622.scope4.d), a denied path holds a mapped one, a path is the guest's own, exports reach the same files or
            a protected path, or a limit is passed.
    """
    mapped = _mapped(policy)
    if not mapped:
        return None
    denied = _denied(policy.denied_paths, mapped)
    _check_nesting(mapped)
    outermost = _outermost([one.place for one in mapped])
    roots = _roots(outermost)
    limit(len(roots), MAX_CHILDREN, "exported directories")
    check_disjoint(roots)
    check_protected(outermost, protected)
    writable = {one.place.identity for one in mapped if one.access is Access.READ_WRITE}
    return ExportPlan(
        target=HOSTFS_TARGET,
        aggregate=True,
        owner=owner,
        children=_children(roots, mapped, denied),
        mappings=_actions(mapped, roots),
        pins=tuple(
            Pin(place.path, *place.identity)
            for place in (*(one.place for one in mapped), *denied)
            if writable.intersection(place.chain[1:])
        ),
    )


def _mapped(policy: MappingPolicy) -> list[_Mapped]:
    limit(len(policy.readonly_paths) + len(policy.readwrite_paths), MAX_MAPPINGS, "mappings")
    found: dict[str, _Mapped] = {}
    for paths, access in (
        (policy.readonly_paths, Access.READ_ONLY),
        (policy.readwrite_paths, Access.READ_WRITE),
    ):
        for path in paths:
            place = look(_canonical(path), what="mapped path")
            _check_guest_path(place)
            # A path that comes twice keeps the stricter access, which comes first.
            found.setdefault(place.path, _Mapped(place, access))
    # By components, so that what holds others comes right before them.
    return sorted(found.values(), key=lambda one: one.path.split(os.sep))


def _canonical(path: str) -> str:
    if not os.path.isabs(path) or "\0" in path:
        return path
    try:
        return os.path.realpath(path)
    except OSError:
        # A device of Windows leads nowhere; what it is, its own name tells.
        return path


def _check_guest_path(place: HostPath) -> None:
    outer = place.path if place.directory else os.path.dirname(place.path)
    if os.path.dirname(outer) == outer:
        raise Refused(
            "a whole volume, or a file directly in its root, can't be mapped", subject=place.path, detail="volume"
        )
    if any(within_guest(guest_path(place.path), own) for own in GUEST_DIRECTORIES):
        raise Refused("the guest needs this path for itself", subject=place.path, detail="guest-directory")


def _denied(paths: Sequence[str], mapped: Sequence[_Mapped]) -> list[HostPath]:
    shown = {one.place.identity for one in mapped}
    around = {identity for one in mapped for identity in one.place.chain}
    found: dict[tuple[int, int], HostPath] = {}
    for path in paths:
        canonical = _canonical(path)
        try:
            place = look(canonical, what="denied path", special=True)
        except NotFound:
            if any(within(canonical, one.path) for one in mapped):
                raise
            continue
        if place.identity in around:
            raise Refused("it is denied, and is or holds a mapped path", subject=path, detail="denied")
        if shown.intersection(place.chain):
            found.setdefault(place.identity, place)
    return [place for place in found.values() if not found.keys() & set(place.chain[1:])]


def _check_nesting(mapped: Sequence[_Mapped]) -> None:
    writable = [one.place for one in mapped if one.access is Access.READ_WRITE]
    if not writable:
        return
    territory = Territory(files.read_mounts(), writable)
    for one in mapped:
        if one.access is Access.READ_WRITE:
            continue
        # What is mounted below a read-write path inside a read-only one is below both: that nesting is the valid one.
        # A second name of the very object, by a hard link or a mount, is none.
        outer = next(
            (other for other in territory.around(one.place) if one.place.identity not in other.chain[1:]), None
        )
        if outer:
            raise Refused(
                f"it is read-only, and {outer.path}, which may be written, reaches it",
                subject=one.path,
                hint="map the outer path read-only and what is written below it read-write",
                detail="read-only-inside-read-write",
            )


def _outermost(places: Sequence[HostPath]) -> list[HostPath]:
    """Of places sorted by components, return those that no other one holds."""
    found: list[HostPath] = []
    for place in places:
        if not found or not within(place.path, found[-1].path):
            found.append(place)
    return found


def _roots(outermost: Sequence[HostPath]) -> list[HostPath]:
    candidates: dict[str, HostPath] = {}
    for place in outermost:
        path = place.path if place.directory else os.path.dirname(place.path)
        if path not in candidates:
            candidates[path] = place if place.directory else look(path, what="mapped file's directory")
    return _outermost(sorted(candidates.values(), key=lambda place: place.path.split(os.sep)))


def _root_of(path: str, roots: dict[str, int]) -> int:
    while path not in roots:
        path = os.path.dirname(path)
    return roots[path]


def _children(
    roots: Sequence[HostPath], mapped: Sequence[_Mapped], denied: Sequence[HostPath]
) -> tuple[ExportChild, ...]:
    places = {root.path: index for index, root in enumerate(roots)}
    inner: list[list[_Mapped]] = [[] for _ in roots]
    hiding: list[list[HostPath]] = [[] for _ in roots]
    for one in mapped:
        inner[_root_of(one.path, places)].append(one)
    for place in denied:
        hiding[_root_of(place.path, places)].append(place)
    return tuple(_child(str(index), root, inner[index], hiding[index]) for index, root in enumerate(roots))


def _child(name: str, root: HostPath, inner: Sequence[_Mapped], hiding: Sequence[HostPath]) -> ExportChild:
    hidden = inner[0].path != root.path
    shown = _outermost([one.place for one in inner]) if hidden else []
    writable = _outermost([one.place for one in inner if one.access is Access.READ_WRITE])
    for place in (*hiding, *shown, *writable):
        check_device(place, root)
    return ExportChild(
        name=name,
        host=root.path,
        access=Access.READ_WRITE if writable else Access.READ_ONLY,
        denied=(*((root.path,) if hidden else ()), *(place.path for place in hiding)),
        allowed=tuple(place.path for place in shown),
        writable=tuple(place.path for place in writable if place.path != root.path),
    )


def _actions(mapped: Sequence[_Mapped], roots: Sequence[HostPath]) -> tuple[MapAction, ...]:
    places = {root.path: index for index, root in enumerate(roots)}
    actions: list[MapAction] = []
    for one in mapped:
        index = _root_of(one.path, places)
        part = below(roots[index].path, one.path).replace(os.sep, "/")
        actions.append(
            MapAction(
                source=f"{index}/{part}" if part else str(index),
                target=guest_path(one.path),
                read_only=one.access is Access.READ_ONLY,
            )
        )
    return tuple(actions)
