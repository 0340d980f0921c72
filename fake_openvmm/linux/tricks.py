"""Misbehaviour that needs other processes and threads, at the harness's request only."""

from __future__ import annotations

import os
import sys

assert sys.platform != "win32"

from fake_openvmm import host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

EXIT_CALL = {"x86_64": 60, "aarch64": 93}


def keep_log(hello: Callable[[int], socket]) -> int:
    """Leave a child behind that keeps descriptors 1 and 2 until the harness is gone; give its number.

    Args:
        hello: connects to the harness in the child and introduces the number given.
    """
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        _close_all_but({1, 2})
        channel = hello(os.getpid())
        while channel.recv(4096):
            pass
    finally:
        os._exit(0)


def listen_elsewhere(server: socket, *, stay: bool) -> int:
    """Have a child listen on `server`, so that the kernel shows the child as the server; give the child's number.

    The child holds neither the log nor anything else of ours. It ends with this process, or at once unless `stay`.
    """
    reader, writer = os.pipe()
    told, ready = os.pipe()
    child = os.fork()
    if child:
        os.close(reader)
        os.close(ready)
        os.read(told, 1)
        os.close(told)
        if stay:
            _KEPT.append(writer)
        else:
            os.close(writer)
            os.waitpid(child, 0)
        return child
    try:
        server.listen(host.BACKLOG)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        _close_all_but({0, 1, 2, reader, ready})
        os.close(ready)
        if stay:
            os.read(reader, 1)
    finally:
        os._exit(0)


_KEPT: list[int] = []


def end_first_thread(rest: Callable[[], None], when: Callable[[Callable[[], None]], None]) -> None:
    """Run `rest` in another thread and end this one, so that /proc shows a zombie whose other threads live.

    Args:
        rest: ends the process.
        when: takes what the other thread is to call once this one may end.
    """
    import _thread  # noqa: PLC0415 - at the harness's request only
    import ctypes  # noqa: PLC0415

    call = ctypes.CDLL(None).syscall
    number = EXIT_CALL[os.uname().machine]
    gate = _thread.allocate_lock()
    gate.acquire()
    when(gate.release)
    _thread.start_new_thread(rest, ())
    gate.acquire()
    call(number, 0)


def _close_all_but(kept: set[int]) -> None:
    for number in list(map(int, os.listdir("/proc/self/fd"))):
        if number not in kept:
            try:
                os.close(number)
            except OSError:
                continue
