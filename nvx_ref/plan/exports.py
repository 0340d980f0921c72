"""The export plan: which host directories the VMM shows, and which mappings the guest makes of them, in order.

One plan for every caller (622.scope4.a): layered guests take shares by boot tokens, direct guests and an adapter's
take the mapping table by ``MAPS`` or by their own transport. A plan is made at provision, kept, and rechecked at start
by the identities that it pinned.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from nvx_ref.errors import Malformed, Refused
from nvx_ref.plan.hostpaths import check_host_text, check_protected, look, within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvx_ref.plan.hostpaths import HostPath, Protected

SHARES_TARGET = "/run/nvx/shares"
HOSTFS_TARGET = "/run/nvx/hostfs/root"
MAX_CHILDREN = 256
MAX_MAPPINGS = 4096
MAX_POLICY_PATHS = 128
MAX_LIST_BYTES = 16 << 10
MAX_TOTAL_BYTES = 128 << 10
MAX_TARGET_BYTES = 4096
MAX_MAP_BYTES = 4095
MAX_PINS = MAX_MAPPINGS + 3 * MAX_CHILDREN * MAX_POLICY_PATHS
_NAME = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"

Path = Annotated[str, Meta(min_length=1, max_length=MAX_TARGET_BYTES)]


class Access(StrEnum):
    """What a sandbox may do below a shared path."""

    READ_ONLY = "ro"
    READ_WRITE = "rw"


class Owner(StrEnum):
    """Whom the guest sees as the owner of shared files."""

    VMM = "vmm"
    CALLER = "caller"


class ExportChild(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One host directory or file that the VMM shows.

    Args:
        name: Its name in an aggregate.
        host: Its host path.
        access: ``rw`` only if something below it may be written.
        target: Where a layered guest sees it; None for direct and adapter guests.
        denied: Host paths below it, or itself, that the guest doesn't see.
        allowed: Host paths below a denied one that it sees.
        writable: The only host paths below it that it may write; none means all of a ``rw`` child.
    """

    name: Annotated[str, Meta(pattern=_NAME)]
    host: Path
    access: Access
    target: Path | None = None
    denied: tuple[Path, ...] = ()
    allowed: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class MapAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One mapping that the guest makes, in its place in the table.

    Args:
        source: Relative to the export: a child's name, and what is below it.
        target: An absolute guest path.
        read_only: Whether the guest mounts it read-only.
    """

    source: Annotated[str, Meta(min_length=1, max_length=MAX_MAP_BYTES)]
    target: Annotated[str, Meta(min_length=1, max_length=MAX_MAP_BYTES)]
    read_only: bool


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An object inside a read-write mapping that must still be the same at start.

    Without it a workload could rename a protected object and leave a decoy in its place.

    Args:
        path: Its host path.
        device: The file system's number.
        file: Its inode or file index.
    """

    path: Path
    device: int
    file: int


class ExportPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """What the VMM exports and the guest maps.

    Args:
        target: Where the guest mounts the export.
        aggregate: Whether the export holds its children by name; else it is its one child.
        owner: Whom all files seem to belong to.
        children: At most 256.
        mappings: The ordered table, at most 4,096; none for a layered guest.
        pins: Identities that are rechecked at start.
    """

    target: Path
    aggregate: bool
    owner: Owner = Owner.VMM
    children: tuple[ExportChild, ...]
    mappings: tuple[MapAction, ...] = ()
    pins: tuple[Pin, ...] = ()

    def __post_init__(self) -> None:
        check_target(self.target)
        count = len(self.children)
        if not count or (count > 1 and not self.aggregate):
            raise Refused("an export has a child, and several need an aggregate", subject="exports", detail="exports")
        limit(count, MAX_CHILDREN, "exported directories")
        limit(len(self.mappings), MAX_MAPPINGS, "mappings")
        limit(len(self.pins), MAX_PINS, "pinned objects")
        for values, what in (
            ([child.name for child in self.children], "names"),
            ([child.target for child in self.children if child.target is not None], "targets"),
            ([action.target for action in self.mappings], "mapping targets"),
        ):
            if len(set(values)) != len(values):
                raise Malformed(f"{what} come twice", subject="exports", detail="exports")
        for child in self.children:
            _check_child(child)
        names = {child.name for child in self.children}
        for action in self.mappings:
            if action.source.partition("/")[0] not in names:
                raise Malformed(f"mapping source {action.source!r} is in no child", subject="exports", detail="exports")
            check_map_path(action.source, absolute=False)
            check_map_path(action.target, absolute=True)
        total = sum(list_bytes(child, paths) for child in self.children for paths in policies(child).values())
        limit(total, MAX_TOTAL_BYTES, "bytes of policy paths")


