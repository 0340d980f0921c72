"""What ``/proc`` says about a process number: always bytes, never trusted without a hold on the process."""

from __future__ import annotations

import errno
import os
import sys

from msgspec import Struct

from nvx_ref.errors import Indeterminate
from nvx_ref.platform.contract import ProcessIdentity, Unpinnable
from nvx_ref.platform.failures import describe, hint_for

assert sys.platform == "linux"

from nvx_ref.platform.descriptors import let_go

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LIMIT = 1 << 16
_BOOT_LENGTH = 64
_BOOT_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:.-"

# Positions after the last parenthesis, where field 3 is the first.
_STATE, _THREADS, _START = 0, 17, 19


class Stat(Struct, frozen=True):
    """The fields of ``/proc/PID/stat`` that matter here.

    Args:
        state: The state's letter.
        threads: How many threads it has, itself included.
        start_time: Clock ticks since boot.
    """

    state: bytes
    threads: int
    start_time: int

    @property
    def exited(self) -> bool:
        """Whether nothing of it runs: a zombie whose other threads live holds its files and devices."""
        return self.state in {b"X", b"x"} or (self.state == b"Z" and self.threads <= 1)


def parse_stat(data: bytes) -> Stat:
    """Read the content of a ``stat`` file.

    The command name is the process' own choice and may hold spaces, newlines, parentheses and any other byte, so
    fields are counted after the *last* closing parenthesis.

    Raises:
        Indeterminate: It isn't the content of a ``stat`` file.
    """
    fields = data[data.rfind(b")") + 1 :].split()
    try:
        return Stat(state=fields[_STATE], threads=int(fields[_THREADS]), start_time=int(fields[_START]))
    except (IndexError, ValueError) as error:
        raise Indeterminate("the kernel's description of a process can't be read", detail="stat") from error


def read(path: str) -> bytes:
    """Return the content of a small file of ``/proc``."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _LIMIT)
    finally:
        let_go(fd)


def read_stat(pid: int) -> Stat | None:
    """Return what ``/proc`` says about a number, None if it lists no such process.

    Raises:
        Unpinnable: ``/proc`` shows another PID namespace, or this user may not look.
    """
    require_own_view()
    try:
        return parse_stat(read(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise unreadable(error, pid) from error


def unreadable(error: OSError, pid: int) -> Unpinnable:
    """Return the error for something about a process that ``/proc`` doesn't give."""
    limit = error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    return Unpinnable(
        f"it can't be looked at: {describe(error)}",
        subject=f"process {pid}",
        hint=hint_for(error) if limit else None,
        detail="descriptors" if limit else "denied",
    )


def require_own_view() -> None:
    """Make sure that ``/proc`` is there and counts processes as this process does.

    Raises:
        Unpinnable: It isn't, so that its numbers mean other processes.
    """
    try:
        own = os.readlink("/proc/self")
    except OSError as error:
        raise Unpinnable(f"/proc can't be read: {describe(error)}", detail="hidden") from error
    if own != str(os.getpid()):
        raise Unpinnable("/proc shows another PID namespace", detail="foreign-namespace")


def is_thread(pid: int) -> bool:
    """Tell whether a number names a thread that isn't the first of its process."""
    try:
        status = read(f"/proc/{pid}/status")
    except OSError:
        return False
    return b"\nTgid:\t" in status and b"\nTgid:\t%d\n" % pid not in status


def number_is_free(pid: int) -> bool:
    """Tell whether no process has a number, also where ``/proc`` hides those of other users."""
    try:
        os.getsid(pid)
    except OSError as error:
        return error.errno == errno.ESRCH
    return False


def boot_identity() -> str:
    """Return this boot's name: the kernel's random boot id.

    Raises:
        Indeterminate: It can't be read, so no record can be compared with this boot.
    """
    try:
        name = read(BOOT_ID).decode("latin-1").strip()
    except OSError as error:
        reason = f"this boot's identity can't be read: {describe(error)}"
        raise Indeterminate(reason, subject=BOOT_ID, hint=hint_for(error), detail="boot") from error
    if not name or len(name) > _BOOT_LENGTH or name.strip(_BOOT_CHARACTERS):
        raise Indeterminate("this boot's identity isn't a name", subject=BOOT_ID, detail="boot")
    return name


def pid_namespace() -> int | None:
    """Return the PID namespace this process counts in, None where there are none or it can't be read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def exited_by_number(identity: ProcessIdentity) -> bool:
    """Tell whether a process of this boot has provably exited, without a hold on it.

    At whatever instant its number doesn't name it any more, it has exited. The reverse proves nothing.
    """
    try:
        found = read_stat(identity.pid)
    except Indeterminate:
        return False
    if found is None:
        return number_is_free(identity.pid)
    return found.exited or found.start_time != identity.start_time or is_thread(identity.pid)
