"""System calls of an orchestrator: counted, killed and failed by strace, without a word of help from the orchestrator.

strace is attached to the waiting process, so that only the operation is traced, and lets the VMM go at its exec
(``-b execve``). Its counters are per call name and per thread, so the number for an injection comes from a counting
run, and what fired is read back from the trace: a kill anywhere else is no crash at that cell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.ending import has_ended
from harness.errors import HarnessError, Late, Unavailable
from harness.sut.naming import Namer, point

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.deadline import Deadline

FILES = ("ENOSPC", "EIO")
_WRITE = (*FILES, "EINTR")
_NUMBERS = ("EMFILE",)

CALLS: dict[str, tuple[str, ...]] = {
    "open": (*_WRITE, "EMFILE"),
    "openat": (*_WRITE, "EMFILE"),
    "openat2": (*_WRITE, "EMFILE"),
    "creat": (*_WRITE, "EMFILE"),
    "mkdir": FILES,
    "mkdirat": FILES,
    "rmdir": ("EIO",),
    "unlink": ("EIO",),
    "unlinkat": ("EIO",),
    "rename": FILES,
    "renameat": FILES,
    "renameat2": FILES,
    "link": FILES,
    "linkat": FILES,
    "symlink": FILES,
    "symlinkat": FILES,
    "truncate": ("EIO",),
    "ftruncate": ("EIO", "EINTR"),
    "fallocate": _WRITE,
    "write": _WRITE,
    "writev": _WRITE,
    "pwrite64": _WRITE,
    "fsync": _WRITE,
    "fdatasync": _WRITE,
    "chmod": ("EIO",),
    "fchmod": ("EIO",),
    "fchmodat": ("EIO",),
    "flock": ("EIO", "EINTR"),
    "fcntl": ("EIO",),
    "close": (),
    "dup": _NUMBERS,
    "pipe": _NUMBERS,
    "pipe2": _NUMBERS,
    "socket": _NUMBERS,
    "socketpair": _NUMBERS,
    "pidfd_open": _NUMBERS,
    "connect": ("EINTR",),
    "bind": (),
    "listen": (),
    "sendto": ("EINTR",),
    "sendmsg": ("EINTR",),
    "shutdown": (),
    "clone": (),
    "clone3": (),
    "fork": (),
    "vfork": (),
    "kill": (),
    "pidfd_send_signal": (),
    "waitid": ("EINTR",),
    "wait4": ("EINTR",),
}
"""The calls that change something, a descriptor or a lock included, and the errors that each may fail with here."""

_LINE = re.compile(r"(\d+) +(\w+)\((.*)")
_INJECTED = "(INJECTED)"
_THREAD = re.compile(r"\bCLONE_THREAD\b.*= (\d+)$")
_KILLED = re.compile(r"(\d+) +\+\+\+ killed by SIGKILL")
_DESCRIPTOR = re.compile(r"(?:AT_FDCWD|\d+)<((?:[^<>]|<[^<>]*>)*)>")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SOCKET = re.compile(r'sun_path=@?"((?:[^"\\]|\\.)*)"')
_SIGNAL = re.compile(r"\bSIG[A-Z0-9]+\b")
_NAMED_BY_DESCRIPTOR = frozenset(
    {"ftruncate", "fallocate", "write", "writev", "pwrite64", "fsync", "fdatasync", "fchmod", "flock", "fcntl", "close"}
    | {"dup", "listen", "sendto", "sendmsg", "shutdown", "pidfd_send_signal", "waitid"}
)
_NAMED_BY_PATHS = frozenset(
    {"open", "openat", "openat2", "creat", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat"}
    | {"renameat2", "link", "linkat", "symlink", "symlinkat", "truncate", "chmod", "fchmodat"}
)
_CHANGES = re.compile(r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC)\b")
_LOCKS = re.compile(r"\bF_(?:OFD_)?SETLKW?\b")
_WRITTEN = ("EIO", "EINTR")
_SAYS = frozenset({"write", "writev", "sendto", "sendmsg"})
_OPENS = frozenset({"open", "openat", "openat2"})
_READS = ("EIO", "EMFILE")


@dataclass(frozen=True, slots=True)
class Call:
    """One system call of an operation.

    Attributes:
        name: What it is called.
        point: It and what it is about.
        hit: The how many-th with this name and this about.
        count: The how many-th with this name, as strace counts.
        errors: What it may fail with.
        changes: Whether it changes anything; one that doesn't is only failed.
    """

    name: str
    point: str
    hit: int
    count: int
    errors: tuple[str, ...]
    changes: bool

    @property
    def is_own(self) -> bool:
        """Whether it is about something in a sandbox's directory."""
        about = self.point.partition(":")[2]
        return self.name in _NAMED_BY_PATHS and bool(about) and not about.startswith(("/", "~", "artifacts/"))


