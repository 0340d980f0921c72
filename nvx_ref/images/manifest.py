"""The manifest beside a layer: which packages it holds, and the digest that binds the two.

The digest ties manifest and layer to each other; it authenticates neither (622 PR 1, "Today").
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import Malformed, NotFound, Refused
from nvx_ref.images.checked import open_sealed
from nvx_ref.images.reading import read_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.images.checked import CheckedFile

MANIFEST_SUFFIX = ".manifest.json"
MAX_MANIFEST_BYTES = 16 << 20
FORBIDDEN_PACKAGES = frozenset({"systemd"})
_CHUNK = 1 << 20
_DIGEST_LENGTH = 64


class _Head(msgspec.Struct, frozen=True):
    format: int
    artifact: str
    artifact_sha256: str
    packages: msgspec.Raw = msgspec.Raw(b"null")


class _Package(msgspec.Struct, frozen=True):
    name: str


def manifest_path(layer: str) -> str:
    """Return where the manifest of a layer is looked for."""
    return layer + MANIFEST_SUFFIX


def open_manifest(layer: str) -> CheckedFile | None:
    """Open the manifest beside a layer, or return None if there is provably none: metadata only.

    Raises:
        Refused: Something is there that isn't a regular, nonempty, readable file; a link that leads nowhere too.
    """
    path = manifest_path(layer)
    if not os.path.lexists(path):
        return None
    try:
        return open_sealed(path)
    except NotFound as error:
        raise Refused("a link that leads nowhere", subject=path, detail="kind") from error


def read_head(manifest: CheckedFile, layer: str) -> _Head:
    """Read a manifest and check its format and artifact name.

    Raises:
        Malformed: It isn't a manifest of format 1 for a file of this name.
    """
    length = manifest.seal.length
    if length > MAX_MANIFEST_BYTES:
        raise Malformed(f"a manifest of {length} bytes is over {MAX_MANIFEST_BYTES}", subject=manifest.path)
    raw = read_at(manifest.fd, 0, length, what="manifest")
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a layer manifest: {error}", subject=manifest.path) from error
    if head.format != 1:
        raise Malformed(f"manifest format {head.format}, not 1", subject=manifest.path, detail="manifest-format")
    if head.artifact != os.path.basename(layer):
        raise Malformed(
            f"it describes {head.artifact!r}, not {os.path.basename(layer)!r}",
            subject=manifest.path,
            detail="manifest-artifact",
        )
    if len(head.artifact_sha256) != _DIGEST_LENGTH or set(head.artifact_sha256) - set("0123456789abcdefABCDEF"):
        raise Malformed("its artifact_sha256 isn't 64 hex digits", subject=manifest.path, detail="manifest-digest")
    return head


def check_digest(
    manifest: CheckedFile, head: _Head, layer: CheckedFile, progress: Callable[[int, int], None] | None
) -> None:
    """Hash the whole layer and compare: the one place that reads it from end to end.

    Raises:
        Malformed: The digest differs (``detail="digest"``).
        Refused: The layer can't be read.
    """
    from hashlib import sha256  # noqa: PLC0415 - only verification pays for it

    digest = sha256()
    done, total = 0, layer.seal.length
    while done < total:
        size = min(_CHUNK, total - done)
        digest.update(read_at(layer.fd, done, size, what="content"))
        done += size
        if progress:
            progress(done, total)
    if digest.hexdigest() != head.artifact_sha256.lower():
        raise Malformed(
            "the layer isn't the one that its manifest describes: the digests differ",
            subject=layer.path,
            hint=f"compare with {manifest.path}",
            detail="digest",
        )


def check_packages(manifest: CheckedFile, head: _Head) -> None:
    """Apply the policy to the package list.

    Raises:
        Malformed: The list isn't a list of objects with a string ``name`` (``detail="packages"``).
        Refused: A package isn't allowed in a sandbox (``detail="systemd"``).
    """
    try:
        packages = msgspec.json.decode(head.packages, type=list[_Package])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"bad package list: {error}", subject=manifest.path, detail="packages") from error
    for package in packages:
        if package.name in FORBIDDEN_PACKAGES:
            raise Refused(f"the layer holds the package {package.name!r}", subject=manifest.path, detail=package.name)
