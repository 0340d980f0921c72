"""Inputs for the agent's readers."""

from __future__ import annotations

import random
from collections.abc import Callable

Ask = Callable[..., list[str]]
"""Gives what the readers say of many inputs, in their order."""


def number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def mutated(chance: random.Random, raw: bytes) -> bytes:
    made = bytearray(raw)
    for _ in range(chance.randrange(4)):
        what = chance.randrange(4)
        place = chance.randrange(len(made)) if made else 0
        if what == 0 and made:
            made[place] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif what == 1:
            del made[place:]
        elif what == 2:
            del made[place : place + chance.randrange(1, 9)]
        else:
            made[place:place] = chance.randbytes(chance.randrange(1, 9))
    return bytes(made)
