"""Where a real OpenVMM, its kernel and its initramfs are, and whether they are what the harness was made for.

They come from `--artifacts`, from ``NVX_ARTIFACTS_DIR``, or from ``NVX_OPENVMM``, ``NVX_KERNEL`` and ``NVX_INITRD``
together (contract nvx-host 4.2), in a release's layout, a checkout's, or an archive of a release. Everything is looked
at before the first test, and everything that is missing is named at once.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from harness import cache
from harness.backends import archives, checksums
from harness.errors import HarnessError
from harness.images.restamp import is_erofs
from harness.platform import split_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.settings import Settings

DIRECTORY, OPENVMM, KERNEL, INITRD, MANIFEST = (
    "NVX_ARTIFACTS_DIR",
    "NVX_OPENVMM",
    "NVX_KERNEL",
    "NVX_INITRD",
    "NVX_MANIFEST",
)
DISTRO = "NVX_DISTRO"
SOURCE_MANIFEST = "SOURCE-MANIFEST.json"
MAX_MANIFEST = 1 << 20

CONTRACTS: Mapping[str, int | str] = {
    "microvm_abi_version": 2,
    "control_session_protocol_version": 1,
    "control_contract_revision": "nvx-microvm-v2-control-v2",
}
"""What a release must state of its OpenVMM; anything else is refused by name (contract nvx-host 3.6)."""

EXECUTABLE = ".exe" if sys.platform == "win32" else ""
ARCHIVES = {
    "kvm": "nvx-0.1.0-linux-kvm.tar.gz",
    "mshv": "nvx-0.1.0-linux-mshv.tar.gz",
    "whp": "nvx-0.1.0-windows-whp.zip",
}
"""The archive of a release for each hypervisor."""

HOW = f"--artifacts DIR, {DIRECTORY}, or {OPENVMM}, {KERNEL} and {INITRD}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the pieces are below a root.

    Attributes:
        name: ``release`` or ``checkout``.
        openvmm: OpenVMM's path.
        kernel: The kernel's.
        initrd: The initramfs's.
        distro: Where a distro image may be, beside the pieces that must be there.
        adapter: Where an initramfs with the test adapter's agent may be.
    """

    name: str
    openvmm: str
    kernel: str
    initrd: str
    distro: str
    adapter: str


LAYOUTS = (
    Layout(
        "release",
        f"bin/openvmm{EXECUTABLE}",
        "guest/vmlinux",
        "guest/initramfs.cpio.gz",
        "guest/ubuntu-distro.erofs",
        "guest/initramfs-adapter.cpio.gz",
    ),
    Layout(
        "checkout",
        f"openvmm/target/release/openvmm{EXECUTABLE}",
        "build/vmlinux",
        "build/initramfs.cpio.gz",
        "build/ubuntu-distro.erofs",
        "build/initramfs-adapter.cpio.gz",
    ),
)
RELEASE = LAYOUTS[0]


@dataclass(slots=True)
class Found:
    """What was found; it can be used only if nothing is missing.

    Attributes:
        command: OpenVMM's whole command, word by word.
        kernel: The kernel's path.
        initrd: The initramfs's path.
        manifest: The path of ``SOURCE-MANIFEST.json``.
        adapter: An initramfs with the test adapter's agent, None where there is none.
        distro: An EROFS image that guests boot from, None where none was given.
        digests: The SHA-256 of each piece, by its name in the release's layout.
        missing: Everything that it lacks, or that it must not be.
    """

    command: list[str] = field(default_factory=list[str])
    kernel: str = ""
    initrd: str = ""
    manifest: str = ""
    adapter: str | None = None
    distro: str | None = None
    digests: dict[str, str] = field(default_factory=dict[str, str])
    missing: list[str] = field(default_factory=list[str])


def find(settings: Settings, environment: Mapping[str, str]) -> Found:
    """Find the artifacts of a backend and check them.

    Args:
        settings: The run's options.
        environment: The environment's variables.
    """
    found = Found()
    named = {name: environment.get(name, "") for name in (OPENVMM, KERNEL, INITRD)}
    if settings.openvmm is not None:
        named[OPENVMM] = settings.openvmm
    parts = [name for name, value in named.items() if value and (name != OPENVMM or settings.openvmm is None)]
    place = settings.artifacts or ("" if parts else environment.get(DIRECTORY, ""))
    if place:
        _in_directory(found, settings.backend, place)
    elif not any(named.values()):
        found.missing.append(f"OpenVMM and its guest ({HOW})")
        return found
    else:
        others = " and ".join(parts) or "--openvmm"
        found.missing += [f"{name} (it goes with {others})" for name, value in named.items() if not value]
        found.kernel, found.initrd = named[KERNEL], named[INITRD]
        found.manifest = environment.get(MANIFEST) or _beside(found.kernel)
    if named[OPENVMM] and not (place and settings.openvmm is None):
        found.command = _words(named[OPENVMM])
    if image := environment.get(DISTRO):
        found.distro = image
    if not place or found.manifest:
        _check(found)
    return found


