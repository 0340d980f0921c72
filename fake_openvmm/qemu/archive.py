"""A second archive behind the initramfs: how the guest learns what is particular to this machine.

The kernel unpacks any number of archives one after the other. So nothing of it uses up the command line, which is the
contract's, byte for byte.
"""

from __future__ import annotations

import os

from fake_openvmm import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "nvx.conf"
ALIGNMENT = 4
TRAILER = "TRAILER!!!"
REGULAR = 0o100644


def appended(initrd: int, lines: Iterable[str]) -> int:
    """Copy an initramfs into a file without a name, and put a file with these lines behind it.

    Args:
        initrd: a descriptor of the initramfs; its position doesn't matter.
        lines: the content of `/nvx.conf`.

    Returns:
        A close-on-exec descriptor.
    """
    content = system.read_at(initrd, os.fstat(initrd).st_size, 0)
    text = "".join(f"{line}\n" for line in lines).encode()
    fd = system.memory_file(0)
    whole = _padded(content, 512) + _entry(NAME, text, inode=1) + _entry(TRAILER, b"", inode=0)
    system.write_at(fd, whole, 0)
    return fd


def _entry(name: str, data: bytes, *, inode: int) -> bytes:
    raw = name.encode() + b"\0"
    mode = REGULAR if data else 0
    # inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name, check
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
    return _padded(head, ALIGNMENT) + _padded(data, ALIGNMENT)


def _padded(data: bytes, size: int) -> bytes:
    return data + bytes(-len(data) % size)
