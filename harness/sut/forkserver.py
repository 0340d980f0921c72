"""The reference from a fork: a template that has imported it, and a child of that for each orchestrator under test.

A start of Python costs more than everything that one crash cell does. So one process per worker imports the reference
once, never pytest, and stays single-threaded; for each request it forks a child that is the orchestrator, from its
hello to its last answer. The child is forked twice, so that it comes to the harness, which adopts orphans: its exit
status is the harness's to take, and the template waits for nobody.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.sut.protocol import mapping

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, NoReturn, Self

    from harness.sut.process import Running
    from harness.witness.contract import Host

    Main = Callable[[], int]

MESSAGE = 64 * 1024
STREAMS = 3
"""What each child gets: the ends of its requests, its answers and its error output."""

PRELOADED = (
    "encodings.utf_16_le",
    "nvx_ref.images.erofs",
    "nvx_ref.images.ext4",
    "nvx_ref.images.gpt",
    "nvx_ref.nvxc",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "warnings",
    "weakref",
)
"""What the reference imports when it first needs it: imported by the template, so that no cell meets it."""

BODY = "from harness.sut.forkserver import serve\n\nserve({control})\n"

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1


class Template:
    """The template process of one worker.

    Args:
        directory: Where its script and its error output go; the caller's to remove.
        first: Directories that go before all others on its path, for example another build of the reference.
        environment: Its whole environment.
    """

    def __init__(self, directory: str, *, environment: dict[str, str], first: Sequence[str] = ()) -> None:
        from harness import python  # noqa: PLC0415 - the template itself doesn't need it

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = python.write_script(
                os.path.join(directory, "template.py"),
                packages=("nvx_ref", "harness", "msgspec"),
                body=BODY.format(control=theirs.fileno()),
                first=first,
            )
            with open(os.path.join(directory, "template.txt"), "ab") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        self._control = ours
        self.command = command

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The template's own number."""
        return self._process.pid

    def close(self) -> None:
        """End the template; its children live on."""
        self._control.close()
        self._process.wait()

    def begin(self, *, errors: str, cwd: str, host: Host) -> Running:
        """Fork an orchestrator; see :class:`harness.sut.process.Source`."""
        del host
        requests = os.pipe()
        answers = os.pipe()
        file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        theirs = [requests[0], answers[1], file]
        try:
            socket.send_fds(self._control, [json.dumps({"cwd": cwd}).encode()], theirs)
            reply = self._control.recv(MESSAGE)
        except ConnectionError:
            reply = b""
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        pid = mapping(json.loads(reply)).get("pid") if reply else None
        if not isinstance(pid, int):
            os.close(requests[1])
            os.close(answers[0])
            raise HarnessError(f"the template of the orchestrators is gone: {' '.join(self.command)}")
        return _Forked(pid, os.fdopen(requests[1], "wb"), os.fdopen(answers[0], "rb"))


class _Forked:
    """See :class:`harness.sut.process.Running`: a child that this process has adopted."""

    def __init__(self, pid: int, requests: IO[bytes], answers: IO[bytes]) -> None:
        self.pid = pid
        self.requests = requests
        self.answers = answers
        self._status: int | None = None

    def wait(self) -> int:
        """Reap it; see :class:`harness.sut.process.Running`."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def serve(control: int) -> None:
    """Be the template: fork a child for each message until the other end is closed."""
    import importlib  # noqa: PLC0415 - only the template needs it

    from harness.sut import reference  # noqa: PLC0415 - the harness's own processes never import the reference

    for name in PRELOADED:
        importlib.import_module(name)
    allow_tracing = _tracing()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=control) as channel:
        channel.set_inheritable(False)
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE, STREAMS)
            if not message:
                return
            pid = _fork_twice(channel, message, descriptors, allow_tracing, reference.main)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(json.dumps({"pid": pid}).encode())


def _fork_twice(
    channel: socket.socket, message: bytes, descriptors: list[int], allow_tracing: Callable[[], None], main: Main
) -> int:
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            child = os.fork()
            if child == 0:
                _become(channel, message, [*descriptors, reader, writer], allow_tracing, main)
            os.write(writer, str(child).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return int(os.read(reader, MESSAGE))
    finally:
        os.close(reader)
        # Only once this one has ended is its child the harness's.
        os.waitpid(middle, 0)


def _become(
    channel: socket.socket, message: bytes, descriptors: list[int], allow_tracing: Callable[[], None], main: Main
) -> NoReturn:
    """Be the orchestrator, in a process that has nothing of the template's but its modules."""
    status = 1
    try:
        channel.close()
        for number, descriptor in enumerate(descriptors[:STREAMS]):
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        os.chdir(str(mapping(json.loads(message))["cwd"]))
        allow_tracing()
        status = main()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the template must not go on in two processes
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(status)


def _tracing() -> Callable[[], None]:
    """Return what lets the harness's tracer attach where the kernel lets only ancestors do so (Yama)."""
    import ctypes  # noqa: PLC0415 - only the template needs it

    libc = ctypes.CDLL(None)
    prctl, option, anybody = libc.prctl, ctypes.c_int(_PR_SET_PTRACER), ctypes.c_ulong(_PR_SET_PTRACER_ANY)
    return lambda: prctl(option, anybody, 0, 0, 0)