def _in_directory(found: Found, backend: str, place: str) -> None:
    """Look for an archive, then for the layouts, in what was named."""
    try:
        archive = _archive(backend, place)
        root = archives.unpacked(archive, cache.directory("artifacts")) if archive else os.path.abspath(place)
    except HarnessError as error:
        found.missing.append(f"a sound archive ({error})")
        return
    if not os.path.isdir(root):
        found.missing.append(f"the directory {root}")
        return
    lacking = {layout: _absent(root, layout) for layout in LAYOUTS}
    layout = min(LAYOUTS, key=lambda one: len(lacking[one]))
    found.missing += [f"{name} in {root}" for name in lacking[layout]]
    if len(lacking[layout]) == len(_absent("", layout)):
        found.missing[-1:] = [f"{found.missing[-1]} (nor is there {ARCHIVES[backend]})"]
    found.command = [_below(root, layout.openvmm)]
    found.kernel, found.initrd = _below(root, layout.kernel), _below(root, layout.initrd)
    found.manifest = os.path.join(root, SOURCE_MANIFEST)
    adapter, distro = _below(root, layout.adapter), _below(root, layout.distro)
    found.adapter = adapter if os.path.isfile(adapter) else None
    found.distro = distro if os.path.isfile(distro) else None


def _archive(backend: str, place: str) -> str | None:
    if place.endswith(archives.SUFFIXES):
        return place
    inside = os.path.join(place, ARCHIVES[backend])
    is_laid_out = any(not _absent(place, layout) for layout in LAYOUTS)
    return inside if os.path.isfile(inside) and not is_laid_out else None


def _absent(root: str, layout: Layout) -> list[str]:
    names = (layout.openvmm, layout.kernel, layout.initrd, SOURCE_MANIFEST)
    return [name for name in names if not root or not os.path.isfile(_below(root, name))]


def _below(root: str, name: str) -> str:
    return os.path.join(root, *name.split("/"))


def _beside(kernel: str) -> str:
    """Return where the manifest of a kernel that was named by itself is: beside it, or one directory up."""
    near = os.path.dirname(os.path.abspath(kernel)) if kernel else os.getcwd()
    places = [os.path.join(directory, SOURCE_MANIFEST) for directory in (near, os.path.dirname(near))]
    return next((path for path in places if os.path.isfile(path)), "")


def _words(command: str) -> list[str]:
    if os.path.isfile(command):
        # A path with spaces, which nobody meant to be split.
        return [command]
    try:
        return split_command(command)
    except ValueError:
        return []


def _check(found: Found) -> None:
    """Check each piece that is there: that it can be used, its digest, and the contracts of the whole."""
    program = shutil.which(found.command[0]) if found.command else None
    if found.command and program is None and os.path.isfile(found.command[0]):
        found.missing.append(f"the right to start {found.command[0]} (chmod +x)")
    elif found.command and program is None and not _is_named(found, found.command[0]):
        found.missing.append(f"a program {found.command[0]} that can be started")
    elif not found.command and not found.missing:
        found.missing.append("an OpenVMM command that can be split into words")
    if program is not None:
        found.command[0] = os.path.abspath(program)
    _check_files(found)
    if not found.manifest:
        found.missing.append(f"{SOURCE_MANIFEST} beside the kernel ({MANIFEST})")
    elif os.path.isfile(found.manifest):
        found.missing += _contracts(found.manifest)
        _digests(found)
    elif not _is_named(found, found.manifest):
        found.missing.append(f"the file {found.manifest}")


def _check_files(found: Found) -> None:
    for path in (found.kernel, found.initrd, found.distro):
        if path and not os.path.isfile(path) and not _is_named(found, path):
            found.missing.append(f"the file {path}")
    if found.distro and os.path.isfile(found.distro) and not is_erofs(found.distro):
        found.missing.append(f"a distro that is an EROFS image ({found.distro} is none, or can't be read)")


def _is_named(found: Found, path: str) -> bool:
    """Tell whether a missing file is in the list already, by its name in its layout."""
    text = path.replace(os.sep, "/")
    return any(text.endswith(f"/{entry.partition(' in ')[0]}") for entry in found.missing if " in " in entry)


def _contracts(manifest: str) -> list[str]:
    try:
        with open(manifest, "rb") as file:
            raw = file.read(MAX_MANIFEST + 1)
        document: object = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        return [f"a {SOURCE_MANIFEST} that can be read ({manifest}: {error})"]
    section = cast("dict[str, object]", document).get("openvmm") if isinstance(document, dict) else None
    if not isinstance(section, dict):
        return [f"an openvmm section in {manifest}"]
    stated = cast("dict[str, object]", section)
    # A truth value is a number to Python, and no version.
    return [
        f"a release of {name} {wanted!r} ({manifest} states {stated.get(name)!r})"
        for name, wanted in CONTRACTS.items()
        if stated.get(name) != wanted or isinstance(stated.get(name), bool)
    ]


def _digests(found: Found) -> None:
    """Hash the pieces, and compare them with what the release states of them, where it does."""
    root = os.path.dirname(os.path.abspath(found.manifest))
    stated: dict[str, str] = {}
    path = os.path.join(root, checksums.NAME)
    if os.path.isfile(path):
        try:
            stated = checksums.read(path)
        except HarnessError as error:
            found.missing.append(f"a sound {checksums.NAME} ({error})")
    pieces = {RELEASE.openvmm: _program(found), RELEASE.kernel: found.kernel, RELEASE.initrd: found.initrd}
    for name, piece in pieces.items():
        if not piece or not os.path.isfile(piece):
            continue
        digest = found.digests[name] = checksums.digest(piece)
        inside = _inside(piece, root)
        if stated.get(inside, digest) != digest:
            found.missing.append(f"{inside} as {path} states it (its SHA-256 is {digest})")


def _inside(piece: str, root: str) -> str:
    """Return a piece's name below a release's root; what is on another drive of Windows has none."""
    try:
        return os.path.relpath(os.path.abspath(piece), root).replace(os.sep, "/")
    except ValueError:
        return piece


def _program(found: Found) -> str:
    """Return the file that is OpenVMM: the last word of its command that names one."""
    files = [word for word in found.command if os.path.isfile(word)]
    return files[-1] if files else ""
