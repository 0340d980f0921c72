"""The channel of a test over a UNIX socket in its directory."""

from __future__ import annotations

import selectors
import socket
import sys
from typing import TYPE_CHECKING

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.deadline import Deadline
    from harness.platform.contract import Line

CHUNK = 4096


class SocketLine:
    """See :class:`harness.platform.contract.Line`."""

    client = None

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    def read(self) -> bytes | None:
        """See :class:`Line`."""
        try:
            return self._connection.recv(CHUNK)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    def send(self, data: bytes) -> None:
        """See :class:`Line`."""
        self._connection.sendall(data)

    def close(self) -> None:
        """See :class:`Line`."""
        self._connection.close()


class SocketDoor:
    """See :class:`harness.platform.contract.Door`.

    Args:
        path: The socket to make.
        backlog: How many may wait to be let in.
    """

    def __init__(self, path: str, backlog: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(backlog)
        self._listener.setblocking(False)

    def accept(self) -> SocketLine | None:
        """See :class:`Door`."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return None
        return SocketLine(connection)

    def wait(self, lines: Iterable[Line], deadline: Deadline | None) -> None:
        """See :class:`Door`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            for line in lines:
                if isinstance(line, SocketLine):
                    selector.register(line, selectors.EVENT_READ)
            selector.select(deadline.remaining() if deadline else 0)

    def close(self) -> None:
        """See :class:`Door`."""
        self._listener.close()
