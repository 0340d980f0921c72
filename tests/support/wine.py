"""What Wine does otherwise than Windows: asserted on Windows, expected to fail under Wine, with the reason."""

from __future__ import annotations

import ctypes
import sys

import pytest

ELSEWHERE = "the Windows half: `make wine`, or a Windows host"


def version() -> str | None:
    """Wine's version; None on Windows itself and everywhere else."""
    if sys.platform != "win32":
        return None
    try:
        found = ctypes.WinDLL("ntdll").wine_get_version
    except AttributeError:
        return None
    found.restype = ctypes.c_char_p
    return str(found().decode())


def differs(reason: str, *, run: bool = True) -> pytest.MarkDecorator:
    """Expect a test to fail under Wine only; not even run it there if it would wait for what never comes."""
    return pytest.mark.xfail(version() is not None, reason=f"Wine: {reason}", strict=True, run=run)


KEPT_NAMES = "a removed file keeps its name as long as somebody has it open"
NO_LINKS = "Windows' own links aren't there"


def only_windows() -> None:
    """Skip a module elsewhere, before it imports what only Windows has."""
    if sys.platform != "win32":
        pytest.skip(ELSEWHERE, allow_module_level=True)
