"""Tell in one line whether Wine can do here what every test counts on; run by CPython for Windows in the lane."""

from __future__ import annotations

import subprocess
import sys

from harness.witness import host


def main() -> int:
    """Start a process, and read its arguments through the kernel of the host."""
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", "nvx-fit"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        seen = host().arguments(child.pid)
        child.communicate()
    if seen == command:
        return 0
    print("wine lane: Wine can't read another process's memory: ptrace is refused here (seccomp, or Yama's scope)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
