"""Reads of chosen files: counted, or made to fail while open and stat go on working.

strace looks at nothing but calls on these files, by whatever name or number they are reached. It follows the command's
threads and forks, and lets go of whatever it executes: so a launcher is judged apart from the VMM that it starts, which
:func:`attach` judges by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from harness.deadline import Deadline

STRACE = "strace"
CALLS = "read,readv,pread64,preadv,preadv2,mmap,sendfile,copy_file_range,splice"
_MAPPED = re.compile(r"\bmmap\([^,]*, (\d+),.* = 0x")
_READ = re.compile(r" = (\d+)$")


def missing() -> str:
    """Return why reads can't be watched here, empty if they can."""
    return "" if shutil.which(STRACE) else "strace is missing: install the Debian package strace"


def watched(command: Sequence[str], paths: Sequence[str], log: str, *, fail: bool = False) -> list[str]:
    """Return the command under watch.

    Args:
        command: A program and its arguments; it must not be a script that executes the real one.
        paths: The files.
        log: The file that takes what was seen, for :func:`count`.
        fail: Whether every read and mapping of the files fails with an I/O error.
    """
    return [STRACE, "-f", "-b", "execve", *_options(paths, log, fail=fail), *command]


def count(log: str) -> int:
    """Return how many bytes of the files were read or mapped."""
    total = 0
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            found = (_MAPPED if "mmap" in line else _READ).search(line.rstrip())
            total += int(found[1]) if found else 0
    return total


def injected(log: str) -> int:
    """Return how many calls were made to fail."""
    with open(log, encoding="utf-8", errors="replace") as file:
        return sum("(INJECTED)" in line for line in file)


@contextmanager
def attach(pid: int, paths: Sequence[str], log: str, deadline: Deadline) -> Generator[bool]:
    """Watch a process that runs already, for as long as the context lasts; tell whether that was allowed.

    Args:
        pid: The process, which the caller holds.
        paths: The files.
        log: The file that takes what was seen.
        deadline: By when strace must have attached.
    """
    errors = f"{log}.errors"
    with open(errors, "wb") as file:
        tracer = subprocess.Popen(
            [STRACE, "-f", "-p", str(pid), *_options(paths, log, fail=False, quiet=False)], stderr=file
        )
    try:
        yield _attached(tracer, errors, deadline)
    finally:
        tracer.terminate()
        tracer.wait()
        os.unlink(errors)


def _attached(tracer: subprocess.Popen[bytes], errors: str, deadline: Deadline) -> bool:
    from harness.deadline import until  # noqa: PLC0415 - a watch needs no wait

    def said() -> bool:
        with open(errors, encoding="utf-8", errors="replace") as file:
            return "attached" in file.read() or tracer.poll() is not None

    return until(said, deadline) and tracer.poll() is None


def _options(paths: Sequence[str], log: str, *, fail: bool, quiet: bool = True) -> list[str]:
    options = ["-y", "-s", "0", "-e", "signal=none", "-e", f"trace={CALLS}", "-o", log]
    options += ["-qq"] if quiet else []
    options += ["-e", f"inject={CALLS}:error=EIO"] if fail else []
    for path in paths:
        options += ["-P", os.path.realpath(path)]
    return options
