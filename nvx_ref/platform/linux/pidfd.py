"""The few calls on pidfds, each with the kernels that lack it."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from typing import NoReturn

from nvx_ref.errors import Refused
from nvx_ref.platform.contract import MAX_PID, ProcessGone, Unpinnable
from nvx_ref.platform.failures import describe

assert sys.platform == "linux"

from nvx_ref.platform.descriptors import let_go
from nvx_ref.platform.linux import procfs

_GET_INFO = 0xC040FF0B
"""``PIDFD_GET_INFO``, with the first version of its structure (64 bytes)."""
_INFO = struct.Struct("=QQ11Ii")
_INFO_EXIT = 1 << 3

_probed: dict[str, bool] = {}


def open_pidfd(pid: int) -> int:
    """Open a hold on the process that a number names now.

    Raises:
        ProcessGone: No process has the number; a thread of another process may.
        Unpinnable: The kernel has no pidfds, or a filter or limit is in the way.
        Refused: It is no process number at all; 0 and negative ones would mean groups elsewhere.
    """
    if not 1 <= pid <= MAX_PID:
        raise Refused("it is no process number", subject=f"process {pid}", detail="pid")
    pidfd_open = getattr(os, "pidfd_open", None)
    if pidfd_open is None:
        raise Unpinnable("this Python has no pidfds", subject=f"process {pid}", detail="no-pidfd")
    try:
        fd: int = pidfd_open(pid)
    except OSError as error:
        _explain(error, pid)
    return fd


def _explain(error: OSError, pid: int) -> NoReturn:
    subject = f"process {pid}"
    if error.errno == errno.ESRCH:
        raise ProcessGone("no process has this number", subject=subject) from error
    if error.errno in {errno.EINVAL, errno.ENOENT} and (procfs.is_thread(pid) or procfs.number_is_free(pid)):
        raise ProcessGone("the number names a thread, not a process", subject=subject) from error
    if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
        raise Unpinnable(f"it can't be held: {describe(error)}", subject=subject, detail="descriptors") from error
    raise Unpinnable(
        f"the kernel gives no hold on it: {describe(error)}", subject=subject, detail="no-pidfd"
    ) from error


def number_of(fd: int) -> int:
    """Return the number of a held process: 0 where it is in another PID namespace, -1 once it has been reaped.

    As long as this isn't -1 the number has belonged to the process without a gap since it was opened.

    Raises:
        Unpinnable: ``/proc`` doesn't say.
    """
    try:
        content = procfs.read(f"/proc/self/fdinfo/{fd}")
    except OSError as error:
        raise Unpinnable(f"/proc doesn't describe a hold: {describe(error)}", detail="hidden") from error
    for line in content.splitlines():
        if line.startswith(b"Pid:"):
            return int(line[4:])
    raise Unpinnable("/proc doesn't describe a hold", detail="hidden")


def unique_inode(fd: int, pid: int) -> int | None:
    """Return the kernel's own unique number of a held process (pidfs, Linux 6.9), None on older kernels.

    Older kernels give all pidfds one inode, so this asks once whether two live processes show different ones.
    """
    inode = os.fstat(fd).st_ino
    if "unique" not in _probed:
        for other in (pid, os.getppid(), 1):
            if other != os.getpid() and (answer := _differ(other)) is not None:
                _probed["unique"] = answer
                break
    return inode if _probed.get("unique") else None


def _differ(other: int) -> bool | None:
    try:
        return _inode_of(os.getpid()) != _inode_of(other)
    except (ProcessGone, Unpinnable, Refused):
        return None


def _inode_of(pid: int) -> int:
    fd = open_pidfd(pid)
    try:
        return os.fstat(fd).st_ino
    finally:
        let_go(fd)


def exit_status(fd: int) -> int | None:
    """Return the status of a held process that somebody else has reaped (Linux 6.15), None where it isn't known."""
    answer = bytearray(_INFO.size)
    _INFO.pack_into(answer, 0, _INFO_EXIT, *([0] * 13))
    try:
        fcntl.ioctl(fd, _GET_INFO, answer)
    except OSError:
        return None
    fields = _INFO.unpack(answer)
    return os.waitstatus_to_exitcode(fields[-1]) if fields[0] & _INFO_EXIT else None


def send_kill(fd: int, pid: int) -> bool:
    """End a held process at once; False if it has ended and been reaped already.

    Raises:
        Refused: This user may not.
        Unpinnable: The kernel or a filter doesn't take signals through pidfds.
    """
    import signal  # noqa: PLC0415 - its enums cost more than this whole module

    send = getattr(signal, "pidfd_send_signal", None)
    if send is None:
        raise Unpinnable("this Python has no pidfds", subject=f"process {pid}", detail="no-pidfd")
    try:
        send(fd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise Refused(
            f"it can't be ended: {describe(error)}",
            subject=f"process {pid}",
            hint="end it as its owner",
            detail="EPERM",
        ) from error
    except OSError as error:
        raise Unpinnable(
            f"it can't be ended: {describe(error)}", subject=f"process {pid}", detail="no-pidfd"
        ) from error
    return True
