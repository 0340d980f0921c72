"""What becomes of the tests' reports: the table at the end, the report for machines, and properties for JUnit.

A test's facts travel with its report, in an attribute of its own that parallel workers hand on, so that the
properties, which JUnit's file shows, hold words only.
"""
# ruff: noqa: PLC0415 - what a scenario needs is imported when there is one

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, cast

import pytest

from harness import guards, guests
from harness.live import SAID, shown
from harness.platform import as_text, system_name
from harness.sharding import Slice
from harness.stories import clean
from harness.table import CRASHES, FIGURES, LEFT, PROPERTY, STORY, Table

if TYPE_CHECKING:
    from harness.progress import Line
    from harness.settings import Settings
    from harness.world import World

FACTS = "nvx"
"""The attribute of a report that holds what the table takes."""

OWN = frozenset({PROPERTY, FIGURES, CRASHES, LEFT, STORY})

WHOLE, OWN_PART = "nvx_whole", "nvx_own"
"""What a worker's output calls the ids of the selection, and those of them that belong to this part of the run."""

CUT = frozenset({pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR})

Facts = list[tuple[str, object]]


def finish(item: pytest.Item, report: pytest.TestReport, world: World | None, *, when: str) -> None:
    """Complete the report of one phase of a test.

    Args:
        item: The test.
        report: The report, which is changed.
        world: The test's world, if it had one.
        when: Which phase.
    """
    if world is not None:
        if when == "call" and item.get_closest_marker("crash"):
            again = _replay(item.config, item.nodeid)
            crashes: list[dict[str, object]] = [{"cell": cell, "replay": again} for cell in world.crashes()]
            figures = world.crash_figures(violated=report.failed)
            report.user_properties += [(FIGURES, figures), (CRASHES, crashes)]
        _keep(item, report, world, when=when)
    facts: Facts = [(name, value) for name, value in report.user_properties if name in OWN]
    report.user_properties = [pair for pair in report.user_properties if pair[0] not in OWN]
    for name, value in facts:
        if name == PROPERTY:
            cell = cast("dict[str, object]", value)
            report.user_properties += [("scenario", str(cell["scenario"])), ("backend", str(cell["backend"]))]
            ids = (("case", cell["cases"]), ("spec", cell["clauses"]))
            report.user_properties += [(kind, one) for kind, found in ids for one in cast("list[str]", found)]
    setattr(report, FACTS, facts)


def _keep(item: pytest.Item, report: pytest.TestReport, world: World, *, when: str) -> None:
    """Keep the evidence of a failed scenario, and have its report say where it is and how to run it again."""
    from harness import runs

    evidence = world.keep() if report.failed else ""
    # What a failure says may hold what nobody may read.
    reason = clean(reason_of(report), world.evidence.redact, limit=None)
    told = world.runs.told() if report.failed else []
    again = _replay(item.config, item.nodeid)
    if report.failed:
        report.user_properties.append((STORY, world.story(reason)))
    for name, value in report.user_properties:
        if name == PROPERTY and isinstance(value, dict):
            facts = cast("dict[str, object]", value)
            facts["evidence"] = evidence
            facts["reason"] = reason
            facts["replay"] = again if report.failed else ""
            facts["vmms"] = runs.as_data(told)
            facts["figures"] = dict(world.figures)
            facts["unseen"] = list(dict.fromkeys(world.unseen))
            facts["guests"] = guests.found(world.vmm) if when == "call" else []
            facts["commandLine"] = world.command_line() if when == "call" else {}
    if not report.failed:
        return
    partly = [f"          not whole: {world.evidence.lost}"] if world.evidence.lost else []
    kept = [f"evidence: {evidence}", *partly]
    text = "\n".join([*runs.shown(told), *world.runs.unseen(), *kept, f"replay:   {again}"])
    if hasattr(report.longrepr, "addsection"):
        report.longrepr.addsection(f"scenario, {when}", text)  # type: ignore[union-attr] # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportOptionalMemberAccess]
    else:
        report.longrepr = f"{report.longrepr}\n{text}"


def _replay(config: pytest.Config, node: str) -> str:
    words = ["pytest", node, "--backend", str(config.getoption("backend") or "fake")]
    for option in ("artifacts", "openvmm", "orchestrator"):
        value: str | None = config.getoption(option)
        words += [f"--{option}", value] if value else []
    return as_text(words)


def _let_go(directory: str, *, clear: bool = False) -> None:
    """Let go of the run's directory, if there is one, and remove it but for its evidence if it is to go."""
    if os.path.isdir(directory):
        from harness import places, stale

        places.clear(directory) if clear else stale.release(directory)


