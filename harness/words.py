"""Commands of Windows as one text, for its C runtime and for PowerShell: the same functions on every system."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BARE = re.compile(r"[\w:\\./+-]+", re.ASCII)
_PIECE = re.compile(r'(\\*)(""?)|(\\+)|([ \t]+)|([^\\" \t]+)')


def split_as_runtime(text: str) -> list[str]:
    r"""Split a command as the C runtime of a started program does.

    A backslash is only itself, as in a path, unless a quotation mark follows its row: then two of them are one, and an
    odd one before the mark makes it a mark of the word. Inside a quotation two marks are one of the word. The first
    word is no exception, as it is to the system, which looks for a program in it: no program has a mark in its name.

    Raises:
        ValueError: A quotation isn't closed.
    """
    words: list[str] = []
    word: str | None = None
    quoted = False
    position = 0
    while found := _PIECE.match(text, position):
        position = found.end()
        before, marks, backslashes, blanks, plain = found.groups(default="")
        if blanks and not quoted:
            words += [] if word is None else [word]
            word = None
            continue
        word = (word or "") + backslashes + blanks + plain
        if not marks:
            continue
        word += "\\" * (len(before) // 2)
        if len(before) % 2:
            word, position = f'{word}"', found.end(1) + 1
        elif quoted and marks == '""':
            word += '"'
        else:
            quoted, position = not quoted, found.end(1) + 1
    if quoted:
        raise ValueError("No closing quotation")
    return words if word is None else [*words, word]


def as_powershell(words: Sequence[str]) -> str:
    """Return a command as one line to paste into PowerShell, to which a quoted word alone is a text and no program."""
    line = " ".join(word if _BARE.fullmatch(word) else "'" + word.replace("'", "''") + "'" for word in words)
    return f"& {line}" if line.startswith("'") else line
