"""What a host connects to, its connection, and the harness's channel: for the type checker alone."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from fake_openvmm.windows.channel import Channel
    from fake_openvmm.windows.pipes import PipeConnection as Connection
    from fake_openvmm.windows.pipes import PipeListener as Server
else:
    from socket import socket as Channel  # noqa: N812
    from socket import socket as Connection  # noqa: N812 - one name for whatever it is
    from socket import socket as Server  # noqa: N812

__all__ = ["Channel", "Connection", "Server"]
