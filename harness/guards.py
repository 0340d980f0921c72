"""What a scenario must not do to the harness itself: keep descriptors, hang for ever, or print a secret."""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.world import World

TABLE = "/proc/self/fd"


def descriptors() -> dict[int, str]:
    """Return this process's descriptors by number, each with what it is; none where that can't be seen."""
    found: dict[int, str] = {}
    for name in os.listdir(TABLE) if os.path.isdir(TABLE) else []:
        try:
            found[int(name)] = os.readlink(os.path.join(TABLE, name))
        except OSError:
            # The one that the listing itself took.
            continue
    return found


def kept_open(before: dict[int, str]) -> list[str]:
    """Return the descriptors that are there now and weren't before, one line each."""
    if descriptors().items() <= before.items():
        return []
    # What nobody holds any more is only not collected yet.
    gc.collect()
    return [
        f"descriptor {number} of the test itself: {what}" for number, what in descriptors().items() - before.items()
    ]


def bound(item: pytest.Item) -> None:
    """Have a scenario that takes too long fail by itself, with its evidence, instead of ending the whole run."""
    if not hasattr(signal, "SIGALRM") or not item.config.pluginmanager.hasplugin("timeout"):
        return
    known = item.get_closest_marker("timeout")
    limits = known.args if known is not None else ()
    item.add_marker(pytest.mark.timeout(*limits, method="signal"), append=False)


def is_late(raised: pytest.ExceptionInfo[BaseException]) -> bool:
    """Tell whether a test was ended for taking too long."""
    return isinstance(raised.value, pytest.fail.Exception) and str(raised.value).startswith("Timeout ")


def censor(report: pytest.TestReport, world: World, finding: str | None) -> None:
    """Take every capability out of what a test printed or failed with, and fail the test that printed one.

    Args:
        report: The report of one phase of the test.
        world: The test's world.
        finding: What the orchestrator was found to do, if it failed for that: values are whole in there.
    """
    shown = [(name, world.evidence.without_secrets(text)) for name, text in report.sections]
    text = str(report.longrepr or "")
    clean = world.evidence.without_secrets(text)
    if shown == report.sections and clean == text:
        return
    report.sections = shown
    # A diff may hold parts of it, which nobody can find: of such a text with a secret in it nothing is shown.
    left_out = f"{report.nodeid}: what it failed with is left out"
    told = text if clean == text else left_out if finding is None else world.evidence.without_secrets(finding)
    if not told and world.failed:
        return
    world.failed = True
    report.outcome = "failed"
    report.longrepr = f"{told}\nthe test printed the capability of a sandbox".strip()
