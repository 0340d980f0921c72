"""The guest process on Windows: no process, since a Linux program can't run here, but the few commands that tests use.

It speaks the messages of `fake_openvmm.messages`, as the Linux one does. A command ends at once, but for `sleep`.
"""

from __future__ import annotations

import errno
import sys
import threading

assert sys.platform == "win32"

from fake_openvmm import messages
from fake_openvmm.windows import applets
from fake_openvmm.windows.pipes import Source, kernel32, wait_for

KILLED = -9


class Companion(Source):
    """The guest's commands, and this end of the conversation with them."""

    __slots__ = ("_archive", "_event", "_incoming", "_outgoing", "_running", "_shell", "_timer")

    def __init__(self) -> None:
        super().__init__()
        self._event: int = kernel32.CreateEventW(None, True, False, None)
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._shell = applets.Shell()
        self._running = 0
        self._timer: threading.Timer | None = None
        self._archive = b""

    def send(self, data: bytes | bytearray) -> int:
        """Take messages and do what they say."""
        self._incoming += data
        while (message := messages.take(self._incoming)) is not None:
            self._obey(message)
        return len(data)

    def receive(self, limit: int) -> bytes | None:
        """Read what there is: None if nothing."""
        found = bytes(self._outgoing[:limit])
        del self._outgoing[:limit]
        if not self._outgoing:
            kernel32.ResetEvent(self._event)
        return found or None

    def wait(self, seconds: float, *, write: bool) -> bool:
        """Wait until something can be read; it can always be written."""
        if not self._outgoing and not write:
            wait_for([self._event], seconds)
        return bool(self._outgoing) or write

    def close(self) -> None:
        """End what runs."""
        self._stop()

    def state(self) -> tuple[bool, bool, bool]:
        """As `Source.state`."""
        return bool(self._outgoing), True, False

    def events(self) -> list[int]:
        """The event of something to read."""
        return [self._event]

    def _obey(self, message: messages.Message) -> None:
        number, value, count = message.numbers
        if message.kind == messages.SETUP:
            account, _, content = messages.unpack_items(message.data)
            self._shell = applets.Shell(account.decode(), content)
        elif message.kind == messages.START:
            self._start(number, value, messages.unpack_items(message.data), count)
        elif message.kind == messages.KILL:
            self._kill(number, value)
        elif message.kind == messages.SAVE:
            self._stop()
            self._say(messages.SAVED, self._shell.pack())

    def _start(self, number: int, flags: int, items: list[bytes], count: int) -> None:
        self._stop()
        directory, arguments, entries = items[0], items[1 : count + 1], items[count + 1 :]
        if not self._shell.has_directory(directory.decode()):
            self._say(messages.REFUSED, b"", number, messages.STAGE_DIRECTORY, errno.ENOENT)
            return
        words = [argument.decode(errors="surrogateescape") for argument in arguments]
        own: dict[str, str] = {}
        for entry in entries:
            name, _, text = entry.decode(errors="surrogateescape").partition("=")
            own[name] = text
        inherits = not flags & messages.OWN_ENVIRONMENT
        try:
            ended = self._shell.run(words, own, directory.decode(), inherits=inherits)
        except applets.NoProgramError:
            self._say(messages.REFUSED, b"", number, messages.STAGE_PROGRAM, errno.ENOENT)
            return
        self._running = number
        for stream, data in ended.output:
            kind = messages.STDOUT if stream == 1 else messages.STDERR
            for start in range(0, len(data), messages.MAX_READ):
                self._say(kind, data[start : start + messages.MAX_READ], number)
        if ended.sleeps:
            self._timer = threading.Timer(ended.sleeps, self._done, (number, ended.status, 0))
            self._timer.daemon = True
            self._timer.start()
        else:
            self._done(number, ended.status, 0)

    def _done(self, number: int, status: int, reasons: int) -> None:
        if self._running == number:
            self._running = 0
            self._say(messages.DONE, b"", number, status, reasons)

    def _kill(self, number: int, reason: int) -> None:
        if reason == messages.ABANDONED:
            self._stop()
        elif self._running == number:
            if self._timer is not None:
                self._timer.cancel()
            self._done(number, KILLED, reason)

    def _stop(self) -> None:
        self._running = 0
        if self._timer is not None:
            self._timer.cancel()

    def _say(self, kind: int, data: bytes = b"", a: int = 0, b: int = 0, c: int = 0) -> None:
        self._outgoing += messages.encode(kind, data, a, b, c)
        kernel32.SetEvent(self._event)
