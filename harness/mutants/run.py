"""Running seeded faults: a clean copy first, then one copy of the tree for each, and the tests that must notice.

A fault is noticed by a test that fails where it passes on the clean copy. A run that ends otherwise (nothing collected,
a module that can't be imported, a fixture that breaks, a test that hangs) says nothing about the fault and is no kill.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, TYPE_CHECKING
from xml.etree import ElementTree as ET

from harness import python, witness
from harness.deadline import Clock
from harness.ending import has_ended
from harness.mutants.patch import Mutant, Unfit, patched
from harness.places import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.progress import Bar

LIMIT = 300.0
"""Seconds that one run of pytest may take."""
TEST_LIMIT = 60
"""Seconds that one test may take."""
ENDING = 10.0
"""Seconds that what a faulty copy left running may take to be gone."""
SHOWN_LINES = 15
FEW = 4

_LEFT_OUT = (".git", ".venv", "build", "dist", "*.egg-info", ".hypothesis", "*_cache", "*.pyc.*")
"""What no copy needs; the last are compiled files in the making, which are gone again by the time they are copied."""
_EVIDENCE = re.compile(r"evidence: +(/\S*/nvx-[0-9a-f]{8})/evidence/")
_IMPORTED = """
import importlib, os, sys
for name in sys.argv[1:]:
    found = os.path.realpath(importlib.import_module(name).__file__)
    if not found.startswith(os.path.realpath(os.getcwd()) + os.sep):
        sys.exit(f"{name} comes from {found}")
"""


class Kind(StrEnum):
    """What became of a seeded fault."""

    KILLED = "killed"
    """Every test that must notice it failed."""
    WEAKER = "weaker"
    """Some of them did."""
    SURVIVED = "survived"
    """None of them did."""
    UNFIT = "unfit"
    """The patch doesn't apply any more."""
    BROKEN = "broken"
    """The run ended otherwise than by failed tests, so it says nothing."""
    SKIPPED = "skipped"
    """A test that must notice it can't run here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one.

    Attributes:
        mutant: The fault.
        kind: What became of it.
        noticed_by: The tests that failed.
        seconds: How long its run took.
        reason: Why it isn't killed, empty if it is.
    """

    mutant: Mutant
    kind: Kind
    noticed_by: tuple[str, ...] = ()
    seconds: float = 0.0
    reason: str = ""


