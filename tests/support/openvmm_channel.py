"""The harness's end of the stand-in's channel."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any


class Connection:
    """One process that has introduced itself."""

    def __init__(self, server: socket.socket) -> None:
        self.socket = server.accept()[0]
        self.socket.settimeout(60)
        self.lines = self.socket.makefile("r", encoding="utf-8")
        self.hello: dict[str, Any] = self.read()["hello"]

    def read(self) -> dict[str, Any]:
        line = self.lines.readline()
        assert line, "the stand-in has closed its channel"
        message: dict[str, Any] = json.loads(line)
        return message

    def paused(self, point: str, hit: int = 1) -> None:
        assert self.read() == {"paused": point, "hit": hit}

    def send(self, **message: str) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


class Channel:
    """A listening channel below a state directory."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "channel")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen(8)
        self.server.settimeout(60)
        self.connections: list[Connection] = []

    def accept(self) -> Connection:
        connection = Connection(self.server)
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.server.close()
