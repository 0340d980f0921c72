"""With ``-v``, what happens in a scenario, as it happens: what was asked for, each step, and the answers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pytest

    Live = Callable[[str, str], None]


def live(config: pytest.Config) -> Live | None:
    """Return what shows who did what; None where nobody looks on: without ``-v``, and in a worker of pytest-xdist.

    Args:
        config: The run's.
    """
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or config.get_verbosity() <= 0 or hasattr(config, "workerinput"):
        return None
    capture = config.pluginmanager.get_plugin("capturemanager")

    def show(who: str, what: str) -> None:
        here = capture.global_and_fixture_disabled() if capture is not None else nullcontext()
        with cast("AbstractContextManager[None]", here):
            terminal.ensure_newline()
            terminal.write_line(f"    {who}: {what}")

    return show
