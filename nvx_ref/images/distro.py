"""Distro images: explicit verification, imported bindings, and the metadata-only check at launch.

Three checks stay apart (622 PR 1): the entrypoint check is cheap and needs no image; verification reads headers and,
with a manifest, every byte, and happens only when somebody asks for it; the check of a binding opens and stats. No
operation of the runtime turns into another of them.

A seal detects accidents. Staged files live where only the orchestrator's account can write, are read-only and never
rewritten in place; deliberate tampering by that account is not what a seal can detect (622p1.scope7).
"""

from __future__ import annotations

import posixpath
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec

from nvx_ref.errors import Malformed, Refused
from nvx_ref.images.checked import compare, open_sealed
from nvx_ref.images.manifest import check_digest, check_packages, manifest_path, open_manifest, read_head
from nvx_ref.images.paths import about, kept_path
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileSeal

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.images.checked import CheckedFile

POLICY_REVISION = 1
"""The revision of the rules that verification applies to a distro; a binding made under another one is stale."""

_SYSTEMD = frozenset({"/usr/lib/systemd/systemd", "/lib/systemd/systemd"})
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class ImageFormat(StrEnum):
    """How a distro's bytes are laid out; the boot token names it and nobody probes for it."""

    EROFS = "erofs"
    GPT = "gpt"


class PolicyResult(StrEnum):
    """What the policy said of an image."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class DistroBinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What ties a staged distro to the verification that accepted it. It is kept in the caller's configuration.

    Args:
        version: The shape of this record: 1.
        path: The image's absolute path.
        format: The staged format.
        identity: The expected EROFS UUID or disk GUID, lower-case text, or None where the caller expects none.
        image: The image's seal.
        manifest: The manifest's seal, or None: there was none, and there may be none at launch.
        policy_revision: The rules that were applied.
        policy_result: What they said.
    """

    version: Literal[1]
    path: str
    format: ImageFormat
    identity: str | None
    image: FileSeal
    manifest: FileSeal | None
    policy_revision: int
    policy_result: PolicyResult


class DistroHeader(msgspec.Struct, frozen=True, rename="camel"):
    """What an image's header says.

    Args:
        format: Erofs or gpt.
        identity: The EROFS UUID or the disk GUID, lower-case text.
        sector_size: The GPT's, in bytes; 512 for a plain EROFS image.
        filesystem: The UUID of the EROFS that boots.
        block_size: That filesystem's, in bytes.
    """

    format: ImageFormat
    identity: str
    sector_size: int
    filesystem: str
    block_size: int


def check_entrypoint(entrypoint: str) -> None:
    """Refuse an entrypoint that a sandbox doesn't boot; needs no image and runs at every launch (622p1.scope8).

    Raises:
        Refused: It is systemd, under any spelling of its path (``detail="systemd-entrypoint"``).
    """
    if "/" + posixpath.normpath(entrypoint).lstrip("/") in _SYSTEMD:
        raise Refused(
            "systemd is not an entrypoint for a sandbox",
            subject=entrypoint,
            hint="name the program to run",
            detail="systemd-entrypoint",
        )


def parse_identity(text: str) -> str:
    """Return a UUID or GUID in its lower-case text form.

    Raises:
        Malformed: It isn't 8-4-4-4-12 hex digits.
    """
    lower = text.lower()
    if not text.isascii() or not re.fullmatch(_UUID, lower):
        raise Malformed(f"{text!r} isn't a UUID", subject="identity", detail="identity")
    return lower


def read_header(image: CheckedFile, image_format: ImageFormat) -> DistroHeader:
    """Read what a distro's header says, in the format that the caller names: nothing is probed.

    Args:
        image: The open image.
        image_format: What it must be.

    Raises:
        Malformed: It isn't that, or a guest couldn't boot it.
        Refused: It can't be read.
    """
    # Not with this module: a launch reads no content.
    from nvx_ref.images.erofs import read_erofs  # noqa: PLC0415
    from nvx_ref.images.gpt import read_gpt  # noqa: PLC0415

    length = image.seal.length
    with about(image.path):
        if image_format is ImageFormat.EROFS:
            plain = read_erofs(image.fd, length=length)
            return DistroHeader(image_format, plain.uuid, 512, plain.uuid, plain.block_size)
        table = read_gpt(image.fd, length=length)
        first = table.entries[0]
        inner = read_erofs(image.fd, offset=first.offset, length=first.length)
        return DistroHeader(image_format, table.disk, table.sector_size, inner.uuid, inner.block_size)


def inspect_image(path: str, image_format: ImageFormat) -> DistroHeader:
    """Read what the header of an image says, for a person; no more than headers is read.

    Args:
        path: The raw image.
        image_format: What it must be; nothing is probed.

    Raises:
        NotFound, Malformed, Refused: As :func:`read_header`, and it can't be opened.
    """
    with open_sealed(kept_path(path, what="image"), device=True) as image:
        return read_header(image, image_format)


def seal_manifest(path: str) -> FileSeal | None:
    """Return the seal of the manifest beside an image, or None if there is provably none: metadata only.

    Raises:
        Refused: What is there isn't a regular, nonempty, readable file.
    """
    manifest = open_manifest(kept_path(path, what="image"))
    if manifest is None:
        return None
    with manifest:
        return manifest.seal


