"""The names of a sandbox directory: whose they are, and what the caller may call its own files."""

from __future__ import annotations

import os
import re

import msgspec

from nvx_ref.errors import Refused

LOCK = "lifecycle.lock"
JOURNAL = "launch.json"
RUNTIME = "runtime.json"
CAPABILITY = "control.capability"
SOCKET = "control.sock"
LOG = "openvmm.log"
CONSOLE = "console.log"
OUTCOME = "outcome.json"

STORE_NAMES = (LOCK, JOURNAL, RUNTIME, CAPABILITY, SOCKET, LOG, CONSOLE, OUTCOME)
"""Every fixed name that belongs to the store."""

MAX_CALLER_NAME = 255 - len("..") - 32 - len(".tmp")
"""The longest caller's name in bytes: the temporary beside it, ``.NAME.<32 hex>.tmp``, must fit in 255."""

_SANDBOX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STAGING = r"\.tmp[A-Za-z0-9]{6}"
_TEMPORARY = r"(?s)\..+\.[0-9a-f]{32}\.tmp"
_FORBIDDEN = frozenset('<>:"/\\|?*')
_DEVICES = r"(?s)(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?"
_LINGERING = ".nfs"


def is_staging(name: str) -> bool:
    """Tell whether the name is one under which the VMM prepares its outcome report (620.scope6.m)."""
    return re.fullmatch(_STAGING, name) is not None


def is_temporary(name: str) -> bool:
    """Tell whether the name is one under which a record is written before its rename."""
    return re.fullmatch(_TEMPORARY, name) is not None


def temporary(name: str) -> str:
    """Return a name of that kind."""
    return f".{name}.{os.urandom(16).hex()}.tmp"


def is_lingering(name: str) -> bool:
    """Tell whether the name is what an NFS client leaves for a deleted file that is still open."""
    return name.startswith(_LINGERING)


def check_sandbox(name: str) -> str:
    """Return the sandbox's name, if it is one.

    Raises:
        Refused: It isn't ``[A-Za-z0-9][A-Za-z0-9._-]{0,63}``.
    """
    if _SANDBOX.fullmatch(name) is None:
        raise Refused(
            "not a sandbox's name",
            subject=repr(name),
            hint="use 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit",
            detail="sandbox-name",
        )
    return name


def _folded(name: str) -> str:
    # What the most forgiving file systems take for one name: letter case, compatibility forms and invisible
    # characters make no difference there (ext4 with casefold, NTFS, APFS).
    if name.isascii():
        return name.lower()
    import unicodedata  # noqa: PLC0415 - loaded for few names

    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(character for character in text if unicodedata.category(character) != "Cf")


_OWN = {_folded(name) for name in STORE_NAMES}


def _fault(name: str) -> str | None:
    """Return why the name can't be a caller's, or None."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "not UTF-8"
    folded = _folded(name)
    if not 0 < size <= MAX_CALLER_NAME:
        return f"not 1 to {MAX_CALLER_NAME} bytes long"
    if any(character in _FORBIDDEN or not character.isprintable() for character in name):
        return "not a single portable file name"
    if name in {".", ".."} or name[-1] in ". " or re.fullmatch(_DEVICES, folded):
        return "not a single portable file name"
    if folded in _OWN:
        return "one of the store's own names"
    if folded.startswith((_LINGERING, ".tmp")) or (folded.startswith(".") and folded.endswith(".tmp")):
        return "of a pattern that the store and the VMM keep for temporary files"
    return None


class CallerFiles(msgspec.Struct, frozen=True):
    """The files in a sandbox's directory that are the caller's (620.scope6.b, c).

    Args:
        configuration: The record whose presence means "provisioned".
        others: Any other names; removal deletes them, and calls nothing else the caller's.

    Raises:
        Refused: A name isn't a single portable file name, is one of the store's or of its temporary or staging
            patterns, or occurs twice. Letter case makes no difference, since some file systems know none.
    """

    configuration: str = "config.json"
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in self.names:
            fault = _fault(name)
            if fault is None and _folded(name) in seen:
                fault = "declared twice"
            if fault is not None:
                raise Refused(
                    f"can't be a caller's file: {fault}",
                    subject=ascii(name),
                    hint="declare another name",
                    detail="caller-name",
                )
            seen.add(_folded(name))

    @property
    def names(self) -> tuple[str, ...]:
        """Every declared name, the configuration first."""
        return (self.configuration, *self.others)


def foreign(names: list[str], caller: CallerFiles) -> list[str]:
    """Return, sorted, the names of a sandbox's directory that nobody declared (620.scope6.i)."""
    declared = {*STORE_NAMES, *caller.names}
    return sorted(
        name
        for name in names
        if name not in declared and not (is_staging(name) or is_temporary(name) or is_lingering(name))
    )
