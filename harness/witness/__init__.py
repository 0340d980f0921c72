"""Witnesses: what is true of processes, files and descriptors, whatever the orchestrator says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.witness.contract import Host


def host() -> Host:
    """Return the witnesses' view of this operating system."""
    if sys.platform == "win32":
        from harness.witness.windows import WindowsHost  # noqa: PLC0415 - only where it can be imported

        return WindowsHost()
    else:  # noqa: RET505 - tells type checkers which half of the world this is
        from harness.witness.linux import LinuxHost  # noqa: PLC0415 - only where it can be imported

        return LinuxHost()
