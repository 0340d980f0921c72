"""Writing the initramfs: the agent as init, the modules that it loads, and a busybox for guests without layers."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORIES = ("bin", "dev", "etc", "home", "home/nobody", "modules", "proc", "root", "run", "sys", "tmp")
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home/nobody:/bin/sh\n",
    "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
}
ADAPTER_MARK = "nvx-adapter"
"""The file by which the agent knows that it is to be the test adapter's."""


class Archive:
    """A cpio archive as kernels unpack it, not compressed: that takes long on an emulated processor."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._inode = 0

    def add(self, name: str, data: bytes = b"", *, mode: int) -> None:
        """Add an entry; its kind is in its mode."""
        self._inode += 1
        raw = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        self._put(b"070701" + b"".join(b"%08X" % field for field in fields) + raw)
        self._put(data)

    def content(self) -> bytes:
        """Return the whole archive."""
        self.add("TRAILER!!!", mode=0)
        return b"".join(self._parts)

    def _put(self, data: bytes) -> None:
        self._parts.append(data + bytes(-len(data) % 4))


def build(agent: bytes, busybox: bytes, applets: list[str], modules: Mapping[str, bytes], *, adapter: bool) -> bytes:
    """Return an initramfs.

    Args:
        agent: The agent, an executable without libraries.
        busybox: The same kind of executable.
        applets: What it is to be called, in `/bin`.
        modules: By name, in the order of loading.
        adapter: Whether the agent is the test adapter's.
    """
    archive = Archive()
    for name in DIRECTORIES:
        archive.add(name, mode=stat.S_IFDIR | (0o1777 if name == "tmp" else 0o755))
    archive.add("init", agent, mode=stat.S_IFREG | 0o755)
    archive.add("bin/busybox", busybox, mode=stat.S_IFREG | 0o755)
    for name in applets:
        archive.add(f"bin/{name}", b"busybox", mode=stat.S_IFLNK | 0o777)
    for name, data in ACCOUNTS.items():
        archive.add(name, data, mode=stat.S_IFREG | 0o644)
    for name, data in modules.items():
        archive.add(f"modules/{name}.ko", data, mode=stat.S_IFREG | 0o644)
    archive.add("modules/order", "".join(f"{name}.ko\n" for name in modules).encode(), mode=stat.S_IFREG | 0o644)
    if adapter:
        archive.add(ADAPTER_MARK, b"1", mode=stat.S_IFREG | 0o644)
    return archive.content()
