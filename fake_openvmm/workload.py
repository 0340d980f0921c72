"""The machine's end of the guest process: started with the first workload, gone with the machine."""

from __future__ import annotations

import os

from fake_openvmm import messages, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_openvmm.nvxc import ExecRequest

_LIMIT = 65_536
_SAVE_SECONDS = 30.0


class Workloads:
    """Starts and ends workloads, one at a time.

    Args:
        account: the name that a workload finds in USER.
        data: gives the archive of `$HOME`; asked once, when the first workload starts.
    """

    __slots__ = ("_account", "_data", "_home", "_incoming", "_number", "_outgoing", "_process")

    def __init__(self, account: str, data: Callable[[], bytes]) -> None:
        self._account = account
        self._data = data
        self._home = b""
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._number = 0
        self._process: system.Companion | None = None

    @property
    def running(self) -> bool:
        """Whether a guest process exists."""
        return self._process is not None

    def fileno(self) -> int:
        """The descriptor to wait on; -1 without a guest process."""
        return self._process.fileno() if self._process is not None else -1

    @property
    def writes(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._outgoing)

    def start(self, request: ExecRequest) -> int:
        """Start a workload and give its number.

        Raises:
            OSError: there is no guest process and none could be started.
        """
        if self._process is None:
            self._process = system.Companion()
            self._home = system.private_name("nvx-home-")
            self._say(messages.SETUP, messages.pack_items((self._account.encode(), self._home, self._data())))
        self._number += 1
        flags = 0 if request.inherits else messages.OWN_ENVIRONMENT
        items = (request.directory or b"/", *request.arguments, *(request.environment or ()))
        self._say(messages.START, messages.pack_items(items), self._number, flags, len(request.arguments))
        return self._number

    def kill(self, number: int, reason: int) -> None:
        """Kill workload `number` unless its leader has exited already."""
        self._say(messages.KILL, b"", number, reason)

    def flush(self) -> None:
        """Write what waits, as far as it goes."""
        if self._process is not None and self._outgoing:
            del self._outgoing[: self._process.send(self._outgoing)]

    def receive(self) -> list[messages.Message] | None:
        """Messages that have come, None when the guest process is gone."""
        if self._process is None:
            return []
        data = self._process.receive(_LIMIT)
        if data == b"":
            return None
        self._incoming += data or b""
        found: list[messages.Message] = []
        while (message := messages.take(self._incoming)) is not None:
            found.append(message)
        return found

    def save(self) -> bytes | None:
        """End every workload and give the archive of `$HOME`, None if there is none to keep."""
        if self._process is None:
            return None
        self._say(messages.SAVE)
        while (found := self.receive()) is not None:
            for message in found:
                if message.kind == messages.SAVED:
                    return message.data
            self.flush()
            if not self._process.wait(_SAVE_SECONDS, write=self.writes):
                return None
        return None

    def close(self) -> None:
        """End the guest process and everything below it; it is gone when this returns."""
        process, self._process = self._process, None
        self._incoming.clear()
        self._outgoing.clear()
        if process is not None:
            process.close()
            if os.path.isdir(self._home):  # the process was killed: it would have removed it
                from fake_openvmm import archive  # noqa: PLC0415 - almost never

                archive.remove(self._home)

    def _say(self, kind: int, data: bytes = b"", a: int = 0, b: int = 0, c: int = 0) -> None:
        self._outgoing += messages.encode(kind, data, a, b, c)
        self.flush()