@dataclass(slots=True)
class Outcome:
    """How a run of pytest ended.

    Attributes:
        status: Its exit status; None: it was ended at its limit.
        passed: The tests that passed.
        failed: Those that failed by their own code.
        skipped: Those that were skipped, with the reason.
        broken: Those whose set-up or clean-up broke, and what couldn't be collected.
        output: What it printed.
    """

    status: int | None
    passed: set[str] = field(default_factory=set[str])
    failed: set[str] = field(default_factory=set[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    broken: set[str] = field(default_factory=set[str])
    output: str = ""

    def of(self, test: str, among: Iterable[str]) -> list[str]:
        """Return which of some items of a run belong to a test: one, or one for each of its parameters."""
        return [item for item in among if item == test or item.startswith(f"{test}[")]

    @property
    def says_nothing(self) -> bool:
        """Whether there is no test in it whose end is known."""
        return not (self.passed or self.failed or self.skipped or self.broken)

    def tail(self) -> str:
        """Return the end of what it printed."""
        return "\n".join(self.output.strip().splitlines()[-SHOWN_LINES:])


class Workshop:
    """Where copies of a tree are made and run.

    Args:
        tree: The tree.
        directory: Where to work; it is made, and :meth:`close` removes it. A short path: sockets are made below it.
    """

    def __init__(self, tree: str, directory: str) -> None:
        self._tree = os.path.abspath(tree)
        self._directory = directory
        self._sessions: set[str] = set()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        os.mkdir(directory, 0o700)

    def close(self) -> None:
        """End what faulty copies left running, and remove every file of the runs."""
        host = witness.host()
        mark = f"{self._directory}/"
        for pid in host.processes():
            if pid == os.getpid():
                continue
            named = [*host.arguments(pid), *(one.target for one in host.descriptors(pid) or ())]
            pin = host.pin(pid) if any(mark in word for word in named) else None
            if pin is not None:
                pin.end()
                pin.wait(Clock().after(ENDING))
                pin.close()
        for place in (*self._sessions, self._directory):
            shutil.rmtree(place, ignore_errors=True)

    def stop(self) -> None:
        """End every run of tests that goes on."""
        self._stopped = True
        for child in [*self._running]:
            child.kill()

    def control(self, tests: Sequence[str], jobs: int) -> Outcome:
        """Run tests on a clean copy."""
        place = self._copy("c")
        try:
            # Workers take longer to start than a few tests to run.
            workers = ["-n", str(jobs)] if jobs > 1 and len(tests) > FEW else []
            return self._pytest(place, tests, workers, limit=LIMIT * 4)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def judge(self, number: int, mutant: Mutant) -> Verdict:
        """Run a seeded fault in a copy of its own."""
        began = time.monotonic()
        place = self._copy(str(number))
        try:
            self._seed(mutant, os.path.join(place, "w"))
            if fault := self._imports(mutant, os.path.join(place, "w")):
                return Verdict(mutant, Kind.BROKEN, reason=fault)
            found = self._pytest(place, mutant.noticed_by, [], limit=LIMIT)
            return _verdict(mutant, found, time.monotonic() - began)
        except Unfit as error:
            return Verdict(mutant, Kind.UNFIT, reason=str(error))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _copy(self, name: str) -> str:
        place = os.path.join(self._directory, name)
        os.mkdir(place, 0o700)
        os.mkdir(os.path.join(place, "u"), 0o700)
        ignored = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(self._tree, os.path.join(place, "w"), symlinks=True, ignore=ignored)
        _make_environment(place)
        return place

    def _seed(self, mutant: Mutant, tree: str) -> None:
        for path, text in patched(mutant, tree).items():
            where = os.path.join(tree, path)
            with open(where, "w", encoding="utf-8") as file:
                file.write(text)
            # Compiled files know their source by its size and second alone.
            compiled = os.path.join(os.path.dirname(where), "__pycache__")
            shutil.rmtree(compiled, ignore_errors=True)

    def _imports(self, mutant: Mutant, tree: str) -> str:
        names = [change.path.removesuffix(".py").replace("/", ".") for change in mutant.changes]
        names = [name.removesuffix(".__init__") for name in names if not name.startswith(("tests.", "scenarios."))]
        done = subprocess.run(
            [_python(os.path.dirname(tree)), "-c", _IMPORTED, *names],
            cwd=tree,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        return (
            "" if done.returncode == 0 else f"it can't be imported: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
        )

    def _pytest(self, place: str, tests: Sequence[str], options: list[str], *, limit: float) -> Outcome:
        tree, report, output = (os.path.join(place, name) for name in ("w", "r.xml", "o"))
        command = [_python(place), "-m", "pytest", *options, "-q", "--no-header", "--tb=short", "-p", "no:randomly"]
        command += ["-p", "no:cacheprovider", f"--timeout={TEST_LIMIT}", f"--basetemp={os.path.join(place, 't')}"]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}", *tests]
        steered = {"TMPDIR": os.path.join(place, "u")}
        with open(output, "wb") as file:
            status = self._ended(command, cwd=tree, env={**environment(), **steered}, output=file, limit=limit)
        with open(output, encoding="utf-8", errors="replace") as said:
            found = Outcome(status, output=said.read())
        self._sessions.update(_EVIDENCE.findall(found.output))
        if status in {0, 1} and os.path.exists(report):
            _read(report, found)
        return found

    def _ended(
        self, command: list[str], *, cwd: str, env: dict[str, str], output: IO[bytes], limit: float
    ) -> int | None:
        """Run a command to its end; return its status, None if it doesn't end within the limit, in seconds."""
        child = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        self._running.add(child)
        try:
            return child.wait() if has_ended(child, Clock().after(0 if self._stopped else limit)) else None
        finally:
            child.kill()
            child.wait()
            self._running.discard(child)


def _python(place: str) -> str:
    return os.path.join(place, "v", "bin", "python")


def _make_environment(place: str) -> None:
    """Make a virtual environment in which the copy is installed, with everything else of this one.

    A path in an environment variable isn't enough: tests start isolated interpreters, which would find the tree that
    this environment was made for.
    """
    base = python.interpreter()
    where = os.path.join(place, "v")
    packages = sysconfig.get_path("purelib", "venv", {"base": where, "platbase": where})
    os.makedirs(packages)
    os.mkdir(os.path.dirname(_python(place)))
    os.symlink(base, _python(place))
    here = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    texts = {
        os.path.join(where, "pyvenv.cfg"): f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n",
        os.path.join(packages, "copy.pth"): "\n".join([os.path.join(place, "w"), *here, ""]),
    }
    for path, text in texts.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def _read(report: str, found: Outcome) -> None:
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        item = f"{case.get('file')}::{case.get('name')}"
        kinds = {child.tag: child.get("message") or "" for child in case}
        if "error" in kinds:
            found.broken.add(item)
        elif "failure" in kinds:
            found.failed.add(item)
        elif "skipped" in kinds:
            found.skipped[item] = kinds["skipped"]
        else:
            found.passed.add(item)
    # A test that failed and whose clean-up broke as well has two entries: it did fail.
    found.broken -= found.failed


def _verdict(mutant: Mutant, found: Outcome, seconds: float) -> Verdict:
    if found.status is None:
        return Verdict(mutant, Kind.BROKEN, (), seconds, f"it didn't end within {LIMIT:.0f} seconds")
    silent = [test for test in mutant.noticed_by if not found.of(test, found.failed)]
    noticed = tuple(test for test in mutant.noticed_by if test not in silent)
    if found.says_nothing:
        return Verdict(mutant, Kind.BROKEN, (), seconds, f"pytest ended with {found.status}:\n{found.tail()}")
    if not silent:
        return Verdict(mutant, Kind.KILLED, noticed, seconds)
    broken = [item for test in silent for item in found.of(test, found.broken)]
    if broken or found.status not in {0, 1}:
        reason = f"no test failed by its own code: {', '.join(broken)}\n{found.tail()}"
        return Verdict(mutant, Kind.BROKEN, noticed, seconds, reason)
    reason = f"not noticed by {', '.join(silent)}"
    return Verdict(mutant, Kind.WEAKER if noticed else Kind.SURVIVED, noticed, seconds, reason)


def check_control(mutants: Sequence[Mutant], found: Outcome) -> tuple[list[str], dict[str, str]]:
    """Judge the run of the clean copy.

    Returns:
        What is wrong with it, one line each: without a green control nothing can be judged. And the tests that can't
        run here, with the reason.
    """
    if found.status is None:
        return [f"the clean copy's tests didn't end within {LIMIT * 4:.0f} seconds"], {}
    if found.status not in {0, 1} or found.says_nothing:
        return [f"pytest ended with {found.status} on a clean copy:\n{found.tail()}"], {}
    wrong = [f"fails on a clean copy too: {item}" for item in sorted(found.failed | found.broken)]
    missing: dict[str, str] = {}
    for test in {test for mutant in mutants for test in mutant.noticed_by}:
        if found.of(test, found.passed) or found.of(test, found.failed | found.broken):
            continue
        skipped = found.of(test, found.skipped)
        if skipped:
            missing[test] = found.skipped[skipped[0]]
        else:
            wrong.append(f"no such test: {test}")
    return wrong, missing


def judge_all(shop: Workshop, mutants: Sequence[Mutant], missing: dict[str, str], jobs: int, bar: Bar) -> list[Verdict]:
    """Judge seeded faults, several at once.

    Args:
        shop: Where copies are made.
        mutants: The faults.
        missing: The tests that can't run here, with the reason.
        jobs: How many at once.
        bar: Takes note of what is done.

    Returns:
        The verdicts, in the order of the faults.
    """
    bar.plan(len(mutants))
    found: dict[str, Verdict] = {}
    judge: Callable[[int, Mutant], Verdict] = shop.judge
    with ThreadPoolExecutor(jobs) as pool:
        pending: set[Future[Verdict]] = set()
        for number, mutant in enumerate(mutants):
            absent = [test for test in mutant.noticed_by if test in missing]
            if absent:
                found[mutant.name] = Verdict(mutant, Kind.SKIPPED, reason=f"{absent[0]}: {missing[absent[0]]}")
                bar.done(failed=False)
            else:
                pending.add(pool.submit(judge, number, mutant))
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    verdict = future.result()
                    found[verdict.mutant.name] = verdict
                    bar.done(failed=verdict.kind is not Kind.KILLED)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            shop.stop()
            raise
    return [found[mutant.name] for mutant in mutants]
