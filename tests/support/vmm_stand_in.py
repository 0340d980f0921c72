"""A stand-in for a VMM: ``LIFELINE MODE [ARGUMENT...]``, the capability on standard input, its log as output.

Ends with the lifeline, so that no test leaves one behind. It logs what it was sent: ``signal N`` for a signal.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def prepare(mode: str, lifeline: int) -> list[socket.socket]:
    """Do what the mode says before the stand-in is ready; returns what it serves."""
    if mode == "exit":
        sys.exit(int(sys.argv[3]))
    if mode == "report":
        for name in ("outcome.json", ".tmpA1b2C3"):
            with open(name, "w", encoding="utf-8") as report:
                report.write("{}\n")
    if mode == "descendant" and os.fork() == 0:
        os.read(lifeline, 1)
        sys.exit(0)
    if mode == "descriptors":
        for name in sorted(os.listdir("/proc/self/fd"), key=int):
            if os.path.exists(f"/proc/self/fd/{name}"):
                say(f"descriptor {name} {os.readlink(f'/proc/self/fd/{name}')}")
    if mode not in {"serve", "deaf"}:
        return []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("control.sock")
    listener.listen()
    return [listener]


def main() -> int:
    mode = sys.argv[2]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda received, _: say(f"signal {received}"))
    say(f"capability {len(sys.stdin.buffer.read())} bytes")
    lifeline = os.open(sys.argv[1], os.O_RDONLY)
    if mode != "leaderless":
        return serve(mode, lifeline)
    import ctypes  # noqa: PLC0415 - for this mode only
    import threading  # noqa: PLC0415 - likewise

    threading.Thread(target=lambda: os._exit(serve("serve", lifeline))).start()
    # The system call that ends this thread alone, without a word to Python.
    ctypes.CDLL(None).syscall(60, 0)
    return 1


def serve(mode: str, lifeline: int) -> int:
    """Be the VMM until the lifeline ends, or somebody asks."""
    listeners = prepare(mode, lifeline)
    say("ready")
    while True:
        for ready in select.select([lifeline, *listeners], [], [])[0]:
            if not isinstance(ready, socket.socket):
                return 0
            connection = ready.accept()[0]
            asked = connection.recv(64).split() if mode == "serve" else []
            if asked[:1] == [b"name"]:
                with open("/proc/self/comm", "wb") as name:
                    name.write(bytes.fromhex(asked[1].decode()))
            if asked[:1] in ([b"stop"], [b"exit"]):
                return int(asked[-1]) if asked[0] == b"exit" else 0
            connection.close()


if __name__ == "__main__":
    sys.exit(main())
