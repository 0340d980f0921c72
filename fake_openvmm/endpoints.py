"""Console endpoints: their paths before anything is opened, and the boot console (contract openvmm 1.4)."""

from __future__ import annotations

from fake_openvmm import host
from fake_openvmm.machine import Failure, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from fake_openvmm.grammar import Console
    from fake_openvmm.host import Listener
    from fake_openvmm.transport import Connection, Server


def identity(console: Console | None) -> str | None:
    """Give the endpoint's identity: a canonical path, an address, or None where there is no endpoint.

    Raises:
        Failure: the path or the address breaks a rule.
    """
    if console is None or console.kind in ("none", "console"):
        return None
    if console.kind in ("listen", "connect"):
        return host.endpoint_identity(console.value)
    if console.port == 0:
        raise Failure("microVM console TCP endpoint requires a nonzero stable port")
    if not (console.value.startswith("127.") or console.value in ("::1", "0:0:0:0:0:0:0:1")):
        raise Failure("microVM console TCP endpoints must use a loopback address")
    return f"tcp:{console.value}:{console.port}"


class BootConsole:
    """The boot console (hvc1): takes what the guest writes, and shows it to whoever is at its endpoint."""

    def __init__(self, console: Console | None, where: str | None) -> None:
        """Bind or connect as `console` says; `where` is its identity.

        Raises:
            Failure: the endpoint exists, can't be bound, or can't be reached.
        """
        self.listener: Listener | None = None
        self._server: socket | Server | None = None
        self._peer: socket | Connection | None = None
        self._stdout = console is not None and console.kind == "console"
        if console is None or where is None:
            return
        if console.kind == "listen":
            self.listener = host.Listener.bind(where, private=False, listen=host.listen_here)
            self._server = self.listener.socket
            return
        made = host.console_socket(local=console.kind == "connect", ipv6=":" in console.value)
        address = where if console.kind == "connect" else (console.value, console.port)
        try:
            if console.kind == "listen-tcp":
                made.bind(address)
                made.listen(1)
                self._server = made
            else:
                made.connect(address)
                self._peer = made
        except OSError as error:
            raise Failure(f"failed to open the boot console {where}: {error.strerror}") from error
        made.setblocking(False)

    def write(self, data: bytes) -> None:
        """Show `data`; without a reader, or with one that is too slow, it is dropped."""
        if self._stdout:
            write_all(1, data)
        try:
            if self._peer is None and self._server is not None:
                self._peer = self._server.accept()[0]
                self._peer.setblocking(False)
            if self._peer is not None:
                self._peer.send(data)
        except BlockingIOError:
            return
        except OSError:
            self._peer = None

    def close(self) -> None:
        """Close everything and remove the socket if it still is ours."""
        for end in (self._peer, self._server):
            if end is not None:
                end.close()
        if self.listener is not None:
            self.listener.remove()
