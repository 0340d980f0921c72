"""Witnesses: what is true of processes, files and descriptors, whatever the orchestrator says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.errors import Unavailable

if TYPE_CHECKING:
    from harness.witness.contract import Host


def host() -> Host:
    """Return the witnesses' view of this operating system.

    Raises:
        Unavailable: There is none for it yet.
    """
    if sys.platform != "win32":
        from harness.witness.linux import LinuxHost  # noqa: PLC0415 - only where it can be imported

        return LinuxHost()
    raise Unavailable("the process witness", ("its Windows half",))
