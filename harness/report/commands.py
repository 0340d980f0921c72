"""`nvx-harness report`: the parts of a run put together."""
# ruff: noqa: PLC0415 - what the command does is imported when it runs

from __future__ import annotations

import click

from harness.errors import HarnessError

DOCUMENT = ".json"


@click.command(short_help="Merge reports.")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT.json...")
@click.option("-o", "--output", required=True, metavar="FILE", help="The merged report.")
@click.option("--partial", is_flag=True, help="Take what is there, although parts of a run are missing.")
def report(reports: tuple[str, ...], *, output: str, partial: bool) -> int:
    """Put the reports of a run's parts (--shard) together, runs on several backends beside each other.

    The exit status is 1 if a part is missing, was given twice, or is of another commit or selection.
    """
    from harness.report.merge import merge
    from harness.report.model import encode

    if not output.endswith(DOCUMENT):
        raise HarnessError(f"--output: {output}: call it something.json")
    whole = merge(reports, partial=partial)
    with open(output, "wb") as file:
        file.write(encode(whole))
    failed = sum(row.outcome == "fail" for row in whole.cells)
    click.echo(
        f"{output}: {len(whole.cells)} scenario cells, {failed} failed; "
        f"{whole.crash_points} crash points, {whole.violations} violations"
    )
    return 0
