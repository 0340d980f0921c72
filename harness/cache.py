"""Where the harness keeps what took long to fetch, unpack or build, from one run to the next."""

from __future__ import annotations

import os

from harness.outputs import told_of
from harness.platform import CACHE

VARIABLE = "NVX_HARNESS_CACHE"


def directory(*names: str) -> str:
    """Return a directory of this user's cache, which is made; parts that are made are private.

    Args:
        names: Its path below the cache, name by name.

    Raises:
        HarnessError: It can't be made; the variable that would name another one is in the text.
    """
    variable, chosen = VARIABLE, os.environ.get(VARIABLE)
    if not chosen:
        name, home = CACHE
        variable = name if os.environ.get(name) else VARIABLE
        base = os.environ.get(name) or os.path.join(os.path.expanduser("~"), *home.split("/"))
        chosen = os.path.join(base, "nvx-harness")
    path = os.path.join(os.path.abspath(chosen), *names)
    with told_of(variable, path, "name a directory that can be written"):
        os.makedirs(path, mode=0o700, exist_ok=True)
    return path
