"""Measure: ``python -m tests.bench [--json FILE] [--scale X] [--list] [NAME ...]``; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import msgspec

from harness import outputs
from harness.errors import HarnessError
from tests.bench import exits, harnessing, launching, reattaching, spawning, starting
from tests.bench.measure import FORMAT, BenchReport, Row, Skipped, machine, table

FAILED = "failed:"
BENCHES: dict[str, Callable[[float], list[Row]]] = {
    "exits": exits.rows,
    "spawn": spawning.rows,
    "launch": launching.rows,
    "reattach": reattaching.rows,
    "staged": launching.staged_rows,
    "import": starting.rows,
    "fake": starting.fake_rows,
    "sweep": harnessing.sweep_rows,
    "scenarios": harnessing.scenario_rows,
}


def measured(names: list[str], scale: float, tell: Callable[[str], object]) -> BenchReport:
    """Run benchmarks one after the other, since each needs the machine.

    Args:
        names: Which.
        scale: How many of the usual rounds.
        tell: Gets the name of each before it runs.
    """
    where = machine()
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for name in names:
        tell(name)
        try:
            rows += BENCHES[name](scale)
        except Skipped as reason:
            skipped[name] = str(reason)
        except AssertionError as fault:
            # The others' figures are not lost for it.
            skipped[name] = f"{FAILED} {fault}"
    return BenchReport(FORMAT, where, rows, {row.id: row.met for row in rows}, skipped)


def main(arguments: list[str]) -> int:
    """Measure what the arguments say; a missed target is told and is no failure, as a benchmark that failed is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHES)}; all of them")
    parser.add_argument("--json", metavar="FILE", help="write the report there as JSON")
    parser.add_argument("--scale", type=float, default=1.0, help="how many of the usual rounds")
    parser.add_argument("--list", action="store_true", help="name them")
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(BENCHES))
        return 0
    if unknown := [name for name in given.names if name not in BENCHES]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(BENCHES)}")
    if given.json:
        try:
            outputs.require_writable("--json", given.json)
        except HarnessError as error:
            parser.error(str(error))
    report = measured(given.names or list(BENCHES), given.scale, lambda name: print(f"{name} ...", file=sys.stderr))
    print(table(report))
    if given.json:
        data = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
        try:
            outputs.write("--json", given.json, data)
        except HarnessError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 1 if any(reason.startswith(FAILED) for reason in report.skipped.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
