"""Commands as one text and as words, by the rules of this host: a POSIX shell's, or those of Windows' C runtime."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def split_command(text: str) -> list[str]:
    """Split a command into its words.

    Raises:
        ValueError: A quotation isn't closed.
    """
    if sys.platform == "win32":
        from nvx_ref.platform.windows.commandline import split  # noqa: PLC0415 - only where it can be imported

        return split(text)
    else:  # noqa: RET505 - tells type checkers which half of the world this is
        import shlex  # noqa: PLC0415 - few operations need it

        return shlex.split(text)


def show_command(words: Sequence[str]) -> str:
    """Return a command as one line to paste."""
    if sys.platform == "win32":
        from nvx_ref.platform.windows.commandline import quote  # noqa: PLC0415 - only where it can be imported

        return " ".join(quote(word) for word in words)
    else:  # noqa: RET505 - tells type checkers which half of the world this is
        import shlex  # noqa: PLC0415 - few operations need it

        return shlex.join(words)
