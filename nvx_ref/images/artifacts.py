"""Where OpenVMM, kernel and initramfs are, and the runtime identity that their release states.

The identity comes from ``SOURCE-MANIFEST.json`` and ``SHA256SUMS``, which install or staging put beside the artifacts.
Nothing is hashed. Both files are read again at each operation; a configuration keeps the paths, never the identity.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import Malformed, NotFound, Refused
from nvx_ref.images.checked import open_sealed
from nvx_ref.images.paths import kept_path
from nvx_ref.images.reading import read_at
from nvx_ref.store import RuntimeIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MICROVM_ABI_VERSION = 2
CONTROL_SESSION_PROTOCOL_VERSION = 1
CONTROL_CONTRACT_REVISION = "nvx-microvm-v2-control-v2"
BOOT_CONTRACT = f"microvm-abi/{MICROVM_ABI_VERSION}"
CONTROL_CONTRACT = f"{CONTROL_CONTRACT_REVISION}/session-{CONTROL_SESSION_PROTOCOL_VERSION}"
SOURCE_MANIFEST = "SOURCE-MANIFEST.json"
CHECKSUMS = "SHA256SUMS"
MAX_METADATA_BYTES = 1 << 20
_DIGEST_LENGTH = 64


class Layout(StrEnum):
    """Which names the artifacts have in their directory and in ``SHA256SUMS``."""

    RELEASE = "release"
    CHECKOUT = "checkout"
    EXPLICIT = "explicit"


class _Names(msgspec.Struct, frozen=True):
    openvmm: tuple[str, ...]
    kernel: str
    initramfs: str


_RELEASE = _Names(("bin/openvmm", "bin/openvmm.exe"), "guest/vmlinux", "guest/initramfs.cpio.gz")
_CHECKOUT = _Names(
    ("openvmm/target/release/openvmm", "openvmm/target/release/openvmm.exe"),
    "build/vmlinux",
    "build/initramfs.cpio.gz",
)
_NAMES: Mapping[Layout, _Names] = {
    Layout.RELEASE: _RELEASE,
    Layout.CHECKOUT: _CHECKOUT,
    # A command given by hand still stands for the release's OpenVMM: its digest is that line's.
    Layout.EXPLICIT: _RELEASE,
}


class Artifacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The files of one launch. It is kept in the caller's configuration: paths only.

    Args:
        layout: Which names ``SHA256SUMS`` uses.
        openvmm: The command that becomes the VMM, word by word.
        kernel: The kernel's absolute path.
        initramfs: The initramfs's.
        manifest: The ``SOURCE-MANIFEST.json``'s; ``SHA256SUMS`` is beside it.
    """

    layout: Layout
    openvmm: tuple[str, ...]
    kernel: str
    initramfs: str
    manifest: str


class _OpenvmmSource(msgspec.Struct, frozen=True):
    microvm_abi_version: int
    control_session_protocol_version: int
    control_contract_revision: str


class _SourceManifest(msgspec.Struct, frozen=True):
    openvmm: _OpenvmmSource


def find_artifacts(directory: str) -> Artifacts:
    """Find the artifacts of a release or a checkout.

    Args:
        directory: The root of either layout.

    Raises:
        NotFound: The directory is missing, or holds neither layout whole; every missing piece of the nearer layout is
            named.
    """
    root = kept_path(directory, what="artifacts")
    if not os.path.isdir(root):
        raise NotFound("there is no such directory", subject=root, detail="artifacts")
    lacking: list[tuple[Layout, list[str]]] = []
    for layout in (Layout.RELEASE, Layout.CHECKOUT):
        names = _NAMES[layout]
        openvmm = next((name for name in names.openvmm if _is_file(root, name)), None)
        others = (names.kernel, names.initramfs, SOURCE_MANIFEST, CHECKSUMS)
        missing = [] if openvmm else [names.openvmm[0]]
        missing += [name for name in others if not _is_file(root, name)]
        if openvmm and not missing:
            return Artifacts(
                layout,
                (_under(root, openvmm),),
                _under(root, names.kernel),
                _under(root, names.initramfs),
                _under(root, SOURCE_MANIFEST),
            )
        lacking.append((layout, missing))
    layout, missing = min(lacking, key=lambda item: len(item[1]))
    raise NotFound(
        f"not a whole {layout.value} of OpenVMM and its guest: {', '.join(missing)} missing",
        subject=root,
        hint="unpack a release there, or name the pieces one by one",
        detail="artifacts",
    )


