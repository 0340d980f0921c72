"""Stable names of what a crash point is about: no path, number or random word that differs from run to run.

Both halves use them, the audit hook inside an orchestrator and the reader of system calls outside, so this imports
nothing but the standard library.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BOX, STORE, TEST = ".", "..", "~"
"""The sandbox's directory, the directory that holds it, and what is beside that."""

_DELETED = " (deleted)"
_OBJECTS = (
    (re.compile(r"(?:anon_inode:)?\[?pidfd\]?(?::\[\d+\])?"), "pidfd"),
    (re.compile(r"(pipe|socket):\[\d+\].*"), r"\1"),
    (re.compile(r"anon_inode:\[?(\w+)\]?"), r"\1"),
)
_WORDS = (
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"), "ID"),
    (re.compile(r"^/proc/\d+(?=/|$)"), "/proc/PID"),
    (re.compile(r"^/proc/(?:self|PID)/(fd|fdinfo)/\d+"), r"/proc/self/\1/N"),
    (re.compile(r"(?<=\.tmp)[A-Za-z0-9]{6}$"), "XXXXXX"),
    # One word in a shell, and nothing that an id uses itself.
    (re.compile(r"[\s#'\"\\$`!*?<>|&;(){}\[\]]"), "_"),
)


class Namer:
    """Names objects as seen from one sandbox.

    Args:
        root: The directory that holds the sandboxes.
        name: The sandbox.
        places: Other directories by name, looked at first.
    """

    def __init__(self, root: str, name: str, places: Mapping[str, str] | None = None) -> None:
        box = os.path.join(root, name)
        named = (*(places or {}).items(), (box, BOX), (root, STORE), (os.path.dirname(root), TEST))
        self._places = tuple((place.replace(os.sep, "/"), name) for place, name in named)

    def path(self, path: str) -> str:
        """Return the stable name of a path, or of what a descriptor is said to mean."""
        path = path.removesuffix(_DELETED).replace(os.sep, "/")
        for pattern, name in _OBJECTS:
            if pattern.fullmatch(path):
                return pattern.sub(name, path)
        for place, name in self._places:
            if path == place:
                path = name
            elif path.startswith(place + "/"):
                rest = path[len(place) + 1 :]
                path = rest if name == BOX else f"{name}/{rest}"
        for pattern, word in _WORDS:
            path = pattern.sub(word, path)
        return path

    def descriptor(self, number: int) -> str:
        """Return the stable name of what one of this process's descriptors means."""
        try:
            return self.path(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            # No such directory on this system: the number itself is stable enough for a single-threaded operation.
            return "descriptor"


def point(call: str, *arguments: str) -> str:
    """Return a crash point's name: ``call:argument``, several arguments joined by a comma."""
    return f"{call}:{','.join(arguments)}"
