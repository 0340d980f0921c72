"""How many workers a run has whose user named no number: several where a guest boots for seconds on one processor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SLOW_BOOTS = ("qemu",)
"""The backends whose runs are shared out by themselves."""

MOST = 4
"""Workers at most: each has a guest or two of 256 MiB."""


def workers(config: pytest.Config) -> int | None:
    """Return how many workers pytest-xdist is to start for a run that doesn't say, None to leave it alone.

    One named test, one that is debugged or shown as it speaks, and a list of tests are run here, as always.
    """
    if config.getoption("backend") not in SLOW_BOOTS or hasattr(config, "workerinput"):
        return None
    if config.getoption("numprocesses", default=0) is not None or config.getoption("tx", default=None):
        return None
    alone = config.getoption("usepdb") or config.getoption("collectonly") or config.getoption("capture") == "no"
    if alone or any("::" in argument for argument in config.args):
        return None
    count = min(MOST, os.cpu_count() or 1)
    return count if count > 1 else None
