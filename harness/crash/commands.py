"""`nvx-harness sweep` and `nvx-harness replay`: crash cells without pytest."""
# ruff: noqa: PLC0415 - what the commands do is imported when one of them runs

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from harness import outputs, sharding
from harness.errors import HarnessError, Unavailable
from harness.places import clear
from harness.settings import BACKENDS, Settings, factor, require_program, require_runs, session_directory, useless
from harness.sharding import WHOLE, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from harness.crash.workers import Swept

    Command = TypeVar("Command", bound=Callable[..., object])


def _factor(text: str) -> float:
    try:
        return factor(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def common(command: Command) -> Command:
    """Add the options of both commands."""
    for option in (
        click.option(
            "--timeout-scale", type=_factor, default=1.0, metavar="X", help="Stretch deadlines.", show_default=False
        ),
        click.option("--goldens", metavar="DIR", help="Where allowed_states.json is."),
        click.option("--started", is_flag=True, help="Start a real process for each orchestrator, fork none."),
        click.option("--orchestrator", metavar="CMD", help="A program that speaks the JSON lines."),
        click.option("--openvmm", metavar="CMD", help="The whole command of the VMM, as pytest's option takes it."),
        click.option("--artifacts", metavar="DIR", help="A real OpenVMM, as pytest's option takes it."),
        click.option("--backend", type=click.Choice(BACKENDS), default="fake", help="What VMs run on."),
    ):
        command = option(command)
    return command


@click.command(short_help="Run one crash cell again.")
@click.argument("cell", metavar="CELL")
@common
def replay(cell: str, *, started: bool, goldens: str | None, **options: object) -> int:
    """Run CELL again: the name that a failure prints, operation/way/call:argument#k."""
    from harness.crash.cells import parse
    from harness.crash.scenes import scene
    from harness.crash.sweep import golden_path, require_golden
    from harness.crash.workers import Task

    wanted = parse(cell)
    scene(wanted.scene)
    golden = require_golden(golden_path(goldens))
    with _session(options) as settings, ExitStack() as stack:
        result = Task(settings, golden, started).open(stack).replay(wanted)
    if not result.violation:
        click.echo(f"{cell}: ok")
        return 0
    click.echo(result.violation)
    if result.evidence:
        click.echo(f"  evidence: {result.evidence}")
    return 1


@click.command(short_help="Crash an orchestrator everywhere.")
@click.option("--sweep", type=click.Choice(["quick", "full"]), default="quick", help="How many crash points.")
@click.option("--scene", "scenes", multiple=True, metavar="NAME", help="Only this scene; may be given again.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only these cells: steps, events, calls, ...")
@click.option("-j", "--jobs", type=click.IntRange(1), default=None, help="Processes at once (default: the CPUs).")
@click.option("--shard", default="1/1", metavar="I/N", help="Run the I-th of N parts of the cells.")
@click.option("--report", metavar="FILE.json", help="Write the figures and the failed cells for machines.")
@common
def sweep(
    sweep: str,
    *,
    scenes: tuple[str, ...],
    groups: tuple[str, ...],
    jobs: int | None,
    shard: str,
    report: str | None,
    started: bool,
    goldens: str | None,
    **options: object,
) -> int:
    """Crash an orchestrator at its steps, events and system calls, start another one, and look what it makes of it."""
    from harness.crash.plan import GROUPS, parts
    from harness.crash.scenes import SCENES, scene
    from harness.crash.sweep import golden_path, options_of, require_golden, text_of
    from harness.crash.workers import Task, sweep_all
    from harness.progress import bar

    for name in scenes:
        scene(name)
    if unknown := [name for name in groups if name not in GROUPS]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(GROUPS)}", param_hint="--group")
    part = _part(shard)
    if report is not None:
        outputs.require_writable("--report", report)
    golden = require_golden(golden_path(goldens))
    whole = parts(sweep, scenes or tuple(SCENES), groups or GROUPS)
    with _session(options, sweep=sweep, shard=part) as settings, bar(f"{sweep} sweep") as shown:
        task = Task(settings, golden, started)
        found = sweep_all(task, whole, jobs or os.cpu_count() or 1, shown)
    tally = found.tally
    if report is not None:
        _write(report, found, settings, options_of(settings, started=started))
    for reason, count in sorted(found.missing.items()):
        click.echo(f"skipped: {reason}" if count == 1 else f"skipped: {reason} ({count} cells)")
    if tally.failures:
        click.echo(text_of(tally, options_of(settings, started=started)))
    click.echo(tally.line())
    if not tally.points and part.count == 1:
        click.echo("error: every cell was skipped, so nothing was judged", err=True)
        return 1
    return 1 if tally.failures or not found.slice.whole else 0


def _write(path: str, found: Swept, settings: Settings, options: tuple[str, ...]) -> None:
    from harness.report.build import of_sweep
    from harness.report.model import encode

    crashes = found.tally.crashes(options)
    text = encode(of_sweep(crashes, found.tally.figures(), found.missing, settings, found.slice))
    outputs.write("--report", path, text)


def _part(shard: str) -> Shard:
    try:
        return sharding.parse(shard)
    except HarnessError as error:
        raise HarnessError(f"--shard: {error}") from error


@contextmanager
def _session(
    options: dict[str, object], *, sweep: str = "quick", shard: Shard = WHOLE
) -> Generator[Settings, None, None]:
    """Make the options of a run, and remove its files but the evidence at its end."""
    from harness import stale
    from harness.backends import missing

    # An empty word is what an unset variable leaves: what was named so isn't silently another one.
    named = ("artifacts", "openvmm", "orchestrator")
    given = {name: None if (value := options[name]) is None else str(value) for name in named}
    if empty := [name for name, value in given.items() if value == "" and name != "orchestrator"]:
        raise HarnessError(f"--{empty[0]}: it is empty")
    settings = Settings(
        backend=str(options["backend"]),
        artifacts=given["artifacts"],
        openvmm=given["openvmm"],
        orchestrator=given["orchestrator"],
        sweep=sweep,
        timeout_scale=float(str(options["timeout_scale"])),
        directory=session_directory(),
        shard=shard,
    )
    require_program(settings)
    if fault := useless(settings):
        raise HarnessError(fault)
    if lacking := missing(settings):
        raise Unavailable(f"--backend {settings.backend}", lacking)
    require_runs(settings.directory)
    stale.sweep()
    try:
        yield settings
    finally:
        clear(settings.directory)
