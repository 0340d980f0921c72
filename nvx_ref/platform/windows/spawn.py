"""Starting a detached process that inherits exactly the handles that it is given."""

from __future__ import annotations

import ctypes
import msvcrt
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvx_ref.errors import LaunchFailed, Refused
from nvx_ref.platform.failures import describe, failure, hint_for

assert sys.platform == "win32"

from nvx_ref.platform.windows import commandline, handles, inheritance, native
from nvx_ref.platform.windows.process import Pin

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from nvx_ref.deadline import Deadline
    from nvx_ref.platform.contract import ProcessIdentity

__all__ = ["Child", "pipe_with", "spawn"]

LAST_STANDARD_STREAM = 2
_PIPE_BYTES = 4096
_LONGEST_DIRECTORY = 258
_ANY_LENGTH = "\\\\?\\"

_DETACHED_PROCESS = 0x8
_NEW_GROUP = 0x200
_UNICODE_ENVIRONMENT = 0x400
_EXTENDED = 0x8_0000
_BREAKAWAY = 0x100_0000
_USE_STANDARD_HANDLES = 0x100
_HANDLE_LIST = 0x2_0002


class Child:
    """See :class:`nvx_ref.platform.contract.Child`; made by :func:`spawn`.

    Args:
        pin: The hold that its creation gave, which this owns.
    """

    __slots__ = ("_identity", "_pin")

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._identity = pin.identity()

    @property
    def pid(self) -> int:
        """Its number, for messages."""
        return self._pin.pid

    def pin(self) -> Pin:
        """Return a new hold on it, which the caller closes."""
        return self._pin.duplicate()

    def identity(self) -> ProcessIdentity:
        """Return its identity, also when it has exited since."""
        return self._identity

    def terminate(self, deadline: Deadline) -> bool:
        """End it through the handle that its creation gave and wait for it; False once the deadline has passed."""
        if self._pin.has_exited():
            return True
        self._pin.terminate()
        return self._pin.wait(deadline)

    def close(self) -> None:
        """Let go of it; it goes on."""
        self._pin.close()


def spawn(
    argv: Sequence[str], *, stdin: int, output: int, allowed: Sequence[int], cwd: str, breakaway: bool = False
) -> Child:
    """Start a detached process that inherits its three standard handles and the allowed ones, and nothing else.

    It has no console and no window, and a process group of its own. Each allowed handle keeps its value. All of them
    are inheritable only while the process is created, under a guard that restores what they were; such spawns of this
    package take turns. A process that *another* part of this program creates in that moment without a list of handles
    of its own may inherit them too: Windows offers nothing against that (656.spawn.j).

    Args:
        argv: The command; a first word without a separator is looked up in PATH, a relative one in the *caller's*
            directory, so that ``cwd`` plays no part.
        stdin: Becomes standard input.
        output: Becomes standard output and error.
        allowed: What else it inherits, as descriptors of the C runtime; a duplicate is passed once.
        cwd: Its working directory.
        breakaway: Whether it leaves the job that this process is in, so that it survives that job's end.

    Returns:
        The child, held by the handle that its creation gave.

    Raises:
        Refused: A descriptor is a standard stream, closed, or inheritable in this process; the command is empty, holds
            a NUL, or is longer than 32,767 UTF-16 units; or the job forbids a breakaway. Nothing was started.
        LaunchFailed: The program isn't there or can't be executed. Nothing runs.
    """
    text = commandline.join(argv)
    program = _find_program(argv[0])
    cwd = _short_directory(cwd)
    sys.audit("subprocess.Popen", program, text, cwd, None)
    flags = _DETACHED_PROCESS | _NEW_GROUP | _UNICODE_ENVIRONMENT | _EXTENDED | (_BREAKAWAY if breakaway else 0)
    with inheritance.turn:
        standard = [_handle_of(number, standard=True) for number in (stdin, output)]
        passed = [_handle_of(number, standard=False) for number in allowed]
        made, error = _create(program, text, standard, passed, cwd, flags)
    if error is not None:
        raise _refusal(error, program, cwd, breakaway=breakaway) from error
    native.release(made.thread)
    return Child(Pin(made.pid, made.process, full=True))


def _create(
    program: str, text: str, standard: list[int], passed: list[int], cwd: str, flags: int
) -> tuple[native.ProcessInformation, OSError | None]:
    wanted = list(dict.fromkeys([*standard, *passed]))
    startup = native.StartupInfo()
    startup.size = ctypes.sizeof(startup)
    startup.flags = _USE_STANDARD_HANDLES
    startup.input, startup.output, startup.error = standard[0], standard[1], standard[1]
    made = native.ProcessInformation()
    line = ctypes.create_unicode_buffer(text)
    with _handle_list(wanted) as attributes, inheritance.lent(wanted):
        startup.attributes = ctypes.addressof(attributes)
        started = native.create_process(
            program, line, None, None, True, flags, None, cwd, ctypes.byref(startup), ctypes.byref(made)
        )
        return made, None if started else native.last_error(program)


