"""How a stand-in lives on Linux: one loop over the lifeline and a socket."""

from __future__ import annotations

import os
import select
import socket
import sys

from __main__ import SERVING, answer, prepare, say


def be(mode: str, lifeline: str) -> int:
    """Be the VMM until the lifeline ends, or somebody asks."""
    held = os.open(lifeline, os.O_RDONLY)
    if mode != "leaderless":
        return serve(mode, held)
    import ctypes  # noqa: PLC0415 - for this mode only
    import threading  # noqa: PLC0415 - likewise

    threading.Thread(target=lambda: os._exit(serve(mode, held))).start()
    # The system call that ends this thread alone, without a word to Python.
    ctypes.CDLL(None).syscall(60, 0)
    return 1


def serve(mode: str, lifeline: int) -> int:
    prepare(mode)
    listeners: list[socket.socket] = []
    if mode in SERVING:
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[0].bind(sys.argv[3])
        listeners[0].listen()
    say("ready")
    while True:
        for ready in select.select([lifeline, *listeners], [], [])[0]:
            if not isinstance(ready, socket.socket):
                return 0
            connection = ready.accept()[0]
            status = answer(mode, [] if mode == "deaf" else connection.recv(64).split())
            if status is not None:
                return status
            connection.close()
