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
    """Answers Ctrl-C at once; what has begun is then ended and removed, which another one doesn't cut short."""

    def __init__(self) -> None:
        self._said = False
        self._before: object = None

    def __enter__(self) -> None:
        # A run in the background ignores it, and goes on doing so.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._take)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _take(self, _number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.say()
        raise KeyboardInterrupt

    def say(self) -> None:
        """Say it, once; whatever was being printed at that moment doesn't matter to it."""
        if not self._said:
            self._said = True
            os.write(ERRORS, b"Interrupted\n")


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a code page has no character for is shown by its number.
            stream.reconfigure(errors="backslashreplace")
    interrupts = Interrupts()
    try:
        with interrupts:
            from harness.commands import run_command  # noqa: PLC0415 - see above

        status = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        interrupts.say()
        status = INTERRUPTED
    # Nothing is left to be interrupted but the interpreter's own end, which would say so at length.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)
