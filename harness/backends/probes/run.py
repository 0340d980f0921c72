"""The script that runs one probe, in a process of its own: ``run.py kvm``. It prints one line."""

from __future__ import annotations

import os
import sys
from importlib import import_module

LEVELS = 4
"""How far above this file the directory of the package is."""


def main(name: str) -> None:
    """Print the verdict of a probe.

    Args:
        name: Its module.
    """
    place = os.path.abspath(__file__)
    for _ in range(LEVELS):
        place = os.path.dirname(place)
    sys.path.insert(0, place)
    check = import_module(f"harness.backends.probes.{name}").check
    unfit = import_module("harness.backends.probes.device").Unfit
    try:
        print("ok", check())
    except unfit as reason:
        print("no", reason)


if __name__ == "__main__":
    main(sys.argv[1])
