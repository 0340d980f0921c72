"""The `nvx-ref` command: flags in, one line out, one exit status.

It parses, calls :class:`nvx_ref.orchestrator.Orchestrator` and prints. Usage errors exit with 2; every other failure is
one line that starts ``error: `` and exits with 1; Ctrl-C prints ``Interrupted`` and exits with 130, once what it has
cut short is tidied up, which another Ctrl-C doesn't cut short. ``exec`` exits with the workload's own status, ``run``
with OpenVMM's. (contract nvx-host 2.2)

This package is the only importer of click.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress

INTERRUPTED = 130
ENDINGS = ("SIGTERM", "SIGHUP")
"""What ends a command that stays in front for as long as its VM runs: being told to, and a terminal that closes."""


class Interrupts:
    """Answers the first Ctrl-C and no other: what ends a VM that was begun, and removes its files, has deadlines.

    A launch whose tidying is cut short is settled by the next command. After a ``run`` there is none, and its VM would
    be lost.

    Attributes:
        status: What to exit with: 128 and the number of the signal that was answered; until then that of Ctrl-C.
        answered: Whether one was.
    """

    def __init__(self) -> None:
        self.status = INTERRUPTED
        self.answered = False
        self._deaf = False

    def take(self, *names: str) -> None:
        """Answer from now on, to these signals, too, where there are such: what is ignored goes on being ignored."""
        for number in (getattr(signal, name, None) for name in ("SIGINT", *names)):
            if number and signal.getsignal(number) in {signal.default_int_handler, signal.SIG_DFL}:
                signal.signal(number, self._take)

    def end(self) -> None:
        """Answer no more: the command has done what it was told, whatever is typed now."""
        self._deaf = True

    def _take(self, number: int, _frame: object) -> None:
        if not self._deaf:
            self._deaf = self.answered = True
            self.status = 128 + number
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()


def main() -> None:
    """The console script. Loading takes long enough to be interrupted, so it happens in here."""
    try:
        INTERRUPTS.take()
        _take_any_text()
        from nvx_ref.cli.program import run_command  # noqa: PLC0415 - see above

        status = run_command(sys.argv[1:])
        INTERRUPTS.end()
    except KeyboardInterrupt:
        say("Interrupted")
        status = INTERRUPTS.status
    except OSError as error:
        # Most likely the error output took nothing of what there was to say.
        say(f"error: {error}")
        status = INTERRUPTS.status if INTERRUPTS.answered else 1
    _let_go_of_output()
    # At its end the interpreter lets go of every handler; where signals can be held, none comes after this.
    known = vars(signal)
    if "pthread_sigmask" in known:
        known["pthread_sigmask"](known["SIG_BLOCK"], {signal.SIGINT})
    sys.exit(status)


def say(text: str) -> None:
    """Say it on the error output, if that is still there: the terminal may be what has ended."""
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


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
