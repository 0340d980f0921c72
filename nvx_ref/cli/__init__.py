"""The `nvx-ref` command: flags in, one line out, one exit status.

It parses, calls :class:`nvx_ref.orchestrator.Orchestrator` and prints. Usage errors exit with 2; every other failure is
one line that starts ``error: `` and exits with 1; Ctrl-C prints ``Interrupted`` and exits with 130. ``exec`` exits with
the workload's own status, ``run`` with OpenVMM's. (contract nvx-host 2.2)

This package is the only importer of click.
"""

from __future__ import annotations

import io
import os
import sys

INTERRUPTED = 130


def main() -> None:
    """The console script. Loading takes long enough to be interrupted, so it happens in here."""
    try:
        _take_any_text()
        from nvx_ref.cli.program import run_command  # noqa: PLC0415 - see above

        status = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("Interrupted\n")
        status = INTERRUPTED
    _let_go_of_output()
    sys.exit(status)


def _take_any_text() -> None:
    """Have every text find a way out: what no terminal shows is UTF-8, unless the user has said otherwise.

    Windows' own would be a code page, which has no characters for many a path, and which no reader of JSON expects. A
    terminal that can't show a character shows its number.
    """
    said = os.environ.get("PYTHONIOENCODING") and not sys.flags.ignore_environment
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if said or stream.isatty() else "utf-8", errors="backslashreplace")


def _let_go_of_output() -> None:
    """Drop what can't be written, which has been reported by now.

    The interpreter would try once more at its end, say so itself, and change the exit status to 120.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
