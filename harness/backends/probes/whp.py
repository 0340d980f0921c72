"""Can the Windows Hypervisor Platform run a guest here? It is asked whether it is there, and for a partition."""

from __future__ import annotations

import ctypes
import sys
from typing import Protocol, cast

from harness.backends.probes.device import Unfit

LIBRARY = "WinHvPlatform.dll"
HYPERVISOR_PRESENT = 0
PROCESSOR_COUNT = 0x1FFF
"""The code of a partition's property that must be set before it is set up."""

FEATURE = "turn on the Windows feature HypervisorPlatform"


class Platform(Protocol):
    """The calls of the library that are used; each returns an HRESULT."""

    def WHvGetCapability(self, code: int, buffer: object, size: int, written: object) -> int:  # noqa: N802
        """Ask for a capability."""
        ...

    def WHvCreatePartition(self, partition: object) -> int:  # noqa: N802
        """Create a partition."""
        ...

    def WHvSetPartitionProperty(self, partition: object, code: int, buffer: object, size: int) -> int:  # noqa: N802
        """Set a property of a partition."""
        ...

    def WHvSetupPartition(self, partition: object) -> int:  # noqa: N802
        """Make a partition ready to run."""
        ...

    def WHvDeletePartition(self, partition: object) -> int:  # noqa: N802
        """Delete a partition."""
        ...


def check(platform: Platform | None = None) -> str:
    """Ask for the capability, then set up a partition of one processor and delete it.

    Args:
        platform: The library; this system's own if None.

    Returns:
        What was seen, for people.

    Raises:
        Unfit: A guest can't run.
    """
    platform = platform or _load()
    present, written = ctypes.c_uint32(0), ctypes.c_uint32(0)
    code = platform.WHvGetCapability(HYPERVISOR_PRESENT, ctypes.byref(present), 4, ctypes.byref(written))
    if code:
        raise Unfit(f"WHvGetCapability fails with {_code(code)}")
    if not present.value:
        raise Unfit(f"the platform is installed and its hypervisor doesn't run ({FEATURE} and start anew)")
    partition = ctypes.c_void_p()
    if code := platform.WHvCreatePartition(ctypes.byref(partition)):
        raise Unfit(f"WHvCreatePartition fails with {_code(code)}")
    try:
        count = ctypes.c_uint32(1)
        if code := platform.WHvSetPartitionProperty(partition, PROCESSOR_COUNT, ctypes.byref(count), 4):
            raise Unfit(f"WHvSetPartitionProperty fails with {_code(code)}")
        if code := platform.WHvSetupPartition(partition):
            raise Unfit(f"WHvSetupPartition fails with {_code(code)}")
    finally:
        platform.WHvDeletePartition(partition)
    return "a partition was set up"


def _code(code: int) -> str:
    return f"{code & 0xFFFF_FFFF:#010x}"


def _load() -> Platform:
    if sys.platform != "win32":
        raise Unfit("this isn't Windows")
    try:
        return cast("Platform", ctypes.WinDLL(LIBRARY))
    except OSError:
        raise Unfit(f"{LIBRARY} isn't there ({FEATURE})") from None
