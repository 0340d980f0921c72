"""What the machine asks of the operating system, of whichever twin is this one's."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from fake_openvmm.windows.system import (
        Companion,
        Wake,
        logical_block,
        memory_file,
        open_image,
        own_user,
        peer,
        private_name,
        read_at,
        unread,
        wait,
        write_at,
    )
else:
    from fake_openvmm.linux.system import (
        Companion,
        Wake,
        logical_block,
        memory_file,
        open_image,
        own_user,
        peer,
        private_name,
        read_at,
        unread,
        wait,
        write_at,
    )

__all__ = [
    "Companion",
    "Wake",
    "logical_block",
    "memory_file",
    "open_image",
    "own_user",
    "peer",
    "private_name",
    "read_at",
    "unread",
    "wait",
    "write_at",
]
