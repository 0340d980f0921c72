"""What a host connects to, and its connection: for the type checker alone."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from fake_openvmm.windows.pipes import PipeConnection as Connection
    from fake_openvmm.windows.pipes import PipeListener as Server
else:
    from socket import socket as Connection  # noqa: N812 - one name for whatever it is
    from socket import socket as Server  # noqa: N812

__all__ = ["Connection", "Server"]
