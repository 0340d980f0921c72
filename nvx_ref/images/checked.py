"""Open files that were checked, and stay what they were checked to be."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NoReturn, final

from nvx_ref.closing import Closing
from nvx_ref.errors import NvxError, Refused
from nvx_ref.images.paths import kept_path
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileKind
from nvx_ref.platform.descriptors import let_go

if TYPE_CHECKING:
    from nvx_ref.platform.contract import FileSeal


class _NoPublicConstructor(type):
    def __call__(cls, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(f"a {cls.__name__} is made by the checks of nvx_ref.images alone")


@final
class CheckedFile(Closing, metaclass=_NoPublicConstructor):
    """An open file that passed its check; it owns the descriptor.

    The VMM gets this object, not the path again: whatever is renamed or linked over the path afterwards, the checked
    object is what boots (622.scope3). Close it, or leave its context, once the VMM has it.

    Args:
        path: Where it was found, for messages. Never handed to the VMM.
        seal: Its metadata at the check.
        writable: Whether the VMM may write it.
    """

    __slots__ = ("_fd", "path", "seal", "writable")

    path: str
    seal: FileSeal
    writable: bool
    _fd: int

    @property
    def fd(self) -> int:
        """The descriptor, close-on-exec, to be allowed for the VMM under this number.

        Raises:
            ValueError: The file is closed.
        """
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed")
        return self._fd

    @property
    def proc_path(self) -> str:
        """The name under which a process that inherits the descriptor opens the same object; never persisted."""
        return files.proc_path(self.fd)

    @property
    def closed(self) -> bool:
        """Whether the descriptor has been given back."""
        return self._fd < 0

    def set_apart(self, least: int) -> int:
        """Move to a descriptor of at least so much where the system has one, and return which one it is now."""
        self._fd = files.set_apart(self.fd, least)
        return self._fd

    def close(self) -> None:
        """Give the descriptor back. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            let_go(fd)

    def __del__(self) -> None:
        if self._fd >= 0:
            warnings.warn(f"checked file {self.path} was never closed", ResourceWarning, stacklevel=2, source=self)
            self.close()

    def __repr__(self) -> str:
        return f"CheckedFile({self.path!r}, {'closed' if self.closed else self._fd})"


def own(fd: int, path: str, seal: FileSeal, *, writable: bool = False) -> CheckedFile:
    """Make a checked file of a descriptor, which it owns from here on; for the checks of this package."""
    checked = object.__new__(CheckedFile)
    checked.path = path
    checked.seal = seal
    checked.writable = writable
    checked._fd = fd  # pyright: ignore[reportPrivateUsage] - the one maker
    return checked


def open_sealed(path: str, *, writable: bool = False, device: bool = False) -> CheckedFile:
    """Open a regular, nonempty file and take its seal: metadata only.

    Args:
        path: The file. Links are followed: the object found counts.
        writable: Open for reading and writing.
        device: Take a block device too: the only raw backing with 4,096-byte blocks (contract openvmm 1.2). Its seal is
            the node's, so it doesn't notice that a loop device got another file.

    Returns:
        The open file, not yet compared with anything.

    Raises:
        NotFound: There is no such file.
        Refused: It can't be opened, isn't a regular file, is empty, or couldn't be opened again by its descriptor's
            name, as the VMM will do. A FIFO is refused without waiting for its other end.
    """
    fd = files.open_scratch(path) if writable else files.open_image(path)
    try:
        seal = files.seal(fd)
    except BaseException:
        let_go(fd)
        raise
    checked = own(fd, path, seal, writable=writable)
    try:
        _check_kind(checked, device)
        _reopen(checked)
    except BaseException:
        checked.close()
        raise
    return checked


def _check_kind(checked: CheckedFile, device: bool) -> None:  # noqa: FBT001
    kind = checked.seal.kind
    if kind is not FileKind.REGULAR and not (device and kind is FileKind.BLOCK):
        raise Refused(f"not a regular file but a {kind.value}", subject=checked.path, detail="kind")
    if not checked.seal.length:
        raise Refused("the file is empty", subject=checked.path, detail="empty")


def _reopen(checked: CheckedFile) -> None:
    try:
        again = files.open_scratch(checked.proc_path) if checked.writable else files.open_image(checked.proc_path)
    except NvxError as error:
        if not files.DESCRIPTORS_HAVE_PATHS:
            raise
        raise Refused(
            f"the VMM couldn't open it by the name of its descriptor: {error.reason}",
            subject=checked.path,
            hint="look whether /proc is mounted",
            detail="reopen",
        ) from error
    let_go(again)


def check_plain(path: str, what: str) -> CheckedFile:
    """Open a kernel or an initramfs for the VMM: metadata only.

    Args:
        path: The file.
        what: The option or role that names it, for the errors.

    Raises:
        NotFound: There is no such file.
        Refused: It isn't a regular, nonempty, readable file.
    """
    return open_sealed(kept_path(path, what=what))


def seal_of(path: str) -> FileSeal:
    """Return the seal of a regular, nonempty file, for a staging caller that keeps it: metadata only.

    Raises:
        NotFound: There is no such file.
        Refused: It isn't a regular, nonempty, readable file.
    """
    with open_sealed(kept_path(path, what="file")) as checked:
        return checked.seal


def compare(path: str, found: FileSeal, expected: FileSeal) -> None:
    """Refuse a file that isn't the sealed one any more.

    Raises:
        Refused: The seals differ (``detail="stale"``); the reason names what differs.
    """
    if found.scheme != expected.scheme:
        changed = f"its seal is of scheme {expected.scheme}, not {found.scheme}"
    else:
        names = {
            "volume": "volume",
            "file": "file identity",
            "kind": "kind",
            "length": "length",
            "modified": "modification time",
            "changed": "change time",
        }
        differing = [text for field, text in names.items() if getattr(found, field) != getattr(expected, field)]
        if not differing:
            return
        changed = f"its {' and '.join(differing)} changed since it was sealed"
    raise Refused(changed, subject=path, hint="verify it and provision again", detail="stale")