def check_target(target: str) -> None:
    """Check a guest path that an option or token names.

    Raises:
        Refused: It isn't absolute and canonical, is the root, is over 4,096 bytes, or holds white space, NUL, a
            backslash, ``=`` or ``,`` (``detail="target"``).
    """
    try:
        size = len(target.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Refused("not valid UTF-8", subject=repr(target), detail="target") from error
    parts = target.split("/")
    plain = target.startswith("/") and not any(part in {"", ".", ".."} for part in parts[1:])
    if not plain or size > MAX_TARGET_BYTES or any(one.isspace() or one in "\0\\=," for one in target):
        raise Refused(
            "an absolute guest path without '.', '..', empty parts, white space, NUL, '\\', '=' and ',' is needed",
            subject=f"target {target!r}",
            detail="target",
        )


def check_map_path(path: str, *, absolute: bool) -> None:
    """Check a path of the mapping table: 1 to 4,095 bytes, no NUL, no empty, ``.`` or ``..`` component.

    Raises:
        Refused: It isn't that (``detail="mapping"``).
    """
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Refused("not valid UTF-8", subject=repr(path), detail="mapping") from error
    parts = path.split("/")
    parts = parts[1:] if absolute and path.startswith("/") else parts
    if (
        path.startswith("/") is not absolute
        or not 1 <= size <= MAX_MAP_BYTES
        or "\0" in path
        or any(part in {"", ".", ".."} for part in parts)
    ):
        raise Refused("a mapping can't hold this path", subject=repr(path), detail="mapping")


def policies(child: ExportChild) -> dict[str, tuple[str, ...]]:
    """Return a child's policy paths by kind, in the order of their options."""
    return {"deny": child.denied, "allow": child.allowed, "write": child.writable}


def list_bytes(child: ExportChild, paths: tuple[str, ...]) -> int:
    """Return what a list counts: the parts below the child, in bytes."""
    return sum(len(below(child.host, path).encode("utf-8", "surrogatepass")) for path in paths)


def below(root: str, path: str) -> str:
    """Return the part of a path below a root, empty for the root itself."""
    return path[len(root.rstrip(os.sep)) :].lstrip(os.sep)


def export_options(plan: ExportPlan) -> list[str]:
    """Return OpenVMM's options for an export, in the launcher's order (contract openvmm 1.7, step 5)."""
    if plan.aggregate:
        argv = ["--mount-aggregate", plan.target]
        for child in plan.children:
            argv += ["--mount-child", f"{child.name},{child.host},{child.access.value}"]
    else:
        (only,) = plan.children
        argv = ["--mount", f"{plan.target},{only.host},{only.access.value}"]
    for kind in ("deny", "allow", "write"):
        for child in plan.children:
            for path in policies(child)[kind]:
                argv += [f"--mount-{kind}", path]
    return argv if plan.owner is Owner.VMM else [*argv, "--mount-owner", plan.owner.value]


def export_fragment(plan: ExportPlan) -> str:
    """Return what OpenVMM appends to the command line for an export, its leading space included."""
    mode = "rw" if any(child.access is Access.READ_WRITE for child in plan.children) else "ro"
    text = f" virtfs_dir={plan.target} virtfs_tag=microvm virtfs_mode={mode}"
    return f"{text} virtfs_aggregate=1" if plan.aggregate else text


def share_tokens(plan: ExportPlan) -> list[str]:
    """Return a layered guest's tokens: one for each child of an aggregate."""
    if not plan.aggregate:
        return []
    return [f"nvx_share={child.name},{child.target},{child.access.value}" for child in plan.children if child.target]


def check_exports(plan: ExportPlan, protected: Iterable[Protected] = ()) -> None:
    """Recheck an export at start: its roots are there without a link, and every pinned object is the same one.

    Args:
        plan: What is exported.
        protected: What it may not reach: a mount may have come between since it was planned.

    Raises:
        NotFound: A root or a pinned object is missing.
        Refused: Something was replaced (``detail="pin"``), a link is in a path now, or a protected path is reached
            (``detail="protected"``).
    """
    roots = [look(child.host, what="shared path") for child in plan.children]
    shown: list[HostPath] = []
    for child, root in zip(plan.children, roots, strict=True):
        if child.host in child.denied:
            shown += [look(path, what="shared path", special=True) for path in child.allowed]
        else:
            shown.append(root)
    check_protected(shown, protected)
    for pin in plan.pins:
        found = look(pin.path, what="pinned path", special=True)
        if found.identity != (pin.device, pin.file):
            raise Refused(
                "another object has taken the place of the one that was pinned",
                subject=pin.path,
                hint="put it back, or deprovision and provision again",
                detail="pin",
            )


def limit(count: int, most: int, what: str) -> None:
    """Refuse more than OpenVMM takes.

    Raises:
        Refused: There are more (``detail="limit"``).
    """
    if count > most:
        raise Refused(f"{count} {what} are over {most}", subject="exports", detail="limit")


def _check_child(child: ExportChild) -> None:
    check_host_text(child.host, what="shared path")
    if child.target is not None:
        check_target(child.target)
    if child.access is Access.READ_ONLY and child.writable:
        raise Refused("a read-only share has no writable paths", subject=child.host, detail="policy")
    for kind, paths in policies(child).items():
        limit(len(paths), MAX_POLICY_PATHS, f"{kind} paths of {child.host}")
        limit(list_bytes(child, paths), MAX_LIST_BYTES, f"bytes of {kind} paths of {child.host}")
        if len(set(paths)) != len(paths):
            raise Refused(f"{kind} paths come twice", subject=child.host, detail="policy")
        for path in paths:
            check_policy_text(child.host, path, kind)
    _check_nesting(child)


def check_policy_text(root: str, path: str, kind: str) -> None:
    """Check a policy path's text against its share.

    Raises:
        Refused: It isn't below the share (only a denied one may be the share itself), or holds white space, a
            backslash or ``:`` there (``detail="policy"``).
    """
    check_host_text(path, what=f"{kind} path")
    part = below(root, path).replace(os.sep, "/")
    if not within(path, root) or (not part and kind != "deny"):
        raise Refused(f"{kind} path isn't below {root}", subject=path, detail="policy")
    if any(one.isspace() or one in "\\:" for one in part):
        raise Refused(f"{kind} path holds white space, '\\' or ':'", subject=path, detail="policy")


def _check_nesting(child: ExportChild) -> None:
    kinds = dict.fromkeys(child.denied, "deny")
    for path in child.allowed:
        if path in kinds:
            raise Refused("a path is both denied and allowed", subject=path, detail="policy")
    kinds |= dict.fromkeys(child.allowed, "allow")
    for path, kind in kinds.items():
        if (_nearest(path, kinds) == "deny") is (kind == "deny"):
            reason = (
                "a denied path lies in a denied one" if kind == "deny" else "an allowed path needs a denied one around"
            )
            raise Refused(reason, subject=path, detail="policy")
    if child.host in child.denied and not child.allowed:
        raise Refused("a share that hides all of itself shows nothing", subject=child.host, detail="policy")
    writable = dict.fromkeys(child.writable, "write")
    for path in writable:
        if (kinds.get(path) or _nearest(path, kinds)) == "deny":
            raise Refused("a writable path is denied", subject=path, detail="policy")
        if _nearest(path, writable):
            raise Refused("a writable path lies in a writable one", subject=path, detail="policy")


def _nearest(path: str, kinds: dict[str, str]) -> str | None:
    parent = os.path.dirname(path)
    while parent not in kinds:
        if os.path.dirname(parent) == parent:
            return None
        parent = os.path.dirname(parent)
    return kinds[parent]


__all__ = [
    "Access",
    "ExportChild",
    "ExportPlan",
    "MapAction",
    "Owner",
    "Pin",
    "check_exports",
    "export_fragment",
    "export_options",
    "share_tokens",
]
