"""The only place that knows the operating system: ``process``, ``spawn``, ``files`` and ``endpoint`` of this one.

What they promise is in :mod:`nvx_ref.platform.contract` and :mod:`nvx_ref.platform.modules`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nvx_ref.errors import Refused

if sys.platform == "linux":
    from nvx_ref.platform.linux import endpoint, files, process, spawn
elif sys.platform == "win32":
    from nvx_ref.platform.windows import endpoint, files, process, spawn
else:
    raise Refused(
        "this build runs on Linux and Windows only",
        subject=f"platform {sys.platform}",
        hint="use a Linux or Windows host",
    )

if TYPE_CHECKING:
    from nvx_ref.platform import modules

    _process: modules.ProcessModule = process
    _spawn: modules.SpawnModule = spawn
    _files: modules.FilesModule = files
    _endpoint: modules.EndpointModule = endpoint

DEFAULT_HYPERVISOR = "kvm" if sys.platform == "linux" else "whp"
"""The backend that ``auto`` means here (nvx-host 2.1)."""

__all__ = ["DEFAULT_HYPERVISOR", "endpoint", "files", "process", "spawn"]
