"""The pytest plugin: options, markers, fixtures, the final table and the report.

It is loaded by every pytest of the environment, so it imports nothing but pytest and itself until a scenario runs,
and does nothing in a run without one.
"""
# ruff: noqa: PLC0415 - what a scenario needs is imported when there is one

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import pytest

from harness import guards, parallel, sharding
from harness.collector import Collector, finish
from harness.errors import Finding, HarnessError, Unmet, Unsupported, tells_all
from harness.live import live
from harness.platform import interrupts_held
from harness.settings import (
    BACKENDS,
    Settings,
    factor,
    is_text,
    own_goldens,
    require_program,
    require_runs,
    session_directory,
    useless,
)
from harness.table import GROUPS, PROPERTY, words

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from contextlib import AbstractContextManager

    from harness.backends.contract import Backend
    from harness.crash.sweep import Sweep
    from harness.goldens import Goldens
    from harness.world import World

SETTINGS = pytest.StashKey[Settings]()
COLLECTOR = pytest.StashKey[Collector]()
WORLD = pytest.StashKey["World"]()
SHARED = pytest.StashKey[int]()

SLOW = frozenset({"kvm", "mshv", "whp", "qemu"})
"""The backends whose guests are real."""

MARKERS = {
    "c3": "image-backed cold boot",
    "c4": "checked handoff of images",
    "c5": "exports, network and the managed order",
    "c6": "an orchestrator of the same runtime identity goes on",
    "c7": "another runtime identity, and every other way to be wrong",
    "crash": "the orchestrator is killed or leaves at a step",
    "command_line": "limits and tokens of the kernel command line",
    "image_swap": "images replaced between check and open",
    "lifecycle": "a sandbox's whole life on the command line",
    "windows": "what only Windows has",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the harness."""
    group = parser.getgroup("nvx", "orchestrators of NVX sandboxes")
    group.addoption("--backend", choices=BACKENDS, default=None, help="what the scenarios run on (default: fake)")
    group.addoption("--artifacts", metavar="DIR", help="a release or checkout layout of a real OpenVMM")
    group.addoption("--openvmm", metavar="CMD", help="the whole command of the VMM, instead of the backend's own")
    group.addoption(
        "--orchestrator", metavar="CMD", help="a program that speaks the JSON lines, instead of the bundled reference"
    )
    group.addoption(
        "--sweep", choices=("quick", "full"), default="quick", help="how many crash points (default: quick)"
    )
    group.addoption("--nvx-report", metavar="FILE.json", help="write the final table for machines")
    group.addoption("--shard", type=_shard, default="1/1", metavar="I/N", help="run the I-th of N parts of the tests")
    group.addoption("--timeout-scale", type=_factor, default=1.0, metavar="X", help="stretch every deadline by X")
    group.addoption("--update-goldens", action="store_true", help="write goldens instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and refuse a chosen backend that can't run here before anything runs."""
    for name in GROUPS:
        config.addinivalue_line("markers", f"{name}: {MARKERS[name]}")
    config.addinivalue_line("markers", "case(id, ...): the cases of the fault catalogue that the test replays")
    config.addinivalue_line("markers", "spec(id, ...): the clauses of the specification that the test shows")
    chosen: str | None = config.getoption("backend")
    settings = config.stash[SETTINGS] = Settings(
        backend=chosen or "fake",
        artifacts=config.getoption("artifacts"),
        openvmm=config.getoption("openvmm"),
        orchestrator=config.getoption("orchestrator"),
        sweep=str(config.getoption("sweep")),
        timeout_scale=float(config.getoption("timeout_scale") or 1.0),
        update_goldens=bool(config.getoption("update_goldens")),
        directory=_worker_input(config).get("nvx_directory") or session_directory(),
        shard=sharding.parse(str(config.getoption("shard"))),
    )
    collector = config.stash[COLLECTOR] = Collector(settings, config)
    config.pluginmanager.register(collector, "nvx-collector")
    guards.open_dump(config)
    if fault := _fault(settings, chosen=chosen is not None, report=config.getoption("nvx_report")):
        raise pytest.UsageError(fault)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Share a run out whose guests boot for seconds, unless its user said how; pytest-xdist reads the number next."""
    if (count := parallel.workers(config)) is not None:
        config.option.numprocesses = count
        config.stash[SHARED] = count
    return (yield)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say that a run is shared out by itself."""
    count = config.stash.get(SHARED, None)
    return f"scenarios: {count} workers, as guests boot for seconds (-n 0: one test after the other)" if count else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Look at another orchestrator once, before workers do: this process collects nothing, so it looks here."""
    settings = config.stash[SETTINGS]
    # What can't be said to workers is told here.
    unsaid = None if is_text(settings.directory) else _homeless(settings)
    if fault := unsaid or _unfit(config):
        raise pytest.UsageError(fault)
    guards.hold_interrupts(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Give each worker of pytest-xdist the same directory: this process removes it at the end."""
    config: pytest.Config = getattr(node, "config")  # noqa: B009 - xdist is optional and untyped
    worker_input: dict[str, str] = getattr(node, "workerinput")  # noqa: B009
    worker_input["nvx_directory"] = config.stash[SETTINGS].directory


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have each scenario carry what the table needs, so that a skip before its set-up carries it too."""
    settings = config.stash[SETTINGS]
    judged = False
    for item in items:
        groups = [name for name in GROUPS if item.get_closest_marker(name)]
        if groups:
            if not judged:
                _prepare(config, settings)
            judged = True
            cell: dict[str, object] = {
                "node": item.nodeid,
                "scenario": words(getattr(item, "originalname", None) or item.name),
                "groups": groups,
                "backend": settings.backend,
                "cases": _ids(item, "case"),
                "clauses": _ids(item, "spec"),
            }
            item.user_properties.append((PROPERTY, cell))
            guards.bound(item, slow=settings.backend in SLOW, scale=settings.timeout_scale)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a scenario whose fixtures already need what the backend can't do."""
    if any(name == PROPERTY for name, _ in item.user_properties):
        settings = item.config.stash[SETTINGS]
        guards.postpone_dump(item, slow=settings.backend in SLOW, scale=settings.timeout_scale)
    try:
        return (yield)
    except Unsupported as reason:
        pytest.skip(str(reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Sweep right after the test's own code, so that what it left fails the test itself."""
    try:
        result = yield
    except Unsupported as reason:
        _sweep(item, judged=False)
        pytest.skip(str(reason))
    except pytest.skip.Exception:
        _sweep(item, judged=False)
        raise
    except Unmet as unmet:
        # What was half done when the next request turned out to be more than the orchestrator declares isn't judged.
        _sweep(item, judged=False)
        if item.config.stash[SETTINGS].orchestrator is None:
            raise
        pytest.skip(str(unmet))
    except (KeyboardInterrupt, pytest.exit.Exception):
        # Whoever cuts a run short holds nothing against what it had in hand.
        raise
    except BaseException as error:
        if (world := item.stash.get(WORLD, None)) is not None:
            world.failed = True
        if left := _sweep(item):
            error.add_note(left)
        raise
    if left := _sweep(item):
        pytest.fail(left, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the evidence of a failed scenario, and print where it is and how to run it again."""
    report = yield
    raised, style = call.excinfo, item.config.option.tbstyle
    if report.failed and raised is not None and style == "auto" and (tells_all(raised.value) or guards.is_late(raised)):
        # What was found is in the text; the source of the whole scenario would only push it out of sight.
        item.config.option.tbstyle = "short"
        report.longrepr = item.repr_failure(raised)
        item.config.option.tbstyle = style
    world = item.stash.get(WORLD, None)
    if world is not None:
        guards.censor(report, world, str(raised.value) if raised is not None and tells_all(raised.value) else None)
    finish(item, report, world, when=call.when)
    return report


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> Backend:
    """What the scenarios run on, its artifacts resolved."""
    from harness.backends import load

    settings = pytestconfig.stash[SETTINGS]
    if fault := useless(settings) or _homeless(settings):
        pytest.fail(fault, pytrace=False)
    return load(settings)


@pytest.fixture
def world(request: pytest.FixtureRequest, backend: Backend) -> Iterator[World]:
    """One test's own directory, launcher, channel, witnesses and orchestrators; swept at the test's end."""
    from harness import stale
    from harness.outputs import said_of
    from harness.world import World

    settings = request.config.stash[SETTINGS]
    node = cast("pytest.Item", request.node)  # untyped before pytest 9.2
    stale.claim(settings.directory)
    before = guards.descriptors()
    try:
        here = node.stash[WORLD] = World(settings, backend, label=node.name, live=live(node))
    except OSError as error:
        pytest.fail(f"{settings.directory}: the test's place can't be made: {said_of(error)}", pytrace=False)
    try:
        with _noted(node, here):
            yield here
    finally:
        cut = guards.is_cut_short(request.config)
        with interrupts_held():
            left = here.close(judged=not cut)
        if not left and not here.failed and not cut and (kept := guards.kept_open(before)):
            left = "\n".join(["the test left behind:", *(f"  {line}" for line in kept)])
            here.evidence.keep("descriptors.txt", left)
        if left and not cut:
            pytest.fail(left, pytrace=False)


@pytest.fixture(scope="session")
def sweep(pytestconfig: pytest.Config, backend: Backend) -> Iterator[Sweep]:
    """What runs crash cells, with everything that the cells of this worker share."""
    from harness.crash.sweep import Sweep, golden_path, open_bench, options_of

    settings = pytestconfig.stash[SETTINGS]
    with open_bench(settings, backend) as bench:
        yield Sweep(bench, golden_path(str(pytestconfig.rootpath / "goldens")), options_of(settings, started=False))


@pytest.fixture
def goldens(request: pytest.FixtureRequest) -> Goldens:
    """The committed texts that outputs are compared with."""
    from harness.goldens import Goldens

    settings = request.config.stash[SETTINGS]
    found = Goldens(
        str(request.config.rootpath / "goldens"), update=settings.update_goldens, own=own_goldens(settings.backend)
    )
    if "world" in request.fixturenames:
        here: World = request.getfixturevalue("world")
        for place, name in here.names().items():
            found.name(place, name)
    return found


def _fault(settings: Settings, *, chosen: bool, report: str | None) -> str | None:
    """Return what is wrong with the options, before any test runs; nothing is looked at that wasn't asked for."""
    try:
        require_program(settings)
        if report is not None:
            from harness.outputs import require_writable

            require_writable("--nvx-report", report)
    except HarnessError as error:
        return str(error)
    if chosen:
        from harness.backends import load

        try:
            load(settings)
        except HarnessError as error:
            return str(error)
    return None


def _homeless(settings: Settings) -> str | None:
    """Return why runs can't keep their files where they are told to."""
    try:
        require_runs(settings.directory)
    except HarnessError as error:
        return str(error)
    return None


def _prepare(config: pytest.Config, settings: Settings) -> None:
    """Refuse what makes no scenario possible, told once, and remove what killed runs have left."""
    from harness import stale

    if _worker_input(config):
        # The process that prints has looked at the options; one of the workers sweeps for all. A place where no run can
        # be is told by each test's own backend.
        if _worker_input(config)["workerid"] == "gw0" and not _homeless(settings):
            stale.sweep()
        return
    if fault := useless(settings) or _homeless(settings) or _unfit(config):
        raise pytest.UsageError(fault)
    if not config.getoption("collectonly"):
        stale.sweep()


def _unfit(config: pytest.Config) -> str | None:
    """Return what is wrong with the other orchestrator, told once instead of by every scenario."""
    settings = config.stash[SETTINGS]
    if settings.orchestrator is None or config.getoption("collectonly"):
        return None
    from harness.outputs import said_of
    from harness.sut.introduce import introduce

    try:
        config.stash[COLLECTOR].notes += introduce(settings)
    except (Finding, HarnessError, OSError) as error:
        return f"--orchestrator {settings.orchestrator}: {said_of(error)}"
    return None


def _sweep(item: pytest.Item, *, judged: bool = True) -> str:
    world = item.stash.get(WORLD, None)
    if world is None:
        return ""
    left = world.sweep(judged=judged)
    world.failed |= bool(left)
    return left


def _noted(item: pytest.Item, world: World) -> AbstractContextManager[None]:
    """Note where a test is whose worker may die in it."""
    facts = [value for name, value in item.user_properties if name == PROPERTY]
    if not _worker_input(item.config) or not facts:
        return nullcontext()
    from harness.lost import noted

    return noted(world, item.config.stash[SETTINGS].directory, cast("dict[str, object]", facts[0]))


def _ids(item: pytest.Item, marker: str) -> list[str]:
    return sorted({str(one) for mark in item.iter_markers(marker) for one in mark.args})


def _worker_input(config: pytest.Config) -> dict[str, str]:
    found: dict[str, str] = getattr(config, "workerinput", {})
    return found


def _shard(text: str) -> str:
    try:
        return str(sharding.parse(text))
    except HarnessError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _factor(text: str) -> float:
    try:
        return factor(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
