"""What a row of the rule tables is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.support.openvmm_forks import Forks
from tests.support.openvmm_stand import Stand


class Row(NamedTuple):
    """One command line that shows one rule of the contract.

    Attributes:
        rule: its name in a table of rules.
        changes: away from the managed launch of `Stand.base`.
        status: of the process.
        text: a part of the log, for a refusal.
        report: whether the failure is reported; success always is, a usage error never.
        line: a part of the effective command line, for a launch that is accepted.
        prepare: what the state directory needs beforehand.
    """

    rule: str
    changes: str
    status: int = 0
    text: str = ""
    report: bool = True
    line: str = ""
    prepare: Callable[[Stand], object] | None = None


def refused(rule: str, changes: str, text: str = "", prepare: Callable[[Stand], object] | None = None) -> Row:
    """Status 1 with a `vmm-failure` report."""
    return Row(rule, changes, 1, text, prepare=prepare)


def unreported(rule: str, changes: str, text: str = "", prepare: Callable[[Stand], object] | None = None) -> Row:
    """Status 1 without a report."""
    return Row(rule, changes, 1, text, report=False, prepare=prepare)


def usage(rule: str, changes: str, text: str = "") -> Row:
    """Status 2, nothing done."""
    return Row(rule, changes, 2, text, report=False)


def check(row: Row, stand: Stand, forks: Forks) -> None:
    """Run the row's command line and compare everything that it says."""
    if row.prepare:
        row.prepare(stand)
    stale = (stand.path / "outcome.json").exists()
    outcome = forks.run(stand, row.changes, side={} if row.line else None)
    assert outcome.status == row.status, outcome.log
    assert row.text in outcome.log
    assert not outcome.socket_left
    if row.status == 0:
        assert outcome.category == "success" or "~microvm-report" in row.changes
        assert "fatal error" not in outcome.log
    elif row.status == 1:
        assert outcome.log.splitlines()[-1].startswith("fatal error: ")
        assert stale or (outcome.category == "vmm-failure") == row.report, outcome.report
    else:
        assert outcome.log.startswith("error: ")
        assert outcome.report is None
    if row.line:
        assert row.line in stand.cmdline()
