"""A seeded fault: one patch in `ci/mutants/`, what it breaks, and which tests must notice.

A patch is a unified diff below a few header lines. Its context is small and its line numbers are a hint of nobody's:
a hunk is applied where its lines stand, if they stand in exactly one place. So a patch outlives changes around it, and
one that could mean two places is as good as lost.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WITNESS = "witness"
"""The promise that a fault in the harness itself breaks: what it looks at is what there is."""

PROMISES = (*(str(number) for number in range(1, 14)), WITNESS)
"""The numbers of "What must always be true", and the harness's own promise."""

_NAME = re.compile(r"m\d\d_[a-z0-9_]+")
_HEADER = re.compile(r"(Breaks|Promise|Noticed-by|Quick): (\S.*)")
_TEST = re.compile(r"(?:tests|scenarios)/\S+\.py::\S.*")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@.*")


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that are replaced.

    Attributes:
        old: The lines that stand there.
        new: Those that take their place.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What a patch does to one file.

    Attributes:
        path: The file, relative to the tree.
        hunks: The replacements, in the order of the file.
    """

    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A seeded fault.

    Attributes:
        name: The patch's name without its ending, ``mNN_what_is_broken``.
        breaks: What it breaks, in a sentence.
        promise: Which of :data:`PROMISES`.
        noticed_by: The tests that must notice, as pytest calls them; every one of them has to fail.
        quick: Whether the shortened run has it.
        changes: What it changes.
    """

    name: str
    breaks: str
    promise: str
    noticed_by: tuple[str, ...]
    quick: bool
    changes: tuple[Change, ...]


class Unfit(HarnessError):  # noqa: N818 - what it says, not what it is
    """A patch that doesn't apply to the tree that there is."""


def load(directory: str) -> list[Mutant]:
    """Read every patch of a directory, in the order of their names.

    Raises:
        HarnessError: There is none, or one isn't what a patch must be; the file is named.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".patch"))
    except OSError as error:
        raise HarnessError(f"{directory}: {error.strerror}; run this in a checkout, or name one") from error
    if not names:
        raise HarnessError(f"{directory}: there is no patch in it")
    found: list[Mutant] = []
    for name in names:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            found.append(parse(name.removesuffix(".patch"), file.read()))
    numbers = [mutant.name[:3] for mutant in found]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise HarnessError(f"{directory}: the number {twice[0]} is given twice")
    return found


def parse(name: str, text: str) -> Mutant:
    """Read one patch.

    Args:
        name: Its name without the ending.
        text: The whole file.

    Raises:
        HarnessError: Its name, its header or its diff isn't one.
    """
    if _NAME.fullmatch(name) is None:
        raise _bad(name, "it isn't called mNN_what_is_broken.patch")
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    said: dict[str, list[str]] = {}
    for line in filter(None, lines[:start]):
        header = _HEADER.fullmatch(line)
        if header is None:
            raise _bad(name, f"no header: {line!r}")
        said.setdefault(header[1], []).append(header[2])
    for key in ("Breaks", "Promise"):
        if len(said.get(key, ())) != 1:
            raise _bad(name, f"it needs one {key}: line")
    tests = tuple(said.get("Noticed-by", ()))
    if not tests or not all(_TEST.fullmatch(test) for test in tests):
        raise _bad(name, "it needs Noticed-by: lines, each with one test as pytest calls it")
    if said["Promise"][0] not in PROMISES:
        raise _bad(name, f"its promise is none of {', '.join(PROMISES)}")
    changes = tuple(_changes(name, lines[start:]))
    if not changes:
        raise _bad(name, "there is no diff in it")
    return Mutant(name, said["Breaks"][0], said["Promise"][0], tests, "Quick" in said, changes)


def _changes(name: str, lines: Sequence[str]) -> Iterable[Change]:
    place = 0
    while place < len(lines):
        if place + 1 >= len(lines) or not lines[place].startswith("--- a/"):
            raise _bad(name, f"no file's head: {lines[place]!r}")
        path = lines[place].removeprefix("--- a/")
        if lines[place + 1] != f"+++ b/{path}" or os.path.isabs(path) or ".." in path.split("/"):
            raise _bad(name, f"it doesn't change one file of the tree: {lines[place + 1]!r}")
        place += 2
        hunks: list[Hunk] = []
        while place < len(lines) and _HUNK.fullmatch(lines[place]):
            end = place + 1
            while end < len(lines) and lines[end][:1] in {" ", "-", "+", ""} and not lines[end].startswith("--- a/"):
                end += 1
            hunks.append(_hunk(name, lines[place + 1 : end]))
            place = end
        if not hunks:
            raise _bad(name, f"nothing changes in {path}")
        yield Change(path, tuple(hunks))


def _hunk(name: str, lines: Sequence[str]) -> Hunk:
    # Editors and mailers take the blank of an empty line of context away.
    old = tuple(line[1:] for line in lines if not line.startswith("+"))
    new = tuple(line[1:] for line in lines if not line.startswith("-"))
    if not old or old == new:
        raise _bad(name, "a hunk without lines to find, or without a change")
    return Hunk(old, new)


def apply(change: Change, text: str) -> str:
    """Return the text of a file with a change.

    Args:
        change: The change.
        text: The file's whole text.

    Raises:
        Unfit: The lines of a hunk don't stand there, or stand in several places.
    """
    lines = text.splitlines()
    for number, hunk in enumerate(change.hunks, 1):
        length = len(hunk.old)
        places = [at for at in range(len(lines) - length + 1) if tuple(lines[at : at + length]) == hunk.old]
        if len(places) != 1:
            where = f"{len(places)} places" if places else "no place"
            raise Unfit(f"hunk {number} of {change.path} fits {where}")
        lines[places[0] : places[0] + length] = hunk.new
    return "\n".join(lines) + "\n"


def patched(mutant: Mutant, tree: str) -> dict[str, str]:
    """Return the changed files of a tree, by their paths in it, without writing anything.

    Raises:
        Unfit: The patch doesn't apply; the reason names the file.
    """
    found: dict[str, str] = {}
    for change in mutant.changes:
        try:
            with open(os.path.join(tree, change.path), encoding="utf-8") as file:
                found[change.path] = apply(change, file.read())
        except OSError as error:
            raise Unfit(f"{change.path}: {error.strerror}") from error
    return found


def _bad(name: str, reason: str) -> HarnessError:
    return HarnessError(f"{name}.patch: {reason}")
