"""The VMM's control endpoint: an AF_UNIX stream socket in the sandbox' directory."""

from __future__ import annotations

import errno
import os
import select
import struct
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nvx_ref.deadline import POLL_INTERVAL, Deadline
from nvx_ref.errors import Refused, SessionFailed, TimedOut, VmmExited
from nvx_ref.platform.connections import SharedConnection
from nvx_ref.platform.contract import ProcessGone, Unpinnable
from nvx_ref.platform.failures import describe, failure

assert sys.platform == "linux"

from nvx_ref.platform.linux.process import Pin
from nvx_ref.platform.linux.waiting import wait_for

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

NAME = "control.sock"
MAX_PATH = 107
"""Bytes of a socket's path: ``sun_path`` holds 108, the terminating NUL included."""

EARLY_INTERVAL = 0.002
"""Seconds between two tries of a connect at first."""
EARLY_SECONDS = 0.2
"""How long that is."""

_SOL_SOCKET = 1
_SHUT_BOTH = 2
_MSG_NOSIGNAL = 0x4000
_SO_PEERCRED = 17
_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("iII")

# Not there yet, not served yet, its backlog is full, or a signal came in between.
_NOT_YET = {errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.EINTR}
_CLOSED = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}


def choose(directory: str) -> str:
    """Return the endpoint of a sandbox' directory.

    Args:
        directory: The directory's absolute path.

    Returns:
        The socket's path in it.

    Raises:
        Refused: OpenVMM would cut the path at a ``,`` or ``=`` (openvmm 1.4), or it is over 107 bytes, as given or
            with its links resolved, which is how OpenVMM binds it.
    """
    path = os.path.join(directory, NAME)
    for character in ",=":
        if character in path:
            raise Refused(
                f"OpenVMM would cut the endpoint's path at the {character!r}",
                subject=path,
                hint="choose a directory without , and = in its path",
                detail="endpoint-character",
            )
    length = max(len(os.fsencode(path)), len(os.fsencode(os.path.join(os.path.realpath(directory), NAME))))
    if length > MAX_PATH:
        raise Refused(
            f"the endpoint's path has {length} bytes and a socket's path at most {MAX_PATH}",
            subject=path,
            hint="choose a directory with a shorter path",
            detail="endpoint-length",
        )
    return path


def is_elsewhere(endpoint: str, directory: str) -> bool:
    """Tell whether an endpoint was chosen for another directory, or for another path of this one.

    Args:
        endpoint: As :func:`choose` returned it.
        directory: A directory's absolute path.
    """
    return endpoint != os.path.join(directory, NAME)


def connect(endpoint: str, deadline: Deadline, *, alive: Callable[[], bool]) -> Connection:
    """Connect to an endpoint that may not be there yet.

    The kernel tells when a name appears, and not when a socket begins to listen, so it is tried: every 2 ms at first,
    when a VMM that has just been spawned is about to serve it, then every 25 ms.

    Args:
        endpoint: The socket's path.
        deadline: By when.
        alive: Whether the VMM still runs, asked before each further try.

    Returns:
        The connection. Who serves it is for :meth:`Connection.peer` to tell.

    Raises:
        VmmExited: ``alive`` said no.
        TimedOut: The deadline passed.
        Refused: This user may not connect, or what is there is no socket.
    """
    early = Deadline.after(EARLY_SECONDS)
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        connected = _try_connect(endpoint)
        if connected is not None:
            return Connection(connected, endpoint, before)
        if not alive():
            raise VmmExited("the VMM exited before it served its endpoint", subject=endpoint, detail="before-endpoint")
        if not deadline.pause(POLL_INTERVAL if early.expired() else EARLY_INTERVAL):
            raise TimedOut("nothing served the endpoint by the deadline", subject=endpoint, detail="endpoint")


def _try_connect(endpoint: str) -> socket.socket | None:
    import socket  # noqa: PLC0415 - one operation needs it, and it costs as much as the rest of this package

    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise failure(error, endpoint, "connect to") from error
    try:
        connection.connect(endpoint)
    except OSError as error:
        connection.close()
        if error.errno in _NOT_YET:
            return None
        if error.errno is None:
            raise Refused(str(error), subject=endpoint, detail="endpoint-length") from error
        raise failure(error, endpoint, "connect to") from error
    except BaseException:
        connection.close()
        raise
    return connection