@dataclass(frozen=True, slots=True)
class Trace:
    """What strace saw of one process.

    Attributes:
        calls: Its calls, in order, those of its conversation with the harness left out.
        last: The point of its last call of all.
        injected: The points of the calls that an error was injected into.
        killed: The processes that were killed; the orchestrator's threads are the orchestrator.
        elsewhere: The other processes that an error was injected into.
        answered: How many of the calls came before the last line of its conversation.
    """

    calls: list[Call]
    last: str
    injected: list[str]
    killed: list[int]
    elsewhere: list[int]
    answered: int = 0

    @property
    def of_operation(self) -> list[Call]:
        """The calls up to its answer: after that a run-time winds up, and the operation is over."""
        return self.calls[: self.answered]


class Tracer:
    """strace on one process and on what it starts, until it ends.

    Args:
        pid: The process, which waits for its next request.
        output: The file for the trace.
        injection: What to inject, as strace takes it; None only looks.
        follow: Whether what it starts is traced too, until its exec. The n-th call of a child is hit as well then.

    Raises:
        Unavailable: There is no strace, or it may not attach here.
    """

    def __init__(self, pid: int, output: str, *, injection: str | None = None, follow: bool = True) -> None:
        program = find()
        self.output = output
        # Lines about one process alone don't say whose they are.
        self._prefix = "" if follow else f"{pid} "
        traced = [*CALLS, *([injection.partition(":")[0]] if injection else [])]
        # Nothing of what is written is printed: it may be the capability.
        options = ["-y", "-s", "0", "-o", output, "-e", f"trace={','.join(traced)}"]
        options += ["-f", "-b", "execve"] if follow else []
        inject = ["-e", f"inject={injection}"] if injection else []
        self._process = subprocess.Popen(
            [program, *options, *inject, "-p", str(pid)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if self._process.stderr is None:
            raise HarnessError("strace has no error output")
        self._errors = self._process.stderr
        self.pid = self._process.pid
        said = self._errors.readline().decode(errors="backslashreplace").strip()
        if "attached" not in said:
            self._process.wait()
            self._errors.close()
            raise Unavailable("a trace of system calls", (f"the right to attach: {said}",))

    def close(self, deadline: Deadline) -> str:
        """Wait for its end, which is the process's, and return the trace.

        Raises:
            Late: It goes on.
        """
        if not has_ended(self._process, deadline):
            self.stop()
            ending = "its end with the orchestrator's"
            raise Late("the trace", expected=ending, found="strace goes on", deadline=deadline)
        self._process.wait()
        self._errors.close()
        with open(self.output, encoding="utf-8", errors="surrogateescape") as file:
            return "".join(f"{self._prefix}{line}" for line in file)

    def stop(self) -> None:
        """Detach, whatever it traces."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._errors.close()


def find() -> str:
    """Return the path of strace.

    Raises:
        Unavailable: There is none.
    """
    path = shutil.which("strace")
    if path is None:
        raise Unavailable("a trace of system calls", ("strace (package strace)",))
    return path


def read(text: str, pid: int, namer: Namer, ignored: Iterable[str], threads: Iterable[int] = ()) -> Trace:
    """Read a trace.

    Args:
        text: What strace wrote.
        pid: The orchestrator.
        threads: The threads that it had when the trace began.
        namer: Gives the stable names.
        ignored: What descriptors of the conversation mean, as the kernel calls it: ``pipe:[7]``.
    """
    reader = _Reader(pid, namer, frozenset(ignored), {pid, *threads})
    for line in text.splitlines():
        reader.take(line)
    killed = sorted({pid if one in reader.threads else one for one in reader.killed})
    return Trace(reader.calls, reader.last, reader.injected, killed, reader.elsewhere, reader.answered)


class _Reader:
    """Reads a trace line by line."""

    def __init__(self, pid: int, namer: Namer, conversation: frozenset[str], threads: set[int]) -> None:
        self._pid = pid
        self.threads = threads
        self._namer = namer
        self._conversation = conversation
        self._counts: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._written: set[str] = set()
        self.calls: list[Call] = []
        self.injected: list[str] = []
        self.killed: list[int] = []
        self.elsewhere: list[int] = []
        self.last = ""
        self.answered = 0

    def take(self, line: str) -> None:
        """Take one line."""
        if found := _KILLED.match(line):
            self.killed.append(int(found[1]))
        if (made := _THREAD.search(line)) and int(line.split(maxsplit=1)[0]) in self.threads:
            self.threads.add(int(made[1]))
        started = _LINE.match(line)
        if started is None:
            return
        pid, name, rest = int(started[1]), started[2], started[3]
        if pid != self._pid:
            self.elsewhere += [pid] if _INJECTED in rest else []
        elif name in CALLS:
            self._call(name, rest)

    def _call(self, name: str, rest: str) -> None:
        self._counts[name] += 1
        if _objects(rest) & self._conversation:
            self.answered = len(self.calls) if name in _SAYS else self.answered
            return
        about = _about(name, rest, self._namer)
        self.last = point(name, *about)
        self._hits[self.last] += 1
        if _INJECTED in rest:
            self.injected.append(self.last)
        errors, changes = CALLS[name], True
        if name in _OPENS and not _CHANGES.search(rest):
            errors, changes = _READS, False
        elif name == "fcntl" and not _LOCKS.search(rest):
            errors, changes = (_NUMBERS if "F_DUPFD" in rest else ()), False
        elif name == "write":
            self._written.update(about)
        elif name == "close" and self._written.issuperset(about):
            # On Linux a close that fails closes all the same; one that is kept from happening resembles that only
            # where nothing depends on the descriptor, as on a lock or on the end of a pipe.
            errors = () if about == ["pipe"] else _WRITTEN
        if errors or changes:
            self.calls.append(Call(name, self.last, self._hits[self.last], self._counts[name], errors, changes))


def _about(name: str, rest: str, namer: Namer) -> list[str]:
    if name in _NAMED_BY_DESCRIPTOR:
        found = _DESCRIPTOR.search(rest)
        about = [namer.path(found[1])] if found else ["descriptor"]
        signal = _SIGNAL.search(rest) if name == "pidfd_send_signal" else None
        return [*about, signal[0]] if signal else about
    if name in _NAMED_BY_PATHS:
        return [namer.path(path) for path in _paths(rest)]
    if name in {"connect", "bind"}:
        found = _SOCKET.search(rest)
        return [namer.path(found[1]) if found else "socket"]
    if name in {"socket", "socketpair"}:
        return [rest.partition(",")[0]]
    return []


def _paths(rest: str) -> list[str]:
    """Join each name of a call with the directory before it."""
    arguments = rest.rpartition(") ")[0] or rest
    found: list[str] = []
    place = 0
    for name in _STRING.finditer(arguments):
        directories = _DESCRIPTOR.findall(arguments, place, name.start())
        found.append(os.path.normpath(os.path.join(directories[-1] if directories else "", name[1])))
        place = name.end()
    return found


def _objects(rest: str) -> frozenset[str]:
    return frozenset(_DESCRIPTOR.findall(rest.partition(",")[0]))
