"""With ``-v``, what happens in a scenario, as it happens: what was asked for, each step, and the answers.

A worker of pytest-xdist has no terminal. It hands each line to the process that has one, as a report of a phase that
pytest doesn't know, which counts for nothing there and is shown with the worker's name and the test's.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Live = Callable[[str, str], None]

SAID = "nvx_live"
"""The attribute of a report that holds a line to be shown, and nothing of a test's outcome."""


def live(item: pytest.Item) -> Live | None:
    """Return what shows who did what in a test; None where nobody looks on: without ``-v``.

    Args:
        item: The test.
    """
    if item.config.get_verbosity() <= 0:
        return None
    if hasattr(item.config, "workerinput"):
        return lambda who, what: _send(item, who, what)
    return lambda who, what: show(item.config, f"{who}: {what}")


def show(config: pytest.Config, line: str) -> None:
    """Print a line in the middle of a test, if there is a terminal."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:
        return
    capture = config.pluginmanager.get_plugin("capturemanager")
    here = capture.global_and_fixture_disabled() if capture is not None else nullcontext()
    with cast("AbstractContextManager[None]", here):
        terminal.ensure_newline()
        terminal.write_line(f"    {line}")


def shown(config: pytest.Config, report: pytest.TestReport) -> bool:
    """Show what a worker hands on; tell whether the report is that and nothing else."""
    line: str | None = getattr(report, SAID, None)
    if line is not None and not hasattr(config, "workerinput"):
        node: object = getattr(report, "node", None)
        worker = getattr(getattr(node, "gateway", None), "id", "worker")
        show(config, f"{worker} {report.nodeid.rpartition('::')[2]}: {line}")
    return line is not None


def _send(item: pytest.Item, who: str, what: str) -> None:
    report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "setup")
    setattr(report, SAID, f"{who}: {what}")
    item.config.hook.pytest_runtest_logreport(report=report)
