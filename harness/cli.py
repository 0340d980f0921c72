"""The `nvx-harness` command. Loading what it does takes long enough to be interrupted, so it happens inside."""

from __future__ import annotations

import io
import os
import signal
import sys

INTERRUPTED = 130
ERRORS = 2
"""The descriptor of the error output."""


class Interrupts:
    """Answers Ctrl-C at once; what has begun is then ended and removed, which another one doesn't cut short.

    Whatever comes after the first one is heard and not answered: a handler that is changed while a signal comes would
    have the interpreter say so.
    """

    def __init__(self) -> None:
        self._deaf = False

    def take(self) -> None:
        """Answer from now on; a run in the background ignores Ctrl-C, and goes on doing so."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._take)

    def _take(self, _number: int, _frame: object) -> None:
        if not self._deaf:
            self.say()
            raise KeyboardInterrupt

    def say(self) -> None:
        """Say it, once, and answer no more; whatever was being printed at that moment doesn't matter to it."""
        if not self._deaf:
            self._deaf = True
            os.write(ERRORS, b"Interrupted\n")

    def end(self) -> None:
        """Answer no more: nothing is left to be interrupted but the interpreter's own end, which would say so."""
        self._deaf = True


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a code page has no character for is shown by its number.
            stream.reconfigure(errors="backslashreplace")
    interrupts = Interrupts()
    try:
        interrupts.take()
        from harness.commands import run_command  # noqa: PLC0415 - see above

        status = run_command(sys.argv[1:])
        interrupts.end()
    except KeyboardInterrupt:
        interrupts.say()
        status = INTERRUPTED
    from harness.platform import ignore_interrupts  # noqa: PLC0415 - see above

    # At its end the interpreter lets go of every handler.
    ignore_interrupts()
    sys.exit(status)
