"""Caller text: what may stand on a kernel command line that others append to.

The kernel splits at ASCII white space and, its character table being Latin-1, at the byte 0xA0, which UTF-8 uses inside
ordinary letters (``à`` is C3 A0). So tokens are looked for in bytes, and behind every such byte too.
"""

from __future__ import annotations

import re
import unicodedata

from nvx_ref.errors import Refused

RESERVED_PREFIXES = (
    "nvx_",
    "virtfs_",
    "virtnet_",
    "virtio_mmio.device=",
    "earlycon=",
    "console=",
    "nr_cpus=",
    "driver_async_probe=",
    "tsc=",
    "hostname=",
    "tsc_early_khz=",
    "lapic_timer_hz=",
)
"""What the launcher, OpenVMM or a guest sets, or OpenVMM refuses; compared with ``-`` taken as ``_``."""

_RESERVED = tuple(prefix.encode() for prefix in RESERVED_PREFIXES)
_SPLIT = re.compile(rb"[ \xa0]+")


def check_characters(text: str, *, what: str) -> bytes:
    """Return the text's UTF-8 bytes.

    Raises:
        Refused: It holds a NUL, a control character (tab and newline too), a double quote, or isn't valid UTF-8; see
            contract openvmm 2.2 and 10.5.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused("not valid UTF-8", subject=what, detail="utf-8") from error
    if "\0" in text:
        raise Refused("it holds a NUL", subject=what, detail="nul")
    for character in text:
        if unicodedata.category(character) == "Cc":
            raise Refused(f"it holds the control character {character!a}", subject=what, detail="control")
    if '"' in text:
        raise Refused("it holds a double quote, which OpenVMM refuses", subject=what, detail="quote")
    return data


def check_caller_text(text: str, *, what: str) -> None:
    """Check text that a caller adds to the command line.

    Raises:
        Refused: A character or a token isn't allowed (``detail`` says which rule).
    """
    _check_tokens(_SPLIT.split(check_characters(text, what=what)), what)


def check_word(text: str, *, what: str) -> None:
    """Check a value that becomes one token: nothing escapes white space on a command line.

    Raises:
        Refused: It is empty, holds white space, or a character or hidden token that isn't allowed.
    """
    data = check_characters(text, what=what)
    if not text or any(character.isspace() for character in text):
        raise Refused("a word without white space is needed", subject=what, hint="use exec", detail="white-space")
    _check_tokens(_SPLIT.split(data)[1:], what)


def _check_tokens(tokens: list[bytes], what: str) -> None:
    for token in tokens:
        name = token.replace(b"-", b"_")
        if name == b"__":
            raise Refused("it holds a bare --, which ends the kernel's own options", subject=what, detail="dashes")
        for prefix in _RESERVED:
            if name.startswith(prefix):
                raise Refused(
                    f"it holds {token.decode('utf-8', 'replace')!r}: {prefix.decode()} is reserved",
                    subject=what,
                    detail="reserved",
                )


def in_range(value: int, low: int, high: int, what: str) -> None:
    """Refuse a number out of its range.

    Raises:
        Refused: It is one (``detail="range"``).
    """
    if not low <= value <= high:
        raise Refused(f"{value} is outside {low} to {high}", subject=what, detail="range")
