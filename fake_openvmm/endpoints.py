"""Console endpoints: their paths before anything is opened, and the boot console (contract openvmm 1.4)."""

from __future__ import annotations

import os
import stat

from fake_openvmm import host
from fake_openvmm.machine import Failure, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

    from fake_openvmm.grammar import Console
    from fake_openvmm.host import Listener

IDENTITY_LIMIT = 4096


def identity(console: Console | None) -> str | None:
    """Give the endpoint's identity: a canonical path, an address, or None where there is no endpoint.

    Raises:
        Failure: the path or the address breaks a rule.
    """
    if console is None or console.kind in ("none", "console"):
        return None
    if console.kind in ("listen", "connect"):
        return _canonical(console.value)
    if console.port == 0:
        raise Failure("microVM console TCP endpoint requires a nonzero stable port")
    if not (console.value.startswith("127.") or console.value in ("::1", "0:0:0:0:0:0:0:1")):
        raise Failure("microVM console TCP endpoints must use a loopback address")
    return f"tcp:{console.value}:{console.port}"


def _canonical(path: str) -> str:
    parts = [part for part in os.path.join(os.getcwd(), path).split("/") if part not in ("", ".")]
    if not parts or parts[-1] == "..":
        raise Failure("microVM console endpoint must name a socket")
    try:
        parent = os.path.realpath("/" + "/".join(parts[:-1]), strict=True)
    except OSError as error:
        raise Failure(f"failed to canonicalize microVM console endpoint parent: {error}") from error
    found = os.path.join(parent, parts[-1])
    try:
        if stat.S_ISLNK(os.lstat(found).st_mode):
            raise Failure(f"microVM console endpoint must not be a symbolic link: {found}")
    except OSError:
        pass  # the usual case: nothing is there yet; any other fault shows at bind
    try:
        if len(found.encode()) > IDENTITY_LIMIT:
            raise Failure("microVM console endpoint identity exceeds 4096 bytes")
    except UnicodeEncodeError:
        raise Failure("microVM console endpoint path is not valid UTF-8") from None
    return found


class BootConsole:
    """The boot console (hvc1): takes what the guest writes, and shows it to whoever is at its endpoint."""

    def __init__(self, console: Console | None, where: str | None) -> None:
        """Bind or connect as `console` says; `where` is its identity.

        Raises:
            Failure: the endpoint exists, can't be bound, or can't be reached.
        """
        self.listener: Listener | None = None
        self._server: socket | None = None
        self._peer: socket | None = None
        self._stdout = console is not None and console.kind == "console"
        if console is None or where is None:
            return
        if console.kind == "listen":
            self.listener = host.Listener.bind(where, private=False, listen=host.listen_here)
            self._server = self.listener.socket
            return
        import socket  # noqa: PLC0415 - for these kinds only

        family = socket.AF_INET6 if ":" in console.value else socket.AF_INET
        made = socket.socket(socket.AF_UNIX if console.kind == "connect" else family, socket.SOCK_STREAM)
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
