"""The commands about this machine: what can run here, scenarios in a container, and what runs left behind."""

from __future__ import annotations

import os
import sys

import click

from harness import containers, outputs, python
from harness import leftovers as left
from harness.backends import missing
from harness.errors import HarnessError, Unavailable
from harness.images import guest
from harness.settings import BACKENDS, RUNS, Settings, runs_directory

OWN_ARTIFACTS = ("fake", "qemu")
"""The backends that bring their own."""


@click.command(short_help="Tell which backends can run here.")
@click.option("--artifacts", metavar="DIR", help="A real OpenVMM, as pytest's option takes it.")
@click.option("--require", metavar="NAME", type=click.Choice(BACKENDS), help="Fail unless this backend can run here.")
def doctor(artifacts: str | None, require: str | None) -> int:
    """Tell which backends can run the scenarios here and what each of the others lacks."""
    click.echo(f"python {sys.version.split()[0]} ({python.interpreter()})")
    ready: set[str] = set()
    for name in BACKENDS:
        try:
            lacking = missing(Settings(backend=name, artifacts=None if name in OWN_ARTIFACTS else artifacts))
        except HarnessError as error:
            # One that can't even be looked for keeps nobody from learning of the others.
            lacking = (str(error),)
        ready |= set() if lacking else {name}
        _row(f"backend {name}", lacking)
    try:
        daemon = containers.connect(os.environ)
        click.echo(f"containers: ready ({daemon.kind} at {daemon.address})")
    except Unavailable as reason:
        _row("containers", reason.missing)
    if require is not None and require not in ready:
        click.echo(f"error: --require {require}: it can't run here", err=True)
        return 1
    return 0


def _row(name: str, lacking: tuple[str, ...]) -> None:
    """Print what one thing lacks: in its line if it is one piece, else below it."""
    if len(lacking) <= 1:
        click.echo(f"{name}: {f'missing {lacking[0]}' if lacking else 'ready'}")
        return
    click.echo(f"{name}: missing {len(lacking)} pieces")
    for piece in lacking:
        click.echo(f"  {piece}")


@click.command(short_help="Run scenarios in a container.")
@click.option("--artifacts", metavar="DIR", help="A real OpenVMM on this machine, seen read-only inside.")
@click.option("--report", metavar="FILE.json", help="Where the scenarios' report goes.")
@click.option("--checkout", metavar="DIR", default=".", help="The checkout that the image is built from (default: .).")
@click.option("--image", metavar="NAME", default=containers.IMAGE, help="The image's name.")
@click.option("--build/--no-build", default=True, help="Whether the image is built first (default: it is).")
@click.option("--if-possible", is_flag=True, help="Without a daemon, say so and succeed.")
@click.argument("arguments", nargs=-1, metavar="[-- PYTEST ARGUMENTS]")
def container(arguments: tuple[str, ...], *, build: bool, if_possible: bool, image: str, **names: str | None) -> int:
    """Run pytest in a container: a process space of its own, no network, /dev/kvm where this machine has it."""
    if (report := names["report"]) is not None:
        outputs.require_writable("--report", report)
    try:
        daemon = containers.connect(os.environ)
    except Unavailable as reason:
        if not if_possible:
            raise
        click.echo(f"skipped: {reason}")
        return 0
    if build:
        click.echo(f"building {image} (a minute or two the first time)", err=True)
        containers.build(daemon, os.path.abspath(names["checkout"] or "."), image)
    click.echo(f"running in a container of the {daemon.kind} at {daemon.address}", err=True)
    job = containers.Job(arguments, artifacts=names["artifacts"], image=image)
    return containers.run(daemon, job, output=sys.stdout.buffer, report=report)


@click.command(short_help="Make a distro for guests of a real OpenVMM.")
@click.argument("file", metavar="FILE.erofs")
def distro(file: str) -> None:
    """Make the smallest distro that scenarios can run in, for `NVX_DISTRO` on machines that can't make one."""
    outputs.require_writable("FILE.erofs", file)
    guest.smallest(os.path.abspath(file))


@click.command(short_help="Look for what test runs left on this machine.")
@click.option("--evidence", metavar="DIR", help="Copy the evidence of failures there.")
def leftovers(evidence: str | None) -> int:
    """Look for processes, sockets, mounts and state that this user's test runs left here; any is a failure.

    What other users' runs have is named and not counted.
    """
    if evidence == "":
        raise HarnessError("--evidence: the path is empty; name a directory")
    if evidence is not None:
        with outputs.told_of("--evidence", evidence, "name a directory that can be written"):
            count = left.keep(evidence)
        if count:
            click.echo(f"{evidence} holds the evidence of {count} {'run' if count == 1 else 'runs'}")
    with outputs.told_of(RUNS, runs_directory(), "name a directory that can be read"):
        found, others = left.find(), left.others()
    for line in found:
        click.echo(line)
    for line in others:
        click.echo(f"not counted: {line}")
    click.echo(f"{len(found)} left behind")
    return 1 if found else 0
