"""Debian's kernel for virtual machines: fetched, unpacked, and made into what OpenVMM wants, an uncompressed ELF."""

from __future__ import annotations

import glob
import os
import re
import struct
from dataclasses import dataclass

from harness.errors import HarnessError, Unavailable
from harness.qemu import tools

META = "linux-image-cloud-amd64"
MODULES = ("virtio_mmio", "virtio_blk", "virtio_console", "erofs", "overlay")
"""What the guest loads, apart from what these depend on."""

SETUP_SECTORS, PAYLOAD = 0x1F1, 0x248
"""Where a bzImage says how long its first part is, and where its compressed kernel lies."""

DEFAULT_SECTORS = 4
SECTOR = 512
LZ4 = b"\x02\x21\x4c\x18"
ELF = b"\x7fELF\x02\x01"


@dataclass(frozen=True, slots=True)
class Package:
    """An unpacked kernel package.

    Attributes:
        root: The directory that it is unpacked in.
        name: Its release, for example ``6.1.0-10-cloud-amd64``.
    """

    root: str
    name: str

    @property
    def image(self) -> str:
        """The path of its bzImage."""
        return os.path.join(self.root, "boot", f"vmlinuz-{self.name}")


def resolve() -> str:
    """Return the name of the package that Debian's kernel for virtual machines is in today.

    Raises:
        Unavailable: There is no apt here, or its lists don't know the package.
    """
    if tools.find("apt-cache") is None:
        raise Unavailable("fetching a kernel", ("apt (or give a Debian kernel package by --kernel FILE.deb)",))
    said = tools.run(["apt-cache", "depends", META], what="asking apt for the kernel's package")
    found = re.search(r"^\s*Depends:\s*(linux-image-\S+)$", said, re.MULTILINE)
    if found is None:
        raise Unavailable(f"the package {META}", ("apt's package lists (apt-get update)",))
    return found[1]


def fetch(name: str, directory: str) -> str:
    """Fetch a package into a directory and return its path."""
    tools.run(["apt-get", "download", "-qq", name], what=f"fetching {name}", cwd=directory)
    found = glob.glob(os.path.join(glob.escape(directory), f"{glob.escape(name)}_*.deb"))
    if len(found) != 1:
        raise HarnessError(f"{name}: apt-get download has left {len(found)} packages in {directory}, not one")
    return found[0]


def unpack(package: str, directory: str) -> Package:
    """Unpack a kernel package.

    Raises:
        HarnessError: It isn't one.
    """
    tools.run(["dpkg", "-x", package, directory], what=f"unpacking {package}")
    images = glob.glob(os.path.join(glob.escape(directory), "boot", "vmlinuz-*"))
    if len(images) != 1:
        raise HarnessError(f"{package}: holds {len(images)} kernels, not one; give a linux-image package of Debian's")
    return Package(directory, os.path.basename(images[0]).removeprefix("vmlinuz-"))


def extract(package: Package, to: str) -> None:
    """Write the uncompressed kernel.

    Raises:
        HarnessError: The kernel is packed in another way than Debian's.
    """
    with open(package.image, "rb") as file:
        raw = file.read()
    offset, length = struct.unpack_from("<II", raw, PAYLOAD)
    start = ((raw[SETUP_SECTORS] or DEFAULT_SECTORS) + 1) * SECTOR + offset
    # The last four bytes of the payload are the length of what is packed, which isn't lz4's.
    packed = raw[start : start + length - 4]
    if not packed.startswith(LZ4):
        raise HarnessError(f"{package.image}: its kernel isn't packed by lz4, as Debian's is")
    staged = f"{to}.lz4"
    with open(staged, "wb") as file:
        file.write(packed)
    tools.run(["lz4", "-d", "-f", "-q", staged, to], what="unpacking the kernel")
    os.unlink(staged)
    with open(to, "rb") as file:
        if not file.read(len(ELF)) == ELF:
            raise HarnessError(f"{package.image}: what is packed in it is no 64-bit ELF")


def modules(package: Package) -> dict[str, bytes]:
    """Return the modules that the guest loads, by name, each after what it depends on.

    Raises:
        HarnessError: One is missing or compressed.
    """
    found: dict[str, bytes] = {}
    below = os.path.join(glob.escape(package.root), "**", "lib", "modules", package.name)

    def load(name: str) -> None:
        if name in found:
            return
        paths = [
            path
            for spelling in {name, name.replace("_", "-")}
            for path in glob.glob(os.path.join(below, "**", f"{spelling}.ko"), recursive=True)
        ]
        if len(paths) != 1:
            raise HarnessError(f"{package.name}: {len(paths)} modules named {name}.ko, not one")
        with open(paths[0], "rb") as file:
            content = file.read()
        needed = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in needed[1].decode().split(",") if needed else ():
            if other:
                load(other.replace("-", "_"))
        found[name] = content

    for name in MODULES:
        load(name)
    return found
