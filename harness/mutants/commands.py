"""`nvx-harness mutants`: every seeded fault, the tests that must notice it, and the list that none may leave."""
# ruff: noqa: PLC0415 - what the command does is imported when it runs

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import click

from harness import outputs
from harness.errors import HarnessError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.mutants.patch import Mutant
    from harness.mutants.run import Verdict

PATCHES = os.path.join("ci", "mutants")
BASELINE = "baseline.json"


@click.command(short_help="Seed faults and see that the tests notice.")
@click.option("--only", multiple=True, metavar="mNN", help="Only this fault; may be given again.")
@click.option("--quick", is_flag=True, help="Only the few that the shortened run has.")
@click.option("-j", "--jobs", type=click.IntRange(1), default=None, help="Copies at once (default: the CPUs).")
@click.option("--output", metavar="FILE.json", help="Write what became of each for machines.")
@click.option("--tree", metavar="DIR", default=".", help="The checkout (default: the current directory).")
@click.option("--update-baseline", is_flag=True, help="Write the list anew once every fault was noticed.")
def mutants(
    *, only: tuple[str, ...], quick: bool, jobs: int | None, output: str | None, tree: str, update_baseline: bool
) -> int:
    """Apply each patch of ci/mutants to a copy of the tree, and run the tests that must notice it.

    A fault that a test doesn't notice, a patch that doesn't apply any more and one that isn't in
    ci/mutants/baseline.json, or is in it alone, fail. A clean copy must pass the same tests first.
    """
    from harness.mutants.patch import load
    from harness.mutants.run import Kind, Workshop, check_control, judge_all
    from harness.progress import bar, clock
    from harness.settings import session_directory

    if not hasattr(os, "fork"):
        raise Unavailable("mutants", ("Linux: the faults are in its half of the reference",))
    if output is not None:
        outputs.require_writable("--output", output)
    began = time.monotonic()
    known = load(os.path.join(tree, PATCHES))
    chosen = _chosen(known, only, quick=quick)
    if update_baseline and len(chosen) != len(known):
        raise click.UsageError("--update-baseline needs a run of every fault")
    wrong = [] if update_baseline else unlisted(known, tree)
    verdicts: list[Verdict] = []
    count = jobs or os.cpu_count() or 1
    shop = Workshop(tree, session_directory())
    try:
        tests = sorted({test for mutant in chosen for test in mutant.noticed_by})
        with bar("seeded faults") as shown:
            red, missing = check_control(chosen, shop.control(tests, count))
            if not red:
                verdicts = judge_all(shop, chosen, missing, count, shown)
    finally:
        shop.close()
    wrong += [f"control: {line}" for line in red]
    good = {Kind.KILLED, Kind.SKIPPED}
    wrong += [f"{one.mutant.name}: {one.kind}: {one.reason}" for one in verdicts if one.kind not in good]
    for one in verdicts:
        if one.kind is Kind.SKIPPED:
            click.echo(f"skipped: {one.mutant.name}: {one.reason}")
    for line in wrong:
        click.echo(line)
    if output is not None:
        _write(output, verdicts, wrong, time.monotonic() - began)
    if update_baseline and not wrong:
        _write_baseline(known, tree)
    killed = sum(one.kind is Kind.KILLED for one in verdicts)
    tests_run = f"{len(tests)} tests, a clean copy {'red' if red else 'green'}"
    click.echo(f"{killed} of {len(chosen)} seeded faults noticed ({tests_run}) in {clock(time.monotonic() - began)}")
    return 1 if wrong else 0


def _chosen(known: Sequence[Mutant], only: Sequence[str], *, quick: bool) -> list[Mutant]:
    names = {mutant.name: mutant for mutant in known} | {mutant.name[:3]: mutant for mutant in known}
    if unknown := [name for name in only if name not in names]:
        raise click.BadParameter(
            f"no seeded fault is called {unknown[0]!r}: {PATCHES} has them, m001 is short for m001-...",
            param_hint="--only",
        )
    wanted = {names[name].name for name in only}
    return [one for one in known if (one.quick or not quick) and (one.name in wanted or not only)]


def unlisted(known: Sequence[Mutant], tree: str) -> list[str]:
    """Compare the patches with the list that they must be in; return what differs, one line each.

    Raises:
        HarnessError: The list can't be read.
    """
    path = os.path.join(tree, PATCHES, BASELINE)
    try:
        with open(path, encoding="utf-8") as file:
            listed: dict[str, list[str]] = json.load(file)["noticedBy"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise HarnessError(f"{path}: {told}; --update-baseline writes it") from error
    found = {mutant.name: list(mutant.noticed_by) for mutant in known}
    lines = [f"{name}: not in {path}" for name in found if name not in listed]
    lines += [f"{name}: in {path}, and there is no such patch" for name in listed if name not in found]
    lines += [
        f"{name}: {path} names other tests than the patch"
        for name in found
        if name in listed and found[name] != listed[name]
    ]
    return lines


def _write_baseline(known: Sequence[Mutant], tree: str) -> None:
    document = {"format": 1, "noticedBy": {mutant.name: list(mutant.noticed_by) for mutant in known}}
    with open(os.path.join(tree, PATCHES, BASELINE), "w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2) + "\n")


def _write(path: str, verdicts: Sequence[Verdict], wrong: Sequence[str], seconds: float) -> None:
    faults = [
        {
            "name": one.mutant.name,
            "promise": one.mutant.promise,
            "breaks": one.mutant.breaks,
            "verdict": str(one.kind),
            "noticedBy": list(one.noticed_by),
            "seconds": round(one.seconds, 1),
            "reason": one.reason,
        }
        for one in verdicts
    ]
    document = {"format": 1, "seconds": round(seconds, 1), "wrong": list(wrong), "faults": faults}
    outputs.write("--output", path, json.dumps(document, indent=2).encode() + b"\n")
