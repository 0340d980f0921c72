"""What the probes share: how one says that a guest can't run here, and how a hypervisor's device is opened."""

from __future__ import annotations

import os


class Unfit(Exception):  # noqa: N818 - what it says, not what it is
    """The hypervisor can't run a guest here; the text says why."""


def open_device(path: str, *, absent: str, denied: str = "") -> int:
    """Open a hypervisor's device.

    Args:
        path: The device.
        absent: What it takes for it to be there.
        denied: What gives this user access, if anything does.

    Raises:
        Unfit: It can't be opened.
    """
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        raise Unfit(f"there is no {path} ({absent})") from None
    except PermissionError:
        raise Unfit(f"{path} isn't readable and writable for this user{denied and f' ({denied})'}") from None
    except OSError as error:
        raise Unfit(f"{path} can't be opened: {error.strerror}") from error
