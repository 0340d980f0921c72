"""Types of option values: what isn't one is a usage error."""

from __future__ import annotations

import click

from nvx_ref.deadline import MAX_SECONDS


class Seconds(click.ParamType[float]):
    """A bound in seconds: over 0, finite, at most 30 days."""

    name = "S"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text."""
        try:
            seconds = float(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if not 0 < seconds <= MAX_SECONDS:
            self.fail(f"{value!r}: over 0 and at most {MAX_SECONDS:.0f} seconds", param, ctx)
        return seconds


class Pair(click.ParamType[tuple[int, int]]):
    """``UID:GID``, both decimal, both over zero: a workload is never root."""

    name = "UID:GID"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse the text."""
        user, colon, group = str(value).partition(":")
        if not (colon and user.isascii() and group.isascii() and user.isdecimal() and group.isdecimal()):
            self.fail(f"{value!r} is not two decimal numbers joined by a colon", param, ctx)
        pair = (int(user), int(group))
        if not all(0 < number < 2**32 for number in pair):
            self.fail(f"{value!r}: each number must be 1 to 4294967295; root is not allowed", param, ctx)
        return pair
