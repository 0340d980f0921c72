"""What host paths are: without links, by identity, and by everything that mounts let them reach.

Text alone can't tell whether one path lies in another: a bind mount, a file system that ignores letter case and a link
each give one object several names. So paths are compared by text, by the identity of each ancestor, and by the part of
the file system that they and the mounts below them show.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import NotFound, Refused
from nvx_ref.platform import files
from nvx_ref.platform.links import is_link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nvx_ref.platform.contract import Reach

Identity = tuple[int, int]


class Protected(msgspec.Struct, frozen=True):
    """A path that no share may reach, chosen by the caller.

    Args:
        path: A file or directory, for example a sandbox's state directory or an image.
        what: What it is, for the error.
        planned: It may not be there yet; then whatever would show it, once it is made, reaches it.
    """

    path: str
    what: str
    planned: bool = False


class HostPath(msgspec.Struct, frozen=True):
    """An existing file or directory of the host, without a link in its path.

    Args:
        path: Canonical and absolute.
        directory: Whether it is a directory.
        identity: Its device and inode (file index).
        chain: Its identity and each ancestor's, from itself to the root.
        owner: Its user and group.
    """

    path: str
    directory: bool
    identity: Identity
    chain: tuple[Identity, ...]
    owner: tuple[int, int]

    def holds(self, other: HostPath) -> bool:
        """Tell whether the other is this object or below it, by text or by identity."""
        return within(other.path, self.path) or self.identity in other.chain


def within(path: str, above: str) -> bool:
    """Tell whether a canonical host path is another or below it, by text as this host compares names."""
    path, above = os.path.normcase(path), os.path.normcase(above)
    return path == above or path.startswith(above.rstrip(os.sep) + os.sep)


def within_guest(path: str, above: str) -> bool:
    """Tell whether a canonical path of the guest is another or below it."""
    return path == above or path.startswith(above.rstrip("/") + "/")


def look(path: str, *, what: str, special: bool = False) -> HostPath:
    """Look at a path without following a link.

    Args:
        path: Absolute.
        what: The option or role, for the error.
        special: Take sockets, devices and the like too, as what is hidden may be.

    Raises:
        NotFound: Something on the way is missing.
        Refused: It isn't absolute, holds a NUL, a comma or an empty, ``.`` or ``..`` component, has a link in it, isn't
            UTF-8, or is neither a directory nor a regular file (``detail="host-path"``).
    """
    check_host_text(path, what=what)
    chain: list[Identity] = []
    found = _lstat(path, what)
    current = path
    while True:
        status = found if current == path else _lstat(current, what)
        if is_link(status):
            raise Refused(
                "a link is in its path", subject=current, hint=f"name {os.path.realpath(path)}", detail="host-path"
            )
        chain.append((status.st_dev, status.st_ino))
        parent = os.path.dirname(current)
        if parent == current:
            break
        current = parent
    if not (special or stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        raise Refused(f"{what} is neither a directory nor a regular file", subject=path, detail="host-path")
    return HostPath(path, stat.S_ISDIR(found.st_mode), chain[0], tuple(chain), (found.st_uid, found.st_gid))


def check_host_text(path: str, *, what: str) -> None:
    """Check the text of a host path.

    Raises:
        Refused: As :func:`look` says.
    """
    # Without a drive a path of Windows depends on the directory that one is in, and a part "a." is taken for "a".
    plain = os.path.isabs(path) and "\0" not in path and "," not in path and os.path.abspath(path) == path
    if not plain or path.startswith(("//", "\\\\")):
        raise Refused(
            "an absolute path of this computer without '.', '..', empty parts, commas and NUL is needed",
            subject=f"{what} {path!r}",
            detail="host-path",
        )
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused("its path isn't UTF-8, which records need", subject=repr(path), detail="host-path") from error


class Territory:
    """What a set of host paths shows, to be asked which of them shows something too.

    Args:
        mounts: What is mounted; none where the system doesn't say.
        places: The host paths.
    """

    __slots__ = ("_identities", "_mounts", "_parts")

    def __init__(self, mounts: list[Reach], places: Iterable[HostPath]) -> None:
        self._mounts = mounts
        self._identities: dict[Identity, list[HostPath]] = {}
        self._parts: dict[tuple[str, str], list[HostPath]] = {}
        for place in places:
            self._identities.setdefault(place.identity, []).append(place)
            for part in reaches(mounts, place.path):
                self._parts.setdefault((part.device, part.inside), []).append(place)

    def around(self, place: HostPath) -> Iterator[HostPath]:
        """Give the paths of the set, other than this very one, that show it or a part of it."""
        for identity in place.chain:
            yield from (one for one in self._identities.get(identity, ()) if one is not place)
        for part in reaches(self._mounts, place.path):
            inside = part.inside
            while True:
                yield from (one for one in self._parts.get((part.device, inside), ()) if one is not place)
                if os.path.dirname(inside) == inside:
                    break
                inside = os.path.dirname(inside)


def check_protected(shown: Sequence[HostPath], protected: Iterable[Protected]) -> None:
    """Refuse shares that reach what the caller protects, in either direction and through any mount.

    Args:
        shown: What the guest would see.
        protected: What it may not reach; links in these paths are followed.

    Raises:
        NotFound: A protected path is missing.
        Refused: Something shown holds a protected path, or lies in one (``detail="protected"``).
    """
    guarded = [(one, _guarded(one)) for one in protected]
    if not guarded or not shown:
        return
    mounts = files.read_mounts()
    shares = Territory(mounts, shown)
    for one, place in guarded:
        inner = Territory(mounts, [place])
        lying = (share for share in shown if next(inner.around(share), None))
        reached = next(shares.around(place), None) or next(lying, None)
        if reached:
            raise Refused(
                f"it reaches {one.what}, {one.path}",
                subject=reached.path,
                hint="share another directory",
                detail="protected",
            )


def _guarded(one: Protected) -> HostPath:
    path = os.path.realpath(one.path)
    if not one.planned or os.path.lexists(path):
        return look(path, what=one.what, special=True)
    above = os.path.dirname(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    found = look(above, what=one.what)
    # What isn't there has no identity, so nothing lies in it; its ancestors have theirs, and hold it.
    return HostPath(path, True, (-1, -1), found.chain, found.owner)


def reaches(mounts: list[Reach], path: str) -> list[Reach]:
    """Return the parts of file systems that are shown at a path and below it.

    Args:
        mounts: What is mounted; none where the system doesn't say. In a chroot that is no mount point itself, and of
            whose files no mount inside shows a part, none of them covers a path that isn't on a mount of its own: it is
            told from others by identity alone.
        path: Canonical.
    """
    inner = [mount for mount in mounts if mount.point != path and within(mount.point, path)]
    # Of the mounts at or above it the deepest shows it, and of several at one point the last.
    above = [mount for mount in mounts if within(path, mount.point)]
    if not above:
        return inner
    deepest = max(enumerate(above), key=lambda item: (len(item[1].point), item[0]))[1]
    below = os.path.relpath(path, deepest.point)
    inside = deepest.inside if below == "." else os.path.join(deepest.inside, below)
    return [type(deepest)(deepest.device, inside, path), *inner]


def _lstat(path: str, what: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{what} is missing", subject=path, detail="host-path") from error
    except OSError as error:
        raise Refused(f"{what} can't be looked at: {error.strerror}", subject=path, detail="host-path") from error
