"""Host directories and path lists: what is checked on the host itself (contract openvmm 1.6, status 1)."""

from __future__ import annotations

import os
import stat

from fake_openvmm import host
from fake_openvmm.machine import Failure, Share, absolute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.options import Options

PATHS = 128
LIST_BYTES = 16 << 10
TOTAL_BYTES = 128 << 10
PATH_BYTES = 4096


class Root:
    """A share together with what the host says of its root."""

    __slots__ = ("chain", "directory", "lists", "share", "stat")

    def __init__(self, share: Share, chain: list[os.stat_result]) -> None:
        """Take what is on the way from `/`; `lists` maps `denied`, `allowed` and `writable` to paths below the root."""
        self.share = share
        self.stat = found = chain[-1]
        self.chain = {(one.st_dev, one.st_ino) for one in chain}
        self.directory = stat.S_ISDIR(found.st_mode)
        self.lists: dict[str, list[str]] = {"denied": [], "allowed": [], "writable": []}


def resolve(options: Options) -> list[Share]:
    """Check the shares and give them with canonical paths.

    Raises:
        Failure: the first rule that one of them breaks.
    """
    roots: list[Root] = []
    if options.mount:
        roots.append(_root(None, options.mount.host, readonly=options.mount.readonly))
    roots += [_root(child.name, child.host, readonly=child.readonly) for child in options.mount_child]
    _disjoint(roots)
    if options.mount_owner == "caller":
        for root in roots:
            if root.stat.st_uid == 0 or root.stat.st_gid == 0:
                raise Failure(f"--mount-owner caller: {root.share.host} must not be owned by UID 0 or GID 0")
        if len({(root.stat.st_uid, root.stat.st_gid) for root in roots}) > 1:
            raise Failure("--mount-owner caller: every child must have the same owner")
    aggregate = options.mount_aggregate is not None
    asked = {"denied": options.mount_deny, "allowed": options.mount_allow, "writable": options.mount_write}
    for kind, paths in asked.items():
        for path in paths:
            _attribute(kind, path, roots, aggregate=aggregate)
    for root in roots:
        _check_lists(root)
    if aggregate and sum(_bytes(paths) for root in roots for paths in root.lists.values()) > TOTAL_BYTES:
        raise Failure(f"microVM aggregate policy paths exceed the {TOTAL_BYTES}-byte aggregate limit")
    return [root.share for root in roots]


def _root(name: str | None, directory: str, *, readonly: bool) -> Root:
    full = absolute(directory, "microVM filesystem host path")
    path, parts = _split(full)
    if ".." in parts:
        raise Failure("microVM filesystem host path contains a parent component")
    chain = [os.lstat(path)]
    for part in parts:
        if part in ("", "."):
            continue
        path = f"{path.rstrip('/')}/{part}"
        chain.append(_no_link(path, "filesystem"))
    mode = chain[-1].st_mode
    if not (stat.S_ISDIR(mode) or (name is not None and stat.S_ISREG(mode))):
        raise Failure(f"microVM filesystem root is not a plain directory: {path}")
    return Root(Share(name, path, readonly=readonly), chain)


def _split(path: str) -> tuple[str, list[str]]:
    """Split an absolute path into its root and its parts; all that follows has slashes, on every system."""
    drive, rest = os.path.splitdrive(path)
    return f"{drive}/", rest.replace(os.sep, "/").split("/")


def is_link(found: os.stat_result) -> bool:
    """Whether it is a link, or one of Windows' reparse points, which a junction is."""
    attributes: int = getattr(found, "st_file_attributes", 0)
    return stat.S_ISLNK(found.st_mode) or bool(attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT)


def _no_link(path: str, what: str) -> os.stat_result:
    try:
        found = os.lstat(path)
    except (OSError, ValueError) as error:
        raise Failure(f"failed to inspect microVM {what} path component {path}: {error}") from error
    if is_link(found):
        raise Failure(f"microVM {what} path component is a symbolic link: {path}")
    return found


def _disjoint(roots: list[Root]) -> None:
    for index, root in enumerate(roots):
        for other in roots[:index]:
            first, second = root.share.host, other.share.host
            same = _identity(root) in other.chain or _identity(other) in root.chain
            if same or contains(first, second) or contains(second, first):
                raise Failure(f"microVM filesystem host paths must not overlap: {second} and {first}")
    if len(roots) > 1:
        mounts = host.mounts()
        sources = [_sources(mounts, root.share.host) for root in roots]
        for index, mine in enumerate(sources):
            for other_index, theirs in enumerate(sources[:index]):
                if any(_reach_the_same(a, b) for a in mine for b in theirs):
                    raise Failure(
                        f"microVM filesystem host paths must not overlap: {roots[other_index].share.host} and "
                        f"{roots[index].share.host} reach the same files through a mount"
                    )


