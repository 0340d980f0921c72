"""Where a guest sees a mapped host path: at the same path, or below `/mnt/c` for drive C (nvx-host 3.3)."""

from __future__ import annotations

import sys

from nvx_ref.errors import Refused

DRIVES = "/mnt"
_DRIVE = 2
_EXTENDED = "\\\\?\\"


def guest_path(path: str) -> str:
    """Return where a guest sees a canonical, absolute path of this host.

    Raises:
        Refused: It is on no drive, but on another computer or a device (``detail="volume"``).
    """
    return below_drives(path) if sys.platform == "win32" else path


def below_drives(path: str) -> str:
    r"""Return where a guest sees a path of a Windows host: `C:\a\b` at `/mnt/c/a/b`.

    Raises:
        Refused: As :func:`guest_path`.
    """
    import ntpath  # noqa: PLC0415 - only a Windows host has such paths

    drive, rest = ntpath.splitdrive(path.removeprefix(_EXTENDED))
    if len(drive) != _DRIVE or not drive[0].isascii() or not drive[0].isalpha():
        raise Refused(
            "only what is on a drive can be mapped: not what another computer shares, nor a device",
            subject=path,
            hint="map a directory below a drive's letter",
            detail="volume",
        )
    return f"{DRIVES}/{drive[0].lower()}{rest.replace(ntpath.sep, '/')}"
