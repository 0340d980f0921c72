"""Print what goes wrong without a guard: ``python -m tests.model.show [GUARD]``."""

from __future__ import annotations

import sys

from tests.model.search import search
from tests.model.worlds import MISSED


def main(wanted: list[str]) -> None:
    """Print the shortest scenario for the named guards, or for all."""
    for missed in MISSED:
        if not wanted or missed.guard.name in wanted:
            result = search(missed.world.without(missed.guard), missed.promise)
            print(f"without {missed.guard.name}: {missed.guard}\n{result.found}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
