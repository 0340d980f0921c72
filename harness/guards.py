"""What a scenario must not do to the harness itself: keep descriptors, hang for ever, or print a secret."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from harness.platform import free_interrupts, ignore_interrupts, interrupts_held

if TYPE_CHECKING:
    from harness.world import World

TABLE = "/proc/self/fd"

LIMIT = 120.0
"""Seconds that a whole test may take where nothing else is said."""

REAL = 7.5
"""How many times as long a test may take whose guests are real."""

DUMP = pytest.StashKey[int]()

CUT = pytest.StashKey[bool]()
HELD = pytest.StashKey[ExitStack]()


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


def bound(item: pytest.Item, *, slow: bool, scale: float) -> None:
    """Have a scenario that takes too long fail by itself, with its evidence, instead of ending the whole run.

    Args:
        item: The scenario.
        slow: Whether its guests are real: each phase has a deadline of its own then, which says more than the end of
            the whole test.
        scale: `--timeout-scale`.
    """
    if not item.config.pluginmanager.hasplugin("timeout"):
        return
    known = item.get_closest_marker("timeout")
    usual = item.config.getoption("timeout", None) or os.environ.get("PYTEST_TIMEOUT") or item.config.getini("timeout")
    given = known.args[0] if known is not None and known.args else usual or (LIMIT if slow else None)
    limits = [] if given is None else [float(str(given)) * patience(slow=slow, scale=scale)]
    method = {"method": "signal"} if hasattr(signal, "SIGALRM") else {}
    if limits or method:
        item.add_marker(pytest.mark.timeout(*limits, **method), append=False)


def patience(*, slow: bool, scale: float) -> float:
    """Return how many times as long as elsewhere a whole test may take: never less."""
    return max(1.0, scale) * (REAL if slow else 1.0)


def open_dump(config: pytest.Config) -> None:
    """Keep where stacks go, before the output of tests is caught."""
    output = sys.__stderr__
    if output is not None and config.pluginmanager.hasplugin("faulthandler"):
        config.stash[DUMP] = kept = os.dup(output.fileno())
        config.add_cleanup(lambda: os.close(kept))


def postpone_dump(item: pytest.Item, *, slow: bool, scale: float) -> None:
    """Have the stacks of a scenario that is given longer dumped that much later, too: before that it isn't stuck."""
    seconds = float(str(item.config.getini("faulthandler_timeout") or 0)) * patience(slow=slow, scale=scale)
    if seconds and DUMP in item.config.stash:
        import faulthandler  # noqa: PLC0415 - for a scenario

        faulthandler.dump_traceback_later(seconds, file=item.config.stash[DUMP])


class Interrupts:
    """Ctrl-C in a run of scenarios: the first one cuts it short, and no other one the way from there to its end."""

    def __init__(self) -> None:
        self._heard = False

    def take(self, config: pytest.Config) -> None:
        """Answer from now on, unless somebody else does: a run in the background, and one that is debugged."""
        if threading.current_thread() is not threading.main_thread() or config.getoption("usepdb", default=False):
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._take)
            config.add_cleanup(self.give_back)

    def listen(self) -> None:
        """Take note that a test begins: whatever came before hasn't cut the run short."""
        self._heard = False

    def _take(self, _number: int, _frame: object) -> None:
        if not self._heard:
            self._heard = True
            raise KeyboardInterrupt

    def give_back(self) -> None:
        """Have Ctrl-C mean what it did before."""
        if signal.getsignal(signal.SIGINT) == self._take:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def cut_short(config: pytest.Config) -> None:
    """Take note that the run was interrupted; from here on it only tidies up, and isn't interrupted in that."""
    config.stash[CUT] = True
    if threading.current_thread() is threading.main_thread():
        ignore_interrupts()


def hold_interrupts(config: pytest.Config) -> None:
    """Hold Ctrl-C up while workers are begun, and in each of them until it collects.

    It would end a worker of pytest-xdist in the midst of Python's own start, with a traceback in everybody's terminal.

    Args:
        config: Of the process that begins them.
    """
    held = ExitStack()
    config.stash[HELD] = held
    config.add_cleanup(held.close)
    held.enter_context(interrupts_held())


def release_interrupts(config: pytest.Config) -> None:
    """Have what was held up arrive, now that the session that it is to end has begun."""
    if hasattr(config, "workerinput"):
        free_interrupts()
    elif HELD in config.stash:
        config.stash[HELD].close()


def has_workers(config: pytest.Config) -> bool:
    """Tell whether this process has begun workers."""
    return HELD in config.stash


def is_cut_short(config: pytest.Config) -> bool:
    """Tell whether the run was interrupted, so that nobody is told any more what the test in hand was about."""
    return config.stash.get(CUT, False)


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