class Connection(SharedConnection):
    """See :class:`nvx_ref.platform.contract.Connection`; made by :func:`connect`.

    Args:
        connected: The connected, non-blocking socket; the connection owns it.
        endpoint: Its path, for messages.
        before: Seconds since boot, at a moment before the connection was made.
    """

    __slots__ = ("_before", "_socket")

    def __init__(self, connected: socket.socket, endpoint: str, before: float) -> None:
        super().__init__(endpoint)
        self._socket = connected
        self._before = before

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all the bytes."""
        view = memoryview(data)
        with self._in_use():
            while view:
                sent = self._try_send(view)
                view = view[sent:]
                if not sent:
                    self._wait(select.POLLOUT, deadline, "take what was sent")

    def receive(self, limit: int, deadline: Deadline) -> bytes:
        """Return what has arrived, 1 to ``limit`` bytes, or ``b""`` once the other end has closed."""
        with self._in_use():
            while (arrived := self._try_receive(limit)) is None:
                self._wait(select.POLLIN, deadline, "answer")
            return arrived

    def exchange(self, data: memoryview, limit: int, deadline: Deadline) -> tuple[int, bytes | None]:
        """Wait until either direction can move, then move what can be moved without waiting."""
        with self._in_use():
            while True:
                arrived = self._try_receive(limit) if limit else None
                try:
                    sent = self._try_send(data)
                except SessionFailed:
                    # What it said before it closed comes first; the next call meets the end.
                    if arrived is None:
                        raise
                    sent = 0
                if sent or arrived is not None:
                    return sent, arrived
                self._wait(select.POLLOUT | (select.POLLIN if limit else 0), deadline, "take what was sent")

    def peer(self) -> Pin:
        """Return a hold on the process that serves the endpoint, as the kernel names it: the one that listens.

        ``SO_PEERPIDFD`` (Linux 6.5) gives the hold itself. Before it there is only a number: that is pinned, and
        counts only if the process started no later than this connection and the connection is still open, so that
        a successor of a dead server's number is refused.
        """
        with self._in_use():
            try:
                fd = self._socket.getsockopt(_SOL_SOCKET, _SO_PEERPIDFD)
            except OSError as error:
                if error.errno == errno.ENOPROTOOPT:
                    return self._peer_by_number()
                raise self._peerless(error) from error
            return Pin.of_descriptor(fd)

    def fileno(self) -> int:
        """Return the descriptor, for waits on several things at once."""
        return self._socket.fileno()

    def _interrupt(self) -> None:
        # The other end may have been faster.
        with suppress(OSError):
            self._socket.shutdown(_SHUT_BOTH)

    def _is_end(self, error: OSError) -> bool:
        return error.errno in _CLOSED

    def _give_up(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _try_send(self, view: memoryview) -> int:
        try:
            return self._socket.send(view, _MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    def _try_receive(self, limit: int) -> bytes | None:
        try:
            return self._socket.recv(limit)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # It closed with unread bytes of ours: an end all the same, and what it sent before has been read.
            return b""
        except OSError as error:
            raise self._broken(error) from error

    def _peer_by_number(self) -> Pin:
        try:
            credentials = self._socket.getsockopt(_SOL_SOCKET, _SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            raise self._peerless(error) from error
        pid = _CREDENTIALS.unpack(credentials)[0]
        if pid <= 0:
            raise Unpinnable(
                "its server counts in another PID namespace", subject=self._endpoint, detail="foreign-namespace"
            )
        pin = Pin.open(pid)
        try:
            self._require_predecessor(pin)
        except BaseException:
            pin.close()
            raise
        return pin

    def _require_predecessor(self, pin: Pin) -> None:
        started = pin.identity().start_time / os.sysconf("SC_CLK_TCK")
        hung_up = select.poll()
        hung_up.register(self._socket.fileno(), 0)
        if started > self._before or hung_up.poll(0):
            raise ProcessGone("the process that served the endpoint has exited", subject=self._endpoint)

    def _peerless(self, error: OSError) -> ProcessGone | Unpinnable:
        if error.errno in {errno.ESRCH, errno.EINVAL, errno.ENODATA}:
            return ProcessGone("the process that served the endpoint has exited", subject=self._endpoint)
        reason = f"the kernel gives no hold on its server: {describe(error)}"
        return Unpinnable(reason, subject=self._endpoint, detail="denied")

    def _wait(self, event: int, deadline: Deadline, what: str) -> None:
        if not wait_for(self._socket.fileno(), event, deadline):
            raise TimedOut(f"the VMM didn't {what} by the deadline", subject=self._endpoint, detail="session")
