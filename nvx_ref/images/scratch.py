"""The scratch: a mutable ext4 image that one sandbox owns at a time.

The VMM writes it, so its binding holds what a write doesn't change: identity, kind and size. Ownership is a write lock
on one byte far past any content, on the open description that the VMM inherits: it lives exactly as long as the VMM,
survives the launcher, and needs no clean-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Refused
from nvx_ref.images.checked import open_sealed
from nvx_ref.images.paths import about, kept_path
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileKind

if TYPE_CHECKING:
    from nvx_ref.images.checked import CheckedFile


OWNER_WAIT = 1.0
"""Seconds for which a scratch found owned is looked at again, every 25 ms: a process that another thread forks holds a
copy of every descriptor until its exec, and so may own for a moment what the VMM that has exited owned."""


class ScratchBinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What must stay true of a scratch between provision and every start (622.scope3.d).

    Args:
        version: The shape of this record: 1.
        path: The image's absolute path.
        volume: The volume that holds it, hex.
        file: Its identity there, hex.
        kind: A regular file or a block device.
        length: In bytes.
    """

    version: Literal[1]
    path: str
    volume: str
    file: str
    kind: FileKind
    length: int

    @classmethod
    def of(cls, path: str) -> ScratchBinding:
        """Bind a scratch by metadata alone, on the word of a caller that made it.

        Raises:
            NotFound: There is no such file.
            Refused: It isn't a regular, nonempty file that can be read and written.
        """
        with open_sealed(kept_path(path, what="scratch"), writable=True, device=True) as scratch:
            return _bind(scratch)


def verify_scratch(path: str) -> ScratchBinding:
    """Bind a scratch after a look at its superblock: for provision. Two KiB are read, nothing is written.

    Raises:
        NotFound: There is no such file.
        Malformed: It isn't a whole-device ext4 image.
        Refused: It isn't a regular, nonempty file that can be read and written, or a running sandbox owns it.
    """
    from nvx_ref.images.ext4 import read_ext4  # noqa: PLC0415 - a launch reads no content

    with open_sealed(kept_path(path, what="scratch"), writable=True, device=True) as scratch:
        with about(scratch.path):
            read_ext4(scratch.fd, length=scratch.seal.length)
        _own(scratch)
        return _bind(scratch)


def check_scratch(binding: ScratchBinding) -> CheckedFile:
    """Compare a scratch with its binding by metadata, and take it for one sandbox.

    Returns:
        The open scratch, owned: hand its descriptor to the VMM, then close it. The ownership ends with the last process
        that holds the descriptor.

    Raises:
        NotFound: The scratch is missing.
        Refused: It was replaced, resized or is of another kind (``detail="stale"``), or another sandbox owns it
            (``detail="scratch-owned"``).
    """
    scratch = open_sealed(kept_path(binding.path, what="scratch"), writable=True, device=True)
    try:
        _compare(_bind(scratch), binding)
        _own(scratch)
    except BaseException:
        scratch.close()
        raise
    return scratch


def _bind(scratch: CheckedFile) -> ScratchBinding:
    seal = scratch.seal
    return ScratchBinding(1, scratch.path, seal.volume, seal.file, seal.kind, seal.length)


def _compare(found: ScratchBinding, expected: ScratchBinding) -> None:
    differing = [
        text
        for text, same in (
            ("file identity", (found.volume, found.file) == (expected.volume, expected.file)),
            ("kind", found.kind == expected.kind),
            ("length", found.length == expected.length),
        )
        if not same
    ]
    if differing:
        raise Refused(
            f"its {' and '.join(differing)} changed since it was provisioned",
            subject=expected.path,
            hint="restore it, or deprovision and provision again",
            detail="stale",
        )


def _own(scratch: CheckedFile) -> None:
    until = Deadline.after(OWNER_WAIT)
    while not files.try_own(scratch.fd):
        if until.pause():
            continue
        raise Refused(
            "another sandbox owns this scratch and runs",
            subject=scratch.path,
            hint="stop it first, or give each sandbox its own",
            detail="scratch-owned",
        )
