"""What Python itself reports of an orchestrator's writes and locks, as crash points: one hook, on every system.

The hook is called *before* each event. Write, fsync, close and signals aren't reported, so this way is coarser than
system calls and finer than steps. An orchestrator in Python brings it along by three lines::

    points = audit.Points(root, name)
    audit.listen(lambda event, arguments: announce(points.name(event, arguments)))
    ...
    audit.listen(None)
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from harness.sut.naming import Namer, point

if TYPE_CHECKING:
    from collections.abc import Callable

Arguments = tuple[object, ...]

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    "os.rename": ("rename", 2),
    "os.link": ("link", 2),
    "os.symlink": ("symlink", 2),
    "os.remove": ("remove", 1),
    "os.mkdir": ("mkdir", 1),
    "os.rmdir": ("rmdir", 1),
    "os.truncate": ("truncate", 1),
    "os.chmod": ("chmod", 1),
    "os.chown": ("chown", 1),
    "fcntl.flock": ("flock", 1),
    "fcntl.lockf": ("lockf", 1),
    "msvcrt.locking": ("locking", 1),
    "shutil.rmtree": ("rmtree", 1),
}
"""Which events count, what a crash point calls them, and how many of their arguments name something."""


class _Listener:
    """The one hook of this process: it can't be taken out again, so it is put in once and switched."""

    def __init__(self) -> None:
        self.installed = False
        self.ear: Callable[[str, Arguments], None] | None = None

    def __call__(self, event: str, arguments: Arguments) -> None:
        # What the listener itself does is nothing that the orchestrator did.
        ear = self.ear
        if ear is not None and event in _EVENTS:
            self.ear = None
            try:
                ear(event, arguments)
            finally:
                self.ear = ear


_EVENTS = frozenset(
    {
        *_PATHS,
        "open",
        "fcntl.fcntl",
        "subprocess.Popen",
        "os.posix_spawn",
        "socket.bind",
        "socket.connect",
        "_winapi.CreateFile",
    }
)
_listener = _Listener()


def listen(ear: Callable[[str, Arguments], None] | None) -> None:
    """Have every event that counts told from now on; None: none."""
    if not _listener.installed:
        _listener.installed = True
        sys.addaudithook(_listener)
    _listener.ear = ear


class Points:
    """The crash points of one operation.

    Args:
        root: The directory that holds the sandboxes.
        name: The sandbox.
    """

    def __init__(self, root: str, name: str) -> None:
        self._namer = Namer(root, name)
        self._connected: set[str] = set()

    def name(self, event: str, arguments: Arguments) -> str | None:
        """Return the name of an event's crash point, None where the event changes nothing."""
        if event in _PATHS:
            call, count = _PATHS[event]
            return point(call, *(self._object(argument) for argument in arguments[:count]))
        match event, arguments:
            case "open", (where, _, int(flags)) if flags & _CHANGES:
                return point("open", self._object(where))
            case "fcntl.fcntl", (descriptor, int(command), *_) if command in _LOCKS:
                return point("lock", self._object(descriptor))
            case (("subprocess.Popen" | "os.posix_spawn"), (program, *_)):
                return point("spawn", os.path.basename(os.fsdecode(str(program))))
            case "socket.bind", (_, address):
                return point("bind", self._object(address))
            case "socket.connect", (_, address):
                return self._connect(self._object(address))
            case "_winapi.CreateFile", (str(path), *_) if _is_pipe(path):
                return self._connect(self._object(path))
            case _:
                return None

    def _connect(self, address: str) -> str | None:
        # How often an endpoint that isn't there yet is tried depends on the machine.
        if address in self._connected:
            return None
        self._connected.add(address)
        return point("connect", address)

    def _object(self, value: object) -> str:
        if isinstance(value, int):
            return self._namer.descriptor(value)
        if isinstance(value, str | bytes):
            return self._namer.path(os.fsdecode(value))
        number: Callable[[], object] | None = getattr(value, "fileno", None)
        return self._object(number()) if number is not None else type(value).__name__


def _is_pipe(path: str) -> bool:
    return path.replace("\\", "/").startswith("//./pipe/")


def _lock_commands() -> frozenset[int]:
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return frozenset()
    names = ("F_SETLK", "F_SETLKW", "F_OFD_SETLK", "F_OFD_SETLKW")
    return frozenset(getattr(fcntl, name) for name in names if hasattr(fcntl, name))


_LOCKS = _lock_commands()