def _identity(root: Root) -> tuple[int, int]:
    return root.stat.st_dev, root.stat.st_ino


def contains(outer: str, inner: str) -> bool:
    """Whether `inner` is `outer` or below it; the empty path is a share's root and contains everything."""
    return not outer or inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _sources(mounts: list[tuple[str, str, str]], root: str) -> list[tuple[str, str]]:
    """Give every directory tree, by device and path inside its file system, that can be reached below `root`.

    In a chroot that is no mount point no mount covers what isn't on a mount of its own: of such a root only device and
    inode, and those of what is above it, are known.
    """
    above = [
        (point.rstrip("/").count("/"), index) for index, (_, _, point) in enumerate(mounts) if contains(point, root)
    ]
    found = [(other, path) for other, path, point in mounts if point != root and contains(root, point)]
    if above:
        device, inside, point = mounts[max(above)[1]]
        found.append((device, os.path.join(inside, os.path.relpath(root, point)) if root != point else inside))
    return found


def _reach_the_same(first: tuple[str, str], second: tuple[str, str]) -> bool:
    return first[0] == second[0] and (contains(first[1], second[1]) or contains(second[1], first[1]))


def _attribute(kind: str, path: str, roots: list[Root], *, aggregate: bool) -> None:
    if any(part in (".", "..") for part in path.replace(os.sep, "/").split("/")):
        raise Failure(f"microVM {kind} path contains a dot or parent component: {path}")
    if aggregate and not os.path.isabs(path):
        raise Failure(f"with --mount-aggregate, a {kind} path must be absolute: {path}")
    full = os.path.join(roots[0].share.host, path)
    current, parts = _split(full)
    found = os.lstat(current)
    for part in parts:
        if part:
            current = f"{current.rstrip('/')}/{part}"
            found = _no_link(current, kind)
    root = next((root for root in roots if contains(root.share.host, current)), None)
    if root is None or not root.directory:
        raise Failure(f"microVM {kind} path is outside every shared directory: {path}")
    below = current[len(root.share.host.rstrip("/")) :].lstrip("/")
    if not below and kind != "denied":
        raise Failure(f"microVM {kind} path cannot be the complete filesystem export: {path}")
    if found.st_dev != root.stat.st_dev:
        raise Failure(f"microVM {kind} path crosses a nested mount: {path}")
    if any(char.isspace() or char in "\0\\:" or 0xDC80 <= ord(char) <= 0xDCFF for char in below):  # noqa: PLR2004 - raw
        raise Failure(f"invalid {kind} path '{below}': white space, backslash, ':' or invalid UTF-8")
    root.lists[kind].append(below)
    getattr(root.share, kind).append(current)


def _bytes(paths: list[str]) -> int:
    return sum(len(path.encode()) for path in paths)


def _check_lists(root: Root) -> None:
    for kind, paths in root.lists.items():
        if len(paths) > PATHS:
            raise Failure(f"microVM filesystem permits at most {PATHS} {kind} paths")
        if _bytes(paths) > LIST_BYTES or any(_bytes([path]) > PATH_BYTES for path in paths):
            raise Failure(f"microVM filesystem {kind} paths exceed the 16-KiB aggregate limit")
        if len(set(paths)) != len(paths):
            raise Failure(f"microVM {kind} paths must be unique")
    _check_hidden(root.lists["denied"], root.lists["allowed"])
    _check_writable(root)


def _check_hidden(denied: list[str], allowed: list[str]) -> None:
    if "" in denied and not allowed:
        raise Failure("a microVM filesystem can hide its root only to expose allowed paths inside it")
    for path in denied:
        if _nearest(path, denied, allowed, itself=False) == "denied":
            raise Failure("microVM filesystem denied paths overlap without an allowed path between them")
    for path in allowed:
        if path in denied or _nearest(path, denied, allowed, itself=False) != "denied":
            raise Failure(f"microVM filesystem allowed path '{path}' must be inside a denied path")


def _check_writable(root: Root) -> None:
    writable = root.lists["writable"]
    if root.share.readonly and writable:
        raise Failure("a read-only microVM filesystem cannot have writable paths")
    for path in writable:
        if any(other != path and contains(other, path) for other in writable):
            raise Failure("microVM filesystem writable paths overlap")
        if _nearest(path, root.lists["denied"], root.lists["allowed"], itself=True) == "denied":
            raise Failure(f"microVM filesystem writable path '{path}' is hidden by a denied path")


def _nearest(path: str, denied: list[str], allowed: list[str], *, itself: bool) -> str:
    """Name the kind of the nearest listed path that contains `path`, or nothing."""
    found: list[tuple[int, str]] = []
    for kind, rules in (("denied", denied), ("allowed", allowed)):
        found += [(len(rule), kind) for rule in rules if (itself or rule != path) and contains(rule, path)]
    return max(found)[1] if found else ""
