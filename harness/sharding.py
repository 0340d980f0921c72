"""Splitting a run over machines: what belongs to which part follows from its id alone.

An id goes to the same part on every machine, in every order and beside any number of workers; adding a test, or a
cell, moves no other one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a run.

    Attributes:
        index: The how many-th, from 1.
        count: Of how many.
    """

    index: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def has(self, name: str) -> bool:
        """Tell whether an id belongs to this part."""
        return self.count == 1 or int(_sha256(name)[:16], 16) % self.count == self.index - 1


WHOLE = Shard()
"""The only part of a run that isn't split."""


@dataclass(slots=True)
class Slice:
    """Which part of which whole a run covers.

    Attributes:
        shard: Which part.
        whole: Every id of the selection.
        own: Those of this part.
    """

    shard: Shard = WHOLE
    whole: set[str] = field(default_factory=set[str])
    own: set[str] = field(default_factory=set[str])

    def take(self, name: str) -> bool:
        """Take note of an id of the selection, and tell whether it belongs to this part."""
        self.whole.add(name)
        if self.shard.has(name):
            self.own.add(name)
            return True
        return False


def parse(text: str) -> Shard:
    """Return the shard of ``I/N``.

    Raises:
        HarnessError: It is none.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})/([1-9]\d{0,4})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise HarnessError(f"{text!r} is no shard: write I/N, the I-th of N parts, with I from 1 to N")
    return Shard(int(found[1]), int(found[2]))


def digest(names: Iterable[str]) -> str:
    """Return what tells one set of ids from another."""
    return "sha256:" + _sha256("\n".join(sorted(names)))


def _sha256(text: str) -> str:
    from hashlib import sha256  # noqa: PLC0415 - this module is loaded by every run of pytest

    return sha256(text.encode(errors="surrogateescape")).hexdigest()
