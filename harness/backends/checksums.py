"""``SHA256SUMS``: the digests that a release states of its files. The harness reads it by itself, as a witness does."""

from __future__ import annotations

import hashlib
import os
import re

from harness.errors import HarnessError

NAME = "SHA256SUMS"
MAX_BYTES = 1 << 20
LINE = re.compile(r"([0-9A-Fa-f]{64}) [ *](?:\./)?(\S.*)")


def read(path: str) -> dict[str, str]:
    """Return the digests, in lower case, by name.

    Raises:
        HarnessError: It can't be read, or a line isn't a digest and a name that no other line has.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise HarnessError(f"{path}: it can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HarnessError(f"{path}: it isn't UTF-8") from error
    if len(raw) > MAX_BYTES:
        raise HarnessError(f"{path}: it has over {MAX_BYTES} bytes")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        parts = LINE.fullmatch(line)
        if parts is None or parts[2] in found or ".." in parts[2].split("/") or os.path.isabs(parts[2]):
            raise HarnessError(f"{path}: line {number} isn't a digest and a name of its own")
        found[parts[2]] = parts[1].lower()
    return found


def digest(path: str) -> str:
    """Hash a file.

    Returns:
        64 lower-case hex digits.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
