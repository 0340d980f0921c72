"""Run a command as the keeper of everything that it starts: ``python ci/wine/keeper.py COMMAND ARG...``.

Half a second after a process of its own has ended, Wine's server kills whatever has its number by then. Orphans of a
machine whose first process is slow to reap free their numbers just in that time, and the kill meets a stranger: a
process that is just being made (``Internal error``, 1359), or a VMM that then seems to have ended by itself. Here
orphans are reaped at once, so that the server finds the number free and kills nobody; and once the command has ended,
so does everything that it left.

Nor are addresses random below it. Debian's Wine is loaded at 0x7d000000, and the kernel puts a program's heap somewhere
in the gigabyte after that: one process in some thousands finds its heap where Windows' shared data has to be, at
0x7ffe0000, and ends before it has said anything, which its parent is told as an ``Internal error``, too. Where they
can't be had without chance, the command is told so, and has a loader made that minds none (see loader.py).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

PR_SET_CHILD_SUBREAPER = 36
ADDR_NO_RANDOMIZE = 0x0040000
ASK = 0xFFFFFFFF
RANDOM = "NVX_WINE_RANDOM"
"""The variable that tells the command that its addresses are chosen by chance."""
ENDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def steady_addresses() -> bool:
    """Have the kernel choose no random addresses for what is executed from now on; return whether it allows that."""
    personality = ctypes.CDLL(None).personality
    personality.argtypes = [ctypes.c_ulong]
    return bool(personality(personality(ASK) | ADDR_NO_RANDOMIZE) != -1)


def children() -> list[int]:
    """Return the processes whose parent this one is."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def wait_for(child: int) -> int:
    """Reap whatever ends until this child does; return its status as a shell would."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_the_rest() -> None:
    """End every child, and the children that come to this process by that."""
    while left := children():
        for pid in left:
            # Nobody but this process reaps it, so the number is still its own; not everybody may ask for more.
            os.kill(pid, signal.SIGKILL)  # noqa: TID251
        for pid in left:
            os.waitpid(pid, 0)


def main(command: list[str]) -> int:
    """Run the command to its end.

    Args:
        command: Its words.

    Returns:
        Its exit status; 128 and the number of the signal that ended it or this process.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process can't take orphans")
    if not steady_addresses():
        os.environ[RANDOM] = "1"
    for number in ENDED:
        signal.signal(number, _leave)
    try:
        return wait_for(os.posix_spawnp(command[0], command, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]))
    finally:
        for number in ENDED:
            signal.signal(number, signal.SIG_IGN)
        end_the_rest()


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
