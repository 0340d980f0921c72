"""Running one command line: every outcome becomes an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nvx_ref.cli import INTERRUPTS, say
from nvx_ref.cli.commands import commands
from nvx_ref.errors import NvxError

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; a user never sees a traceback.

    Args:
        arguments: The words after the program's name.

    Returns:
        0, the workload's or OpenVMM's status, 1 for a refusal or failure, 2 for a usage error, 130 after Ctrl-C,
        128 and its number after another signal that a ``run`` answers.
    """
    try:
        result = commands.main(args=list(arguments), prog_name="nvx-ref", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        say("Interrupted")
        return INTERRUPTS.status
    except NvxError as error:
        click.echo(f"error: {error}", err=True)
        return 1
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        return 1
    except OSError as error:
        click.echo(f"error: {_os_reason(error)}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _os_reason(error: OSError) -> str:
    reason = error.strerror or type(error).__name__
    # Everything but the streams of this process is opened by code that names it.
    return f"{error.filename or 'the output'}: {reason}"
