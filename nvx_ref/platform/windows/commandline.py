"""One text for a list of arguments, as the C runtime of the started program takes it apart again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nvx_ref.errors import Refused

assert sys.platform == "win32"

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 32_766
"""UTF-16 units of a command line; the system's 32,767 include the final NUL."""


def join(argv: Sequence[str]) -> str:
    """Quote and join arguments.

    Raises:
        Refused: There are none, one holds a NUL, or the text is too long for Windows.
    """
    if not argv or not argv[0] or any("\0" in word for word in argv):
        raise Refused("a command has a first word, and no word holds a NUL", subject="command", detail="argv")
    text = " ".join([_quote_program(argv[0]), *(quote(word) for word in argv[1:])])
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if units > LONGEST:
        raise Refused(
            f"the command has {units} UTF-16 units and Windows takes {LONGEST}",
            subject="command",
            hint="choose shorter paths",
            detail="too-long",
        )
    return text


def quote(word: str) -> str:
    """Quote one argument: backslashes count only where a quotation mark follows them."""
    if word and not any(character in word for character in ' \t\n\v"'):
        return word
    parts = ['"']
    backslashes = 0
    for character in word:
        if character == "\\":
            backslashes += 1
            continue
        if character == '"':
            parts.append("\\" * (backslashes * 2 + 1))
        else:
            parts.append("\\" * backslashes)
        parts.append(character)
        backslashes = 0
    parts.append("\\" * (backslashes * 2) + '"')
    return "".join(parts)


def split(text: str) -> list[str]:
    """Take a text apart as the C runtime does, all words by the rule of arguments.

    Raises:
        ValueError: A quotation isn't closed.
    """
    words: list[str] = []
    word: list[str] | None = None
    quoted = False
    position = 0
    while position < len(text):
        character = text[position]
        if character in " \t\n" and not quoted:
            if word is not None:
                words.append("".join(word))
                word = None
            position += 1
            continue
        word = [] if word is None else word
        if character == "\\":
            end = position
            while text[end : end + 1] == "\\":
                end += 1
            count = end - position
            position = end
            if text[end : end + 1] != '"':
                word.append("\\" * count)
                continue
            word.append("\\" * (count // 2))
            if count % 2:
                word.append('"')
                position += 1
            continue
        width = 2 if quoted and text.startswith('""', position) else 1
        if character != '"' or width > 1:
            word.append(character)
        else:
            quoted = not quoted
        position += width
    if quoted:
        raise ValueError("No closing quotation")
    return words if word is None else [*words, "".join(word)]


def _quote_program(word: str) -> str:
    # The first word is read by a simpler rule, in which a backslash is never special.
    if '"' in word:
        raise Refused("a program's path can't hold a quotation mark", subject=word, detail="argv")
    return f'"{word}"' if " " in word or "\t" in word else word
