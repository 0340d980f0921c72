"""Can the Microsoft hypervisor run a guest here? A partition is asked of it and given back."""

from __future__ import annotations

import errno
import os
import struct
import sys

from harness.backends.probes.device import Unfit, open_device

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

import fcntl  # noqa: E402

DEVICE = "/dev/mshv"
CREATE_PARTITION = 0x4010B800
"""``_IOW(0xB8, 0, two u64)``: flags and isolation, as the kernel's own driver takes them."""

CHECK_EXTENSION = 0x4004B800
"""``_IOW(0xB8, 0, u32)``: what the driver before that one answered with a version."""

CORE_API = 0


def check() -> str:
    """Create a partition.

    Returns:
        What was seen, for people.

    Raises:
        Unfit: There is none to be had.
    """
    device = open_device(DEVICE, absent="it takes a root partition of the Microsoft hypervisor")
    try:
        partition = fcntl.ioctl(device, CREATE_PARTITION, struct.pack("<QQ", 0, 0))
    except OSError as error:
        if error.errno == errno.ENOTTY:
            raise Unfit(_older(device)) from error
        raise Unfit(f"{DEVICE} gives no partition: {error.strerror}") from error
    else:
        return "a partition was created" if _is_descriptor(partition) else "the driver answers"
    finally:
        os.close(device)


def _older(device: int) -> str:
    try:
        version = fcntl.ioctl(device, CHECK_EXTENSION, struct.pack("<I", CORE_API))
    except OSError:
        return f"{DEVICE} isn't the hypervisor's: it knows none of its requests"
    return f"{DEVICE} is of a driver before the kernel's own (core interface {version!r})"


def _is_descriptor(number: int | bytes) -> bool:
    if not isinstance(number, int) or number < 0:
        return False
    try:
        os.close(number)
    except OSError:
        return False
    return True
