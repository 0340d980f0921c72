"""Real image files for every run, small enough to be committed, and made-up artifacts for the bundled fake.

``ci/make_fixtures.py`` makes the images with mkfs.erofs, mkfs.ext4 and a GPT writer; here they are only unpacked. The
artifacts are made up: a kernel that is just an ELF header, an initramfs that is an empty archive, and the metadata that
a release has. Only the fake boots them.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from harness.platform import rename_new

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ADAPTER_INITRAMFS",
    "DISK_GUID",
    "EROFS_UUID",
    "SCRATCH_UUID",
    "Artifacts",
    "Images",
    "copy_scratch",
    "unpack",
    "write_artifacts",
]

EROFS_UUID = "11111111-1111-1111-1111-111111111111"
"""The UUID of every EROFS here; that of the contract's worked example."""

DISK_GUID = "01234567-89ab-cdef-8123-456789abcdef"
"""The disk GUID of both GPT disks; no two of its bytes are alike, so a wrong byte order shows."""

SCRATCH_UUID = "33333333-3333-3333-3333-333333333333"
"""The UUID of the scratch."""

ADAPTER_INITRAMFS = b"nvx-fake-initramfs adapter\n"
"""The first line of an initramfs whose agent is the test adapter's (contract openvmm 10.8)."""

_HERE = os.path.dirname(os.path.abspath(__file__))
_READ_ONLY = 0o444
_PRIVATE = 0o600
_SCRATCH = "scratch.ext4"


class Images(NamedTuple):
    """The unpacked images, by path.

    Args:
        erofs: An EROFS distro.
        gpt: A GPT disk with 512-byte sectors whose first partition is that EROFS.
        gpt4k: The same with 4,096-byte sectors.
        scratch: An empty ext4.
        uuid: The UUID of that EROFS.
        guid: The disk GUID of both disks.
    """

    erofs: str
    gpt: str
    gpt4k: str
    scratch: str
    uuid: str = EROFS_UUID
    guid: str = DISK_GUID


class Artifacts(NamedTuple):
    """A made-up release, by path.

    Args:
        directory: Its root.
        openvmm: A file in OpenVMM's place.
        kernel: An ELF header.
        initramfs: The managed agent's.
        adapter: The test adapter's.
        manifest: ``SOURCE-MANIFEST.json``; ``SHA256SUMS`` is beside it.
    """

    directory: str
    openvmm: str
    kernel: str
    initramfs: str
    adapter: str
    manifest: str


class _Content(NamedTuple):
    """A file's length, and the pieces of it that aren't all zero, each with its place."""

    length: int
    pieces: list[tuple[int, bytes]]


def unpack(directory: str) -> Images:
    """Unpack the images into a directory, which is created if it is missing.

    A file that is there already stays as it is: a scratch may hold a sandbox's data. Each file appears whole or not at
    all, also when several processes unpack at once.

    Args:
        directory: Where they go.

    Returns:
        Their absolute paths. The distros are read-only, as staged files are.
    """
    directory = os.path.abspath(directory)
    os.makedirs(directory, exist_ok=True)
    return Images(
        erofs=_place(directory, "distro.erofs", "distro.erofs", _READ_ONLY),
        gpt=_place(directory, "distro.gpt.img", "distro.gpt.img.xz", _READ_ONLY),
        gpt4k=_place(directory, "distro.gpt4k.img", "distro.gpt4k.img.xz", _READ_ONLY),
        scratch=copy_scratch(os.path.join(directory, _SCRATCH)),
    )


def copy_scratch(path: str) -> str:
    """Place a fresh scratch at a path, unless something is there already.

    Args:
        path: The scratch to be.

    Returns:
        Its absolute path.
    """
    path = os.path.abspath(path)
    return _place(os.path.dirname(path), os.path.basename(path), "scratch.ext4.xz", _PRIVATE)


def write_artifacts(
    directory: str, *, openvmm: bytes = b"not an OpenVMM\n", guest: Mapping[str, str] | None = None
) -> Artifacts:
    """Write a made-up release for the fake: the release layout with right digests. What is there already stays.

    Args:
        directory: Its root, created if it is missing.
        openvmm: What stands in OpenVMM's place, for example a launcher script.
        guest: Files that take the place of made-up ones, by their names in the layout.

    Returns:
        The paths.
    """
    from hashlib import sha256  # noqa: PLC0415 - for this call only

    root = os.path.abspath(directory)
    contents = {
        "bin/openvmm": openvmm,
        "guest/vmlinux": _kernel(),
        "guest/initramfs.cpio.gz": b"nvx-fake-initramfs managed\n",
        "guest/initramfs-adapter.cpio.gz": ADAPTER_INITRAMFS,
    }
    for name, path in (guest or {}).items():
        with open(path, "rb") as file:
            contents[name] = file.read()
    sums = "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in sorted(contents.items()))
    source = {
        "openvmm": {
            "microvm_abi_version": 2,
            "control_session_protocol_version": 1,
            "control_contract_revision": "nvx-microvm-v2-control-v2",
        }
    }
    contents["SHA256SUMS"] = sums.encode()
    contents["SOURCE-MANIFEST.json"] = (json.dumps(source, indent=2) + "\n").encode()
    paths: dict[str, str] = {}
    for name, data in contents.items():
        parent, base = os.path.split(os.path.join(root, *name.split("/")))
        os.makedirs(parent, exist_ok=True)
        paths[name] = _write(parent, base, _sparse(data), 0o755 if name == "bin/openvmm" else 0o644)
    return Artifacts(
        root,
        paths["bin/openvmm"],
        paths["guest/vmlinux"],
        paths["guest/initramfs.cpio.gz"],
        paths["guest/initramfs-adapter.cpio.gz"],
        paths["SOURCE-MANIFEST.json"],
    )


def _place(directory: str, name: str, packed: str, mode: int) -> str:
    path = os.path.join(directory, name)
    return path if os.path.lexists(path) else _write(directory, name, _content(packed), mode)


@cache
def _content(packed: str) -> _Content:
    with open(os.path.join(_HERE, packed), "rb") as file:
        data = file.read()
    if packed.endswith(".xz"):
        import lzma  # noqa: PLC0415 - for the packed ones only

        data = lzma.decompress(data)
    return _sparse(data)


def _write(directory: str, name: str, content: _Content, mode: int) -> str:
    path = os.path.join(directory, name)
    if os.path.lexists(path):
        return path
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            _write_sparse(file.fileno(), content)
        os.chmod(temporary, mode)
        rename_new(directory, temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return path


def _sparse(data: bytes) -> _Content:
    size = 1 << 16
    cut = ((start, data[start : start + size]) for start in range(0, len(data), size))
    return _Content(len(data), [(start, piece) for start, piece in cut if piece.strip(b"\0")])


def _write_sparse(fd: int, content: _Content) -> None:
    for start, kept in content.pieces:
        os.lseek(fd, start, os.SEEK_SET)
        piece = kept
        while piece:
            piece = piece[os.write(fd, piece) :]
    os.ftruncate(fd, content.length)


def _kernel() -> bytes:
    identification = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = struct.pack("<2HI3QI6H", 2, 62, 1, 0x1000000, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<2I6Q", 1, 5, 0x1000, 0x1000000, 0x1000000, 0x10, 0x10, 0x1000)
    return (identification + header + segment).ljust(0x1000, b"\0") + b"\xf4" * 0x10
