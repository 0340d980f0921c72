"""A stand-in for a VMM: ``LIFELINE MODE [ARGUMENT...]``, the capability on standard input, its log as output.

Ends with the lifeline, so that no test leaves one behind. It logs what it was sent: ``signal N`` for a signal. The
modes that serve (``serve``, ``deaf``, ``leaderless``) take the endpoint as their argument.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

SERVING = {"serve", "deaf", "leaderless"}


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def prepare(mode: str) -> None:
    """Do what the mode says before the stand-in is ready."""
    if mode == "exit":
        sys.exit(int(sys.argv[3]))
    if mode == "report":
        for name in ("outcome.json", ".tmpA1b2C3"):
            with open(name, "w", encoding="utf-8", newline="\n") as report:
                report.write("{}\n")
    if mode == "descendant":
        # It has the log as its own output, and outlives this process.
        subprocess.Popen([sys.executable, "-I", __file__, sys.argv[1], "silent"], stdin=subprocess.DEVNULL)
    if mode == "descriptors":
        for name in sorted(os.listdir("/proc/self/fd"), key=int):
            if os.path.exists(f"/proc/self/fd/{name}"):
                say(f"descriptor {name} {os.readlink(f'/proc/self/fd/{name}')}")


def answer(mode: str, asked: list[bytes]) -> int | None:
    """Return the status with which to end, None to go on."""
    if mode == "deaf":
        return None
    if asked[:1] == [b"name"]:
        with open("/proc/self/comm", "wb") as name:
            name.write(bytes.fromhex(asked[1].decode()))
    if asked[:1] in ([b"stop"], [b"exit"]):
        return int(asked[-1]) if asked[0] == b"exit" else 0
    return None


def main() -> int:
    mode = sys.argv[2]
    for word in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
        if number := getattr(signal, word, None):
            signal.signal(number, lambda received, _: say(f"signal {received}"))
    say(f"capability {len(sys.stdin.buffer.read())} bytes")
    return life.be(mode, sys.argv[1])


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if sys.platform == "win32":
        import stand_in_windows as life
    else:
        import stand_in_linux as life
    sys.exit(main())
