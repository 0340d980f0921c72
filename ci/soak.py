"""The soak: thousands of launches and stops of one sandbox by one orchestrator, on the bundled fake.

``python ci/soak.py [CYCLES]``; `make soak` runs 2,000, and the tests a few dozen.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

from harness.backends import load
from harness.errors import Finding
from harness.progress import bar
from harness.settings import Settings, session_directory
from harness.soak import soak
from harness.world import World

CYCLES = 2000


def main(arguments: list[str]) -> int:
    """Run it and print what it came to."""
    cycles = int(arguments[0]) if arguments else CYCLES
    settings = Settings(directory=session_directory())
    world = World(settings, load(settings), label="soak")
    began = time.monotonic()
    try:
        with bar("soak") as shown:
            shown.plan(cycles)
            soak(world, cycles, told=lambda _: shown.done(failed=False))
        found = ""
    except Finding as finding:
        found = f"{finding}\nevidence: {world.keep()}"
    left = "\n".join(text for text in (found, world.close()) if text)
    if not os.path.isdir(os.path.join(settings.directory, "evidence")):
        shutil.rmtree(settings.directory, ignore_errors=True)
    spent = time.monotonic() - began
    result = left or "0 leaked descriptors, processes and files"
    print(f"{cycles} cycles of start and stop in {spent:.0f} s: {result}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
