"""The host's connection: accepting, the peer's user, the time to authenticate, and writing (contract openvmm 3.2)."""

from __future__ import annotations

import time

from fake_openvmm import broker as brokers
from fake_openvmm import nvxs, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_openvmm.broker import Broker
    from fake_openvmm.machine import Tools
    from fake_openvmm.mischief import Shaper
    from fake_openvmm.transport import Connection, Server

SLAB = 4096
TARGET = "virtio_console::control"
READER_POLL = 0.001
"""Between two looks at whether a host has read one piece of a record that is to come in pieces."""


class HostLink:
    """Connects one host at a time to the broker; the next one waits in the listener's backlog.

    Args:
        ready: called each time that a READY has been written whole.
    """

    def __init__(
        self, listener: Server, broker: Broker, tools: Tools, auth_seconds: float, ready: Callable[[], None]
    ) -> None:
        self._listener = listener
        self._broker = broker
        self._tools = tools
        self._auth_seconds = auth_seconds
        self._ready = ready
        self._connection: Connection | None = None
        self._late_at: float | None = None
        self._again_at: float | None = None
        self._type = 0
        self._pieces: list[bytes] = []
        self._unread_first = False
        self._closes = False
        self._shaper = _shaper(tools)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written to a host."""
        return self._connection is None or not (self._pieces or self._broker.to_host)

    @property
    def deadline(self) -> float | None:
        """Monotonic seconds at which `tick` has something to do."""
        times = [at for at in (self._late_at, self._again_at) if at is not None]
        return min(times) if times else None

    def wanted(self, *, serve: bool) -> tuple[list[int], list[int], list[int]]:
        """Descriptors to wait for: to read, to write, and to watch for their end alone."""
        if self._connection is None:
            return ([self._listener.fileno()] if serve and self._broker.accepts else []), [], []
        fd = self._connection.fileno()
        writes = [fd] if self._pieces and self._again_at is None else []
        reads = serve and self._broker.reads_host
        return ([fd] if reads else []), writes, ([] if reads else [fd])

    def serve(self, ready: dict[int, tuple[bool, bool]]) -> None:
        """Take what `wait` found."""
        if self._connection is None:
            if ready.get(self._listener.fileno(), (False, False))[0]:
                self._accept()
            return
        readable, _ = ready.get(self._connection.fileno(), (False, False))
        if readable:
            self._read(self._connection)

    def tick(self) -> None:
        """Look at the clock."""
        now = time.monotonic()
        if self._late_at is not None and self._broker.host != brokers.UNPROVEN:
            self._late_at = None
        if self._late_at is not None and now >= self._late_at:
            self._broker.host_late()
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None

    def flush(self) -> bool:
        """Write what goes, and close a connection that the broker has given up.

        Returns:
            Whether the broker was told of anything, so that it may have room for the guest now, or something for it.
        """
        told = False
        while self._connection is not None and self._broker.host != brokers.NO_HOST and self._again_at is None:
            if not self._pieces and not self._next_record():
                break
            if not self._write(self._connection):
                break
            told = True
        if self._connection is not None and self._broker.host == brokers.NO_HOST:
            self._close(self._connection)
            return True
        return told

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._close(self._connection)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        uid, pid = system.peer(connection)
        if uid != system.own_user():
            self._tools.log.line("WARN", TARGET, "control peer rejected", uid=uid)
            self._tools.evidence.event("host_refused", uid=uid, pid=pid)
            connection.close()
            return
        connection.setblocking(False)
        self._connection = connection
        self._late_at = time.monotonic() + self._auth_seconds
        self._tools.evidence.event("host", uid=uid, pid=pid)
        self._broker.host_opened()

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.recv(SLAB)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._broker.host_ended()
        elif self._broker.reads_host:
            self._broker.host_bytes(data)
        else:
            self._broker.host_ended()

    def _next_record(self) -> bool:
        raw = self._broker.to_host.take()
        if raw is None:
            return False
        self._type = raw[6]
        self._pieces, self._closes = ([raw], False) if self._shaper is None else self._shaper.shape(raw)
        self._unread_first = False
        return True

    def _write(self, connection: Connection) -> bool:
        if self._unread_first and system.unread(connection):
            self._again_at = time.monotonic() + READER_POLL
            return False
        self._unread_first = False
        try:
            while self._pieces:
                piece = self._pieces[0]
                sent = connection.send(piece) if piece else 0
                if sent < len(piece):
                    self._pieces[0] = piece[sent:]
                    return False
                del self._pieces[0]
                if self._pieces:
                    self._unread_first = True
                    return True
        except BlockingIOError:
            return False
        except OSError:
            self._broker.host_ended()
            return False
        self._written()
        return True

    def _written(self) -> None:
        if self._closes:
            self._broker.host_ended("cut short at the harness's request")
            return
        self._broker.host_written()
        if self._type == nvxs.READY:
            self._ready()

    def _close(self, connection: Connection) -> None:
        connection.close()
        self._connection = None
        self._late_at = self._again_at = None
        self._pieces = []
        self._closes = False


def _shaper(tools: Tools) -> Shaper | None:
    if not tools.knobs.items("host_records") and not tools.knobs.integer("split_records", 0):
        return None
    from fake_openvmm.mischief import Shaper  # noqa: PLC0415 - at the harness's request only

    return Shaper(tools.knobs)
