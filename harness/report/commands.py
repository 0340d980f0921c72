"""`nvx-harness report`: the parts of a run put together, and the page for people."""
# ruff: noqa: PLC0415 - what the command does is imported when it runs

from __future__ import annotations

import click

from harness import outputs
from harness.errors import HarnessError

PAGE, DOCUMENT = ".html", ".json"


@click.command(short_help="Merge reports and draw the page.")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT.json...")
@click.option("-o", "--output", required=True, metavar="FILE", help="The page, .html, or one merged report, .json.")
@click.option("--partial", is_flag=True, help="Take what is there, although parts of a run are missing.")
def report(reports: tuple[str, ...], *, output: str, partial: bool) -> int:
    """Put the reports of a run's parts (--shard) together, runs on several backends beside each other.

    The exit status is 1 if a part is missing, was given twice, or is of another commit or selection; or if the parts
    are a whole run in which everything was skipped.
    """
    from harness.report.merge import merge, unjudged
    from harness.report.model import encode

    if not output.endswith((PAGE, DOCUMENT)):
        raise HarnessError(f"--output: {output}: call it something.html or something.json")
    outputs.require_writable("--output", output)
    whole = merge(reports, partial=partial)
    if output.endswith(DOCUMENT):
        data = encode(whole)
    else:
        from harness.report.page import draw

        data = draw(whole).encode(errors="replace")
    outputs.write("--output", output, data)
    failed = sum(row.outcome == "fail" for row in whole.cells)
    click.echo(
        f"{output}: {len(whole.cells)} scenario cells, {failed} failed; "
        f"{whole.crash_points} crash points, {whole.violations} violations"
    )
    nothing = [] if partial else unjudged(whole)
    for run in nothing:
        click.echo(f"error: {run}: everything was skipped, so nothing was judged", err=True)
    return 1 if nothing else 0