def pipe_with(data: bytes) -> int:
    """Return the read end of a pipe that holds ``data`` and then ends: its write end is closed before this returns.

    Args:
        data: At most 4,096 bytes, which the pipe's buffer holds without a reader.

    Raises:
        Refused: It is longer, or there are no handles left.
    """
    if len(data) > _PIPE_BYTES:
        raise Refused(f"a pipe is filled with at most {_PIPE_BYTES} bytes at once", subject="pipe", detail="too-long")
    reader, writer = native.HANDLE(), native.HANDLE()
    if not native.create_pipe(ctypes.byref(reader), ctypes.byref(writer), None, _PIPE_BYTES):
        raise failure(native.last_error(), "pipe", "create")
    try:
        handles.write_all(writer.value, data)
        return msvcrt.open_osfhandle(reader.value, os.O_RDONLY | os.O_NOINHERIT)
    except OSError as error:
        native.release(reader.value)
        raise failure(error, "pipe", "fill") from error
    finally:
        native.release(writer.value)


@contextmanager
def _handle_list(wanted: list[int]) -> Generator[ctypes.Array[ctypes.c_char]]:
    size = native.SIZE()
    native.initialize_attributes(None, 1, 0, ctypes.byref(size))
    attributes = ctypes.create_string_buffer(size.value)
    if not native.initialize_attributes(attributes, 1, 0, ctypes.byref(size)):
        raise failure(native.last_error(), "process attributes", "create")
    try:
        values = (native.HANDLE * len(wanted))(*wanted)
        if not native.update_attribute(attributes, 0, _HANDLE_LIST, values, ctypes.sizeof(values), None, None):
            raise failure(native.last_error(), "process attributes", "set")
        yield attributes
    finally:
        native.delete_attributes(attributes)


def _handle_of(number: int, *, standard: bool) -> int:
    if not standard and 0 <= number <= LAST_STANDARD_STREAM:
        raise Refused(
            "a standard stream can't be among the allowed descriptors",
            subject=f"descriptor {number}",
            hint="duplicate it to a number over 2, not inheritable",
            detail="standard-stream",
        )
    try:
        handle = msvcrt.get_osfhandle(number)
        inheritable = inheritance.is_inheritable(handle)
    except (OSError, ValueError, OverflowError) as error:
        raise Refused("it isn't open", subject=f"descriptor {number}", detail="closed-descriptor") from error
    if inheritable and not (standard and number <= LAST_STANDARD_STREAM):
        raise Refused(
            "it is inheritable, so any process that this one starts may inherit it",
            subject=f"descriptor {number}",
            hint="make it non-inheritable (os.set_inheritable)",
            detail="inheritable-descriptor",
        )
    return handle


def _find_program(word: str) -> str:
    if os.path.dirname(word):
        path = os.path.join(os.getcwd(), word)
        for candidate in (path, f"{path}.exe"):
            if os.path.isfile(candidate):
                return candidate
        return path
    for directory in os.get_exec_path():
        for name in (word, f"{word}.exe"):
            path = os.path.join(os.getcwd(), directory, name)
            if os.path.isfile(path):
                return path
    raise LaunchFailed("no such program in PATH", subject=word, hint="give the program's path", detail="exec")


def _short_directory(path: str) -> str:
    """Return a directory as a new process can have it: no longer path is taken, however the caller's own are."""
    if len(path) <= _LONGEST_DIRECTORY:
        return path
    buffer = ctypes.create_unicode_buffer(_LONGEST_DIRECTORY + len(_ANY_LENGTH) + 1)
    found = path if path.startswith("\\\\") else _ANY_LENGTH + path
    native.get_short_path(found, buffer, len(buffer))
    short = buffer.value.removeprefix(_ANY_LENGTH)
    if not short or len(short) > _LONGEST_DIRECTORY:
        raise Refused(
            f"no process can be started in a directory whose path has over {_LONGEST_DIRECTORY} characters",
            subject=path,
            hint="choose a shorter path",
            detail="too-long",
        )
    return short


def _refusal(error: OSError, program: str, cwd: str, *, breakaway: bool) -> LaunchFailed | Refused:
    if breakaway and error.winerror == native.ERROR_ACCESS_DENIED and inheritance.in_a_job():
        return Refused(
            "the job of this process forbids that a process leaves it",
            subject=program,
            hint="allow it in the job (JOB_OBJECT_LIMIT_BREAKAWAY_OK), or start the VMM within the job",
            detail="breakaway",
        )
    subject = program if os.path.isdir(cwd) else cwd
    return LaunchFailed(f"it can't be started: {describe(error)}", subject=subject, hint=hint_for(error), detail="exec")