def verify_distro(
    path: str,
    *,
    format: ImageFormat,  # noqa: A002 - the word of the specification and of the command line
    identity: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DistroBinding:
    """Verify a distro explicitly: at build, install, staging, library load, or when a person asks.

    Reads the image's header; with a manifest beside it, the manifest and the whole image. Order: header and identity,
    the manifest's format, digest, package list, systemd package (nvx-host 3.5). Writes nothing.

    Args:
        path: The raw image.
        format: What it must be; nothing is probed.
        identity: The EROFS UUID or disk GUID that it must have, if the caller knows.
        progress: Called with the bytes hashed so far and their total.

    Returns:
        The binding to keep.

    Raises:
        NotFound: There is no such image.
        Malformed: The image or its manifest isn't what it should be, or they don't belong together.
        Refused: It can't be read, the policy rejects it, or it changed while it was verified.
    """
    path = kept_path(path, what="distro")
    expected = parse_identity(identity) if identity is not None else None
    with open_sealed(path, device=True) as image:
        header = read_header(image, format)
        if expected is not None and header.identity != expected:
            raise Malformed(f"its identity is {header.identity}, not {expected}", subject=path, detail="identity")
        manifest = open_manifest(path)
        try:
            if manifest is not None:
                head = read_head(manifest, path)
                check_digest(manifest, head, image, progress)
                check_packages(manifest, head)
                _unchanged(manifest)
            _unchanged(image)
            return DistroBinding(
                version=1,
                path=path,
                format=format,
                identity=expected,
                image=image.seal,
                manifest=manifest.seal if manifest is not None else None,
                policy_revision=POLICY_REVISION,
                policy_result=PolicyResult.ACCEPTED,
            )
        finally:
            if manifest is not None:
                manifest.close()


def import_binding(
    path: str,
    *,
    format: ImageFormat,  # noqa: A002
    identity: str | None,
    image: FileSeal,
    manifest: FileSeal | None,
    policy_revision: int = POLICY_REVISION,
    policy_result: PolicyResult = PolicyResult.ACCEPTED,
) -> DistroBinding:
    """Take the word of an authorised staging caller that verified the image itself: nothing is read or hashed.

    Args:
        path: The staged image.
        format: What it is.
        identity: Its EROFS UUID or disk GUID, or None.
        image: Its seal, taken by the caller around its own verification (:func:`nvx_ref.images.seal_of`).
        manifest: The manifest's seal, or None if there is none.
        policy_revision: The rules that the caller applied.
        policy_result: What they said.

    Returns:
        The binding, checked by metadata once.

    Raises:
        NotFound: The image is missing.
        Malformed: The identity isn't a UUID.
        Refused: Image or manifest aren't the sealed ones, aren't staged as they must be (:func:`check_staged`), or the
            policy's result isn't one to launch under.
    """
    binding = DistroBinding(
        version=1,
        path=kept_path(path, what="distro"),
        format=format,
        identity=parse_identity(identity) if identity is not None else None,
        image=image,
        manifest=manifest,
        policy_revision=policy_revision,
        policy_result=policy_result,
    )
    check_staged(binding.path)
    if manifest is not None:
        check_staged(manifest_path(binding.path))
    check_binding(binding).close()
    return binding


def check_staged(path: str) -> None:
    """Check where a staged file lies: only this account can write its directory, and the file is read-only.

    A caller never rewrites it in place either; that can't be seen here (622p1.scope7.a).

    Raises:
        NotFound: It is missing.
        Refused: Somebody else could change it (``detail="staging"``).
    """
    if fault := files.staging_fault(path):
        raise Refused(fault, subject=path, hint="stage it read-only in a directory of its own", detail="staging")


def check_binding(binding: DistroBinding) -> CheckedFile:
    """Compare a staged distro with its binding by metadata alone, and return it open for the VMM.

    No content is read, mapped or hashed: the cost is the same for any size. A binding that doesn't fit fails; nothing
    is verified in its place (622p1.scope6).

    Returns:
        The checked image; the caller closes it once the VMM has it.

    Raises:
        NotFound: The image is missing.
        Refused: The policy's revision is another one or its result isn't acceptance (``detail="policy"``); image or
            manifest differ from their seals (``"stale"``); a manifest appeared or vanished (``"manifest"``).
    """
    if binding.policy_revision != POLICY_REVISION:
        raise Refused(
            f"it was verified under policy revision {binding.policy_revision}, not {POLICY_REVISION}",
            subject=binding.path,
            hint="verify it and provision again",
            detail="policy",
        )
    if binding.policy_result is not PolicyResult.ACCEPTED:
        raise Refused("the policy rejected it", subject=binding.path, detail="policy")
    image = open_sealed(kept_path(binding.path, what="distro"), device=True)
    try:
        compare(binding.path, image.seal, binding.image)
        _check_manifest(binding)
    except BaseException:
        image.close()
        raise
    return image


def _check_manifest(binding: DistroBinding) -> None:
    manifest = open_manifest(binding.path)
    if manifest is None:
        if binding.manifest is not None:
            raise Refused(
                "the manifest that it was verified with is gone", subject=manifest_path(binding.path), detail="manifest"
            )
        return
    with manifest:
        if binding.manifest is None:
            raise Refused(
                "a manifest appeared beside an image that was verified without one",
                subject=manifest.path,
                hint="verify it and provision again",
                detail="manifest",
            )
        compare(manifest.path, manifest.seal, binding.manifest)


def _unchanged(checked: CheckedFile) -> None:
    if files.seal(checked.fd) != checked.seal:
        raise Refused(
            "the file changed while it was verified", subject=checked.path, hint="try again", detail="changed"
        )