def explicit_artifacts(openvmm: Sequence[str], *, kernel: str, initramfs: str, manifest: str) -> Artifacts:
    """Take artifacts that were named one by one.

    Args:
        openvmm: The command that becomes the VMM, word by word: its process must be the VMM itself. A first word with
            a separator is a path, kept in its absolute form; one without is looked up in PATH at each start.
        kernel: The kernel's path.
        initramfs: The initramfs's path.
        manifest: The path of a ``SOURCE-MANIFEST.json`` with ``SHA256SUMS`` beside it.

    Raises:
        NotFound: Files are missing; all of them are named.
        Refused: The command is empty or holds a NUL, or a file isn't a regular one.
    """
    if not openvmm or not openvmm[0] or any("\0" in word for word in openvmm):
        raise Refused("a command is needed, without a NUL", subject="openvmm", detail="openvmm")
    found = Artifacts(
        Layout.EXPLICIT,
        (_program(openvmm[0]), *openvmm[1:]),
        kept_path(kernel, what="kernel"),
        kept_path(initramfs, what="initramfs"),
        kept_path(manifest, what="manifest"),
    )
    checksums = os.path.join(os.path.dirname(found.manifest), CHECKSUMS)
    roles = {found.kernel: "kernel", found.initramfs: "initramfs", checksums: "manifest", found.manifest: "manifest"}
    unusable = [path for path in (found.kernel, found.initramfs, found.manifest, checksums) if not os.path.isfile(path)]
    if missing := [path for path in unusable if not os.path.exists(path)]:
        subject = ", ".join(dict.fromkeys(roles[path] for path in missing))
        raise NotFound(f"{', '.join(missing)} missing", subject=subject, detail="artifacts")
    if unusable:
        subject = ", ".join(dict.fromkeys(roles[path] for path in unusable))
        raise Refused(f"not a regular file: {', '.join(unusable)}", subject=subject, detail="kind")
    return found


def read_identity(artifacts: Artifacts, *, launching: bool = True) -> RuntimeIdentity:
    """Read the runtime identity: the digests that the artifacts' release states, and the contracts of this build.

    Args:
        artifacts: Which release.
        launching: Refuse a release that speaks other contracts than this build. A start must; a reattach must not, as
            it compares, and a difference is then its verdict.

    Raises:
        NotFound: ``SOURCE-MANIFEST.json`` or ``SHA256SUMS`` is missing.
        Malformed: One of them isn't what it should be, or lacks a line.
        Refused: The release speaks other contracts than this build (``detail="contract"``).
    """
    if launching:
        _check_contracts(artifacts.manifest)
    sums_path = os.path.join(os.path.dirname(artifacts.manifest), CHECKSUMS)
    sums = parse_checksums(_read(sums_path), subject=sums_path)
    names = _NAMES[artifacts.layout]
    return RuntimeIdentity(
        _digest(sums, names.openvmm, sums_path),
        _digest(sums, (names.kernel,), sums_path),
        _digest(sums, (names.initramfs,), sums_path),
        BOOT_CONTRACT,
        CONTROL_CONTRACT,
    )


def parse_checksums(raw: bytes, *, subject: str) -> dict[str, str]:
    """Parse ``SHA256SUMS``: lines of 64 hex digits, a space, a space or a star, and a name.

    Returns:
        Lower-case digests by name.

    Raises:
        Malformed: A line has another form, or a name comes twice.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("it isn't UTF-8", subject=subject, detail="checksums") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.removesuffix("\r")
        if not entry:
            continue
        digest, mode, name = entry[:64].lower(), entry[64:66], entry[66:].removeprefix("./")
        if (
            len(digest) != _DIGEST_LENGTH
            or set(digest) - set("0123456789abcdef")
            or mode not in {"  ", " *"}
            or not name
        ):
            raise Malformed(f"line {number} isn't a digest and a name", subject=subject, detail="checksums")
        if name in sums:
            raise Malformed(f"line {number} names {name!r} again", subject=subject, detail="checksums")
        sums[name] = digest
    return sums


def _check_contracts(path: str) -> None:
    try:
        source = msgspec.json.decode(_read(path), type=_SourceManifest).openvmm
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a source manifest: {error}", subject=path, detail="source-manifest") from error
    for name, expected in (
        ("microvm_abi_version", MICROVM_ABI_VERSION),
        ("control_session_protocol_version", CONTROL_SESSION_PROTOCOL_VERSION),
        ("control_contract_revision", CONTROL_CONTRACT_REVISION),
    ):
        found: int | str = getattr(source, name)
        if found != expected:
            raise Refused(
                f"its {name} is {found!r}; this build speaks {expected!r}",
                subject=path,
                hint="use the release that this build was made for",
                detail="contract",
            )


def _read(path: str) -> bytes:
    with open_sealed(path) as opened:
        length = opened.seal.length
        if length > MAX_METADATA_BYTES:
            raise Malformed(f"{length} bytes are over {MAX_METADATA_BYTES}", subject=path)
        return read_at(opened.fd, 0, length, what="content")


def _digest(sums: Mapping[str, str], names: tuple[str, ...], subject: str) -> str:
    found = [name for name in names if name in sums]
    if len(found) != 1:
        reason = f"no line for {names[0]}" if not found else f"lines for both {' and '.join(found)}"
        raise Malformed(reason, subject=subject, hint="nothing is hashed in its place", detail="checksums")
    return f"sha256:{sums[found[0]]}"


def _program(word: str) -> str:
    named = bool(os.path.dirname(word))
    return kept_path(word, what="openvmm") if named else word


def _under(root: str, name: str) -> str:
    return os.path.join(root, *name.split("/"))


def _is_file(root: str, name: str) -> bool:
    return os.path.isfile(_under(root, name))
