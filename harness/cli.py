"""The `nvx-harness` command. Loading what it does takes long enough to be interrupted, so it happens inside."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """The console script."""
    try:
        from harness.commands import run_command  # noqa: PLC0415 - see above

        status = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("Interrupted\n")
        status = INTERRUPTED
    sys.exit(status)
