"""How a stand-in lives on Linux: one loop over the lifeline and a socket."""

from __future__ import annotations

import os
import select
import socket
import sys

from __main__ import SERVING, answer, prepare, say


def be(mode: str, lifeline: str) -> int:
    """Be the VMM until the lifeline ends, or somebody asks."""
    # Without waiting for the other end: the lifeline may have ended before this process got here.
    held = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    if mode != "leaderless":
        return serve(mode, held)
    import ctypes  # noqa: PLC0415 - for this mode only
    import threading  # noqa: PLC0415 - likewise

    threading.Thread(target=lambda: os._exit(serve(mode, held))).start()
    # The system call that ends this thread alone, without a word to Python.
    ctypes.CDLL(None).syscall(60, 0)
    return 1


def has_ended(lifeline: int) -> bool:
    """Tell whether the lifeline has no other end: only one that ends while it is open wakes a wait."""
    try:
        return not os.read(lifeline, 1)
    except BlockingIOError:
        return False


def serve(mode: str, lifeline: int) -> int:
    prepare(mode)
    listeners: list[socket.socket] = []
    if mode in SERVING:
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[0].bind(sys.argv[3])
    # Whoever is let in finds everything said.
    say("ready")
    for listener in listeners:
        listener.listen()
    if has_ended(lifeline):
        return 0
    while True:
        for ready in select.select([lifeline, *listeners], [], [])[0]:
            if not isinstance(ready, socket.socket):
                return 0
            connection = ready.accept()[0]
            status = answer(mode, [] if mode == "deaf" else connection.recv(64).split())
            if status is not None:
                return status
            connection.close()
