"""Starting a detached process that inherits exactly what it is given."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from typing import TYPE_CHECKING, cast

from nvx_ref.deadline import Deadline
from nvx_ref.errors import LaunchFailed, NvxError, Refused
from nvx_ref.platform.contract import Unpinnable
from nvx_ref.platform.failures import describe, failure, hint_for

assert sys.platform == "linux"

from nvx_ref.platform.descriptors import let_go
from nvx_ref.platform.linux import children
from nvx_ref.platform.linux.process import Pin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvx_ref.platform.contract import ProcessIdentity

__all__ = ["Child", "pipe_with", "spawn"]

LAST_STANDARD_STREAM = 2
_PIPE_BYTES = 4096
"""What any pipe takes at once."""
_UNDO_SECONDS = 5.0


class Child:
    """See :class:`nvx_ref.platform.contract.Child`; made by :func:`spawn`."""

    __slots__ = ("_identity", "_own")

    def __init__(self, own: children.OwnChild) -> None:
        self._own = own
        # Read before anything can reap it, so that a child that ends at once has an identity to record too.
        try:
            with Pin.of_child(own) as pin:
                self._identity: ProcessIdentity | NvxError = pin.identity()
        except NvxError as error:
            self._identity = error

    @property
    def pid(self) -> int:
        """Its number, for messages."""
        return self._own.pid

    def pin(self) -> Pin:
        """Return a new hold on it, which the caller closes."""
        return Pin.of_child(self._own)

    def identity(self) -> ProcessIdentity:
        """Return its identity, also when it has exited since.

        Raises:
            ProcessGone: It was gone before it could be looked at (a process that ignores SIGCHLD keeps no zombies).
            Unpinnable: It lives, and the system doesn't describe it to this user.
        """
        if isinstance(self._identity, NvxError):
            raise self._identity
        return self._identity

    def terminate(self, deadline: Deadline) -> bool:
        """End it through the pin taken at its spawn and wait for it; False once the deadline has passed."""
        with self.pin() as pin:
            if pin.has_exited():
                return True
            pin.terminate()
            return pin.wait(deadline)

    def close(self) -> None:
        """Let go of it; it goes on, and is reaped if it has ended by now."""
        self._own.collect()


def spawn(
    argv: Sequence[str], *, stdin: int, output: int, allowed: Sequence[int], cwd: str, breakaway: bool = False
) -> Child:
    """Start a process in a session of its own that inherits its three standard streams and the allowed descriptors.

    Each allowed descriptor keeps its number. In this process all of them stay close-on-exec, so that no other
    process that any thread starts meanwhile inherits them (656.spawn.b to d).

    Args:
        argv: The command; a first word without a slash is looked up in PATH, a relative one in the *caller's*
            directory, so that ``cwd`` plays no part.
        stdin: Becomes descriptor 0.
        output: Becomes descriptors 1 and 2.
        allowed: What else it inherits; a duplicate is passed once. In a process with very many descriptors numbers
            that don't follow each other make it quick (:func:`nvx_ref.platform.files.set_apart`).
        cwd: Its working directory.
        breakaway: Whether it leaves the job that this process is in; there are none here, so that says nothing.

    Returns:
        The child, pinned while its number is certainly its own.

    Raises:
        Refused: A descriptor is a standard stream, closed, or not close-on-exec in this process; or the command is
            empty or holds a NUL. Nothing was started.
        LaunchFailed: The program isn't there or can't be executed. Nothing runs.
        Indeterminate: The spawn failed half-way, and the child couldn't be ended.
    """
    del breakaway
    passed = _check_descriptors(stdin, output, allowed)
    if not argv or any("\0" in word for word in argv):
        raise Refused("a command has a first word, and no word holds a NUL", subject="command", detail="argv")
    program = _find_program(argv[0])

    try:
        return Child(_start([program, *argv[1:]], stdin=stdin, output=output, passed=passed, cwd=cwd))
    except ValueError as error:
        raise Refused(f"the system can't take it: {error}", subject="command", detail="argv") from error
    except OSError as error:
        subject = cwd if error.filename == cwd else program
        raise LaunchFailed(
            f"it can't be started: {describe(error)}", subject=subject, hint=_launch_hint(error), detail="exec"
        ) from error


def _start(argv: list[str], *, stdin: int, output: int, passed: list[int], cwd: str) -> children.OwnChild:
    import subprocess  # noqa: PLC0415 - only a launch needs it, and it doubles the time of the package's import

    # Made before it is filled in: an interrupt or a failed close after the fork must not lose the child's number.
    popen = cast("subprocess.Popen[bytes]", object.__new__(subprocess.Popen))
    try:
        subprocess.Popen.__init__(
            popen,
            argv,
            stdin=stdin,
            stdout=output,
            stderr=output,
            pass_fds=passed,
            cwd=cwd,
            start_new_session=True,
        )
    except BaseException:
        pid: int | None = getattr(popen, "pid", None)
        if pid is not None and popen.returncode is None:
            popen.returncode = 0
            _undo(children.adopt(pid))
        raise
    # From here on the child is reaped by `children` alone; this keeps the Popen from warning, and from waiting for a
    # number that may be another child's by then.
    popen.returncode = 0
    return children.adopt(popen.pid)


def _undo(own: children.OwnChild) -> None:
    """End a child whose spawn failed after its fork."""
    with Pin.of_child(own) as pin:
        pin.terminate()
        if not pin.wait(Deadline.after(_UNDO_SECONDS)):
            raise Unpinnable("its spawn failed and it hasn't ended since", subject=f"process {own.pid}", detail="spawn")


def pipe_with(data: bytes) -> int:
    """Return the read end of a pipe that holds ``data`` and then ends: its write end is closed before this returns.

    Args:
        data: At most 4,096 bytes, which any pipe holds without a reader.

    Raises:
        Refused: It is longer, or there are no descriptors left.
    """
    if len(data) > _PIPE_BYTES:
        raise Refused(f"a pipe is filled with at most {_PIPE_BYTES} bytes at once", subject="pipe", detail="too-long")
    try:
        reader, writer = os.pipe2(os.O_CLOEXEC)
    except OSError as error:
        raise failure(error, "pipe", "create") from error
    try:
        if data:
            os.write(writer, data)
    except OSError as error:
        let_go(reader)
        raise failure(error, "pipe", "fill") from error
    finally:
        let_go(writer)
    return reader


def _check_descriptors(stdin: int, output: int, allowed: Sequence[int]) -> list[int]:
    for number in (stdin, output):
        _require_closing(number, standard=True)
    for number in allowed:
        if 0 <= number <= LAST_STANDARD_STREAM:
            raise Refused(
                "a standard stream can't be among the allowed descriptors",
                subject=f"descriptor {number}",
                hint="duplicate it to a number over 2, close-on-exec",
                detail="standard-stream",
            )
        _require_closing(number, standard=False)
    return sorted(set(allowed))


def _require_closing(number: int, *, standard: bool) -> None:
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFD)
    except (OSError, ValueError, OverflowError) as error:
        raise Refused("it isn't open", subject=f"descriptor {number}", detail="closed-descriptor") from error
    if standard and number <= LAST_STANDARD_STREAM:
        return
    if not flags & fcntl.FD_CLOEXEC:
        raise Refused(
            "it isn't close-on-exec, so any process that this one starts would inherit it",
            subject=f"descriptor {number}",
            hint="make it non-inheritable (os.set_inheritable)",
            detail="inheritable-descriptor",
        )


def _find_program(word: str) -> str:
    if "/" in word:
        return os.path.join(os.getcwd(), word)
    for directory in os.get_exec_path() if word else ():
        path = os.path.join(os.getcwd(), directory, word)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise LaunchFailed(
        "no such program in PATH", subject=word or "command", hint="give the program's path", detail="exec"
    )


def _launch_hint(error: OSError) -> str | None:
    if error.errno == errno.ENOEXEC:
        return "give a program, or a script with its interpreter before it"
    if error.errno == errno.ENOENT:
        return "check the path, and the interpreter that it names"
    return hint_for(error)
