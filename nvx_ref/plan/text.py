"""Caller text: what may stand on a kernel command line that others append to.

The kernel splits at ASCII white space and, its character table being Latin-1, at the byte 0xA0, which UTF-8 uses inside
ordinary letters (``à`` is C3 A0). So tokens are looked for in bytes, and behind every such byte too.
"""

from __future__ import annotations

import re

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
    "tsc_early_khz=",
    "lapic_timer_hz=",
)
"""What the launcher, OpenVMM or a guest sets, or OpenVMM refuses; compared with ``-`` taken as ``_``."""

DIRECT_PREFIXES = ("tsc=", "hostname=")
"""What is reserved for a direct guest besides."""

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
        if character < " " or "\x7f" <= character <= "\x9f":
            raise Refused(f"it holds the control character {character!a}", subject=what, detail="control")
    if '"' in text:
        raise Refused("it holds a double quote, which OpenVMM refuses", subject=what, detail="quote")
    return data


def check_caller_text(text: str, *, what: str, direct: bool = False) -> None:
    """Check text that a caller adds to the command line.

    Args:
        text: What it adds.
        what: The option, for the error.
        direct: Whether it is for a direct guest.

    Raises:
        Refused: A character or a token isn't allowed (``detail`` says which rule).
    """
    prefixes = RESERVED_PREFIXES + DIRECT_PREFIXES if direct else RESERVED_PREFIXES
    _check_tokens(_SPLIT.split(check_characters(text, what=what)), prefixes, what)


def check_word(text: str, *, what: str) -> None:
    """Check a value that becomes one token: nothing escapes white space on a command line.

    Raises:
        Refused: It is empty, holds white space, or a character or hidden token that isn't allowed.
    """
    data = check_characters(text, what=what)
    if not text or any(character.isspace() for character in text):
        raise Refused("a word without white space is needed", subject=what, hint="use exec", detail="white-space")
    _check_tokens(_SPLIT.split(data)[1:], RESERVED_PREFIXES, what)


def _check_tokens(tokens: list[bytes], prefixes: tuple[str, ...], what: str) -> None:
    for token in tokens:
        if token == b"--":
            raise Refused("it holds a bare --, which ends the kernel's own options", subject=what, detail="dashes")
        name = token.replace(b"-", b"_")
        for prefix in prefixes:
            if name.startswith(prefix.encode()):
                raise Refused(
                    f"it holds {token.decode('utf-8', 'replace')!r}: {prefix} is reserved",
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