class Collector:
    """Fills the table: in a parallel run its hooks are called in the process that prints, for every worker's tests.

    Args:
        settings: The run's options.
        config: pytest's.

    Attributes:
        table: The table.
        notes: What is said below it.
    """

    def __init__(self, settings: Settings, config: pytest.Config) -> None:
        self.table = Table()
        self._settings = settings
        self._config = config
        self._slice = Slice(settings.shard)
        self._line: Line | None = None
        self._judged = False
        self._has_scenarios: bool | None = None
        self._interrupts = guards.Interrupts()
        self._faults: list[str] = []
        self.notes: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep what belongs to this part of the run, once every other selection is made."""
        others = [item for item in items if not self._slice.take(item.nodeid)]
        if others:
            items[:] = [item for item in items if item.nodeid in self._slice.own]
            config.hook.pytest_deselected(items=others)
        self._has_scenarios = any(name == PROPERTY for item in items for name, _ in item.user_properties)
        if not self._has_scenarios:
            self._interrupts.give_back()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Answer Ctrl-C from here on: what it ends now is no test of anybody's."""
        self._interrupts.take(session.config)
        guards.release_interrupts(session.config)

    def pytest_runtest_logstart(self) -> None:
        """Take note that a test begins."""
        self._interrupts.listen()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Have what a scenario has in hand tidied, whatever comes next."""
        # Before anything is collected nothing of anybody else's is in hand either; and where others collect, they tidy.
        if self._has_scenarios is not False:
            guards.cut_short(self._config)
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and guards.has_workers(self._config):
            terminal.ensure_newline()
            terminal.write_line("Interrupted: the workers are ending")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what a worker has collected: this process collects nothing itself."""
        told: dict[str, list[str]] = getattr(node, "workeroutput", {})
        self._slice.whole.update(told.get(WHOLE, []))
        self._slice.own.update(told.get(OWN_PART, []))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Keep the evidence of a test whose worker died in it, and say where it is and how to run it again."""
        from harness.lost import found

        facts = found(self._settings.directory, crashitem)
        if not facts:
            return
        facts["replay"] = _replay(self._config, crashitem)
        facts["reason"] = reason_of(report)
        setattr(report, FACTS, [(PROPERTY, facts)])
        report.longrepr = f"{report.longrepr}\nevidence: {facts['evidence']}\nreplay:   {facts['replay']}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Have what is only to be shown count for nothing."""
        return ("", "", "") if hasattr(report, SAID) else None

    @property
    def _is_whole(self) -> bool:
        """Whether this run is no part of another: a part may well hold nothing but what can't run here."""
        return self._settings.shard.count == 1

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one phase of one test."""
        if shown(self._config, report):
            return
        facts: Facts = getattr(report, FACTS, [])
        if report.failed or (report.when == "call" and (report.passed or hasattr(report, "wasxfail"))):
            # Tests of other kinds say nothing of a VM monitor or an orchestrator that was asked for by name.
            self._judged |= not self._is_named or any(name == PROPERTY for name, _ in facts)
        if report.when == "call":
            self._show(dict(facts))
        if report.when not in {"setup", "call", "teardown"} and (self.table or facts):
            self.table.lose(report.nodeid, self._settings.backend, reason_of(report), facts)
        elif report.when == "call" or not report.passed:
            self.table.take(facts, report.outcome, reason_of(report))
        if self.table and not self._has_scenarios:
            # This process collects nothing itself, and learns of scenarios by what becomes of them.
            self._has_scenarios = True
            self._interrupts.take(self._config)
        self.table.spend(facts, report.duration)

    def _show(self, facts: dict[str, object]) -> None:
        """Say how far the sweep of crash cells is, if somebody looks on."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        found = cast("dict[str, int]", facts.get(FIGURES, {}))
        if not found or terminal is None or not terminal.isatty or terminal.verbosity != 0:
            return
        if self._line is None:
            from harness.crash.plan import parts
            from harness.progress import Line

            self._line = Line(-(-len(parts(self._settings.sweep)) // self._settings.shard.count))
        terminal.rewrite(self._line.take(found["crashPoints"], found["violations"]), erase=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, and remove the run's directory unless it holds evidence."""
        path: str | None = self._config.getoption("nvx_report")
        told: dict[str, list[str]] | None = getattr(self._config, "workeroutput", None)
        if told is not None:
            if path is not None:
                told |= {WHOLE: sorted(self._slice.whole), OWN_PART: sorted(self._slice.own)}
            _let_go(self._settings.directory)
            return
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._slice.whole:
            # A part may be empty: what was selected belongs to the others.
            session.exitstatus = pytest.ExitCode.OK
        if self.table and not self._judged and session.exitstatus == pytest.ExitCode.OK and self._is_whole:
            self._faults.append(self._nothing())
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self.table and not self._judged and session.exitstatus == pytest.ExitCode.OK:
            self.notes.append("every scenario of this part was skipped: it has judged nothing")
        self.table.cut |= bool(session.shouldstop or session.shouldfail) or session.exitstatus in CUT
        if path is not None:
            self._write(path, session)
        _let_go(self._settings.directory, clear=True)

    @property
    def _is_named(self) -> bool:
        """Whether somebody has said what is to be judged, or on what."""
        return self._config.getoption("backend") is not None or self._settings.orchestrator is not None

    def _nothing(self) -> str:
        """Return what is said of a run that has judged nothing."""
        what = f"scenario on {self._settings.backend}" if self._is_named else "test"
        more = "" if self._settings.orchestrator is None else ", and docs/protocol.md what a hello may declare"
        return f"every {what} was skipped, so nothing was judged; the table says why{more}"

    def _write(self, path: str, session: pytest.Session) -> None:
        from harness.errors import HarnessError
        from harness.outputs import write
        from harness.report.build import of_scenarios
        from harness.report.model import encode

        text = encode(of_scenarios(self.table, self._settings, self._slice))
        try:
            write("--nvx-report", path, text)
        except HarnessError as error:
            self._faults.append(str(error))
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, if any scenario ran."""
        if self.table:
            terminalreporter.section(f"scenarios on {self._settings.backend}{system_name()}")
            for line in self.table.lines():
                terminalreporter.write_line(line)
            for note in self.notes:
                terminalreporter.write_line(f"note: {note}")
        for fault in self._faults:
            terminalreporter.write_line(f"error: {fault}", red=True)


def reason_of(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped, as one line; nothing for one that passed."""
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else str(report.longrepr)
    first = next(iter(text.strip().splitlines()), "")
    return re.sub(r"^(harness\.[\w.]+|AssertionError|Failed): ", "", first)
