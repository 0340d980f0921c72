"""How a stand-in lives on Windows: one thread waits for the lifeline's lock, another serves a pipe."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

assert sys.platform == "win32"

import msvcrt

from __main__ import SERVING, answer, prepare, say
from pipe_server import Server


def be(mode: str, lifeline: str) -> int:
    """Be the VMM until the lifeline ends, or somebody asks."""
    held = os.open(lifeline, os.O_RDWR | os.O_NOINHERIT)
    watch = threading.Thread(target=end_with, args=(held,), daemon=True)
    watch.start()
    prepare(mode)
    # Whoever is let in finds everything said.
    say("ready")
    server = Server(sys.argv[3]) if mode in SERVING else None
    while server is not None:
        server.accept()
        status = answer(mode, [] if mode == "deaf" else server.receive_some(64).split())
        if status is not None:
            return status
        server.disconnect()
    watch.join()
    return 0


def end_with(held: int) -> None:
    """Wait for a lock that many may have, and end once it is given."""
    where = (ctypes.c_uint64 * 4)()
    lock = ctypes.WinDLL("kernel32").LockFileEx
    lock(ctypes.c_ssize_t(msvcrt.get_osfhandle(held)), 0, 0, 1, 0, where)
    os._exit(0)
