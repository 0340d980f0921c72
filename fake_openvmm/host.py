"""Everything that the stand-in asks of the operating system, of whichever twin is this one's.

The rest of the package uses descriptors, paths and the names below, and nothing that only one system has.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from fake_openvmm.windows.host import (
        BACKLOG,
        CALLER_OWNED_SHARES,
        HYPERVISORS,
        NET_IRQ,
        OPEN_FLAGS,
        Listener,
        connect_channel,
        console_socket,
        default_signals,
        descriptors,
        die_by,
        endpoint_identity,
        facts,
        is_plain_directory,
        listen_here,
        mounts,
        open_file,
        publish,
        read_capability,
        set_name,
    )
else:
    from fake_openvmm.linux.host import (
        BACKLOG,
        CALLER_OWNED_SHARES,
        HYPERVISORS,
        NET_IRQ,
        OPEN_FLAGS,
        Listener,
        connect_channel,
        console_socket,
        default_signals,
        descriptors,
        die_by,
        endpoint_identity,
        facts,
        is_plain_directory,
        listen_here,
        mounts,
        open_file,
        publish,
        read_capability,
        set_name,
    )

__all__ = [
    "BACKLOG",
    "CALLER_OWNED_SHARES",
    "HYPERVISORS",
    "NET_IRQ",
    "OPEN_FLAGS",
    "Listener",
    "connect_channel",
    "console_socket",
    "default_signals",
    "descriptors",
    "die_by",
    "endpoint_identity",
    "facts",
    "is_plain_directory",
    "listen_here",
    "mounts",
    "open_file",
    "publish",
    "read_capability",
    "set_name",
]
