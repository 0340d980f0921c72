"""Small programs that stand in for an orchestrator or a VMM, so that the harness is tested without either."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import leftovers, python, witness
from harness.deadline import Clock
from harness.settings import RUNS
from harness.witness.contract import Host

SOON = Clock().after

SLEEPER = "import signal\nsignal.pause()\n"

ORCHESTRATOR = """
import json, os, sys

def say(**message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()

say(hello={"protocol": 1, "operations": ["provision", "start", "fail", "die", "hang", "leak"],
           "steps": ["start.a", "start.b"], "needs": ["scratch"], "ways": ["exit"]})
for line in sys.stdin:
    request = json.loads(line)
    number, op = request["id"], request["op"]
    if op == "die":
        sys.exit("no reason")
    if op == "hang":
        sys.stdin.read()
    if op == "fail":
        say(id=number, ok=False, code="Busy", message="another transition")
        continue
    hits = {}
    for step in ("start.a", "start.b", "start.b"):
        hits[step] = hits.get(step, 0) + 1
        say(id=number, step=step, hit=hits[step])
        if request.get("exit") == [step, hits[step]]:
            os._exit(77)
        if request.get("pause") == [step, hits[step]]:
            if json.loads(sys.stdin.readline() or "{}").get("resume") != number:
                sys.exit("nobody resumed me")
    say(id=number, ok=True, result={"args": request["args"]})
"""


def host() -> Host:
    return witness.host()


@contextmanager
def running(code: str, *arguments: str, ready: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script of Python for as long as the block lasts; with `ready`, wait for its first line."""
    command = [python.interpreter(), "-I", "-c", code, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE if ready else subprocess.DEVNULL)
    try:
        if child.stdout is not None:
            assert child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def orchestrator_script(tmp_path: Path) -> list[str]:
    return python.write_script(str(tmp_path / "orchestrator.py"), packages=(), body=ORCHESTRATOR)


def descriptors_open() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


def appears(root: Path, pattern: str) -> bool:
    """Whether there is such a path now; `Path.glob` fails over a directory that goes while it looks."""
    return any(glob.iglob(pattern, root_dir=root))


def unmount_runs() -> None:
    """Unmount what runs of this module have mounted; what is mounted elsewhere may be what another test looks for."""
    for point in reversed(host().mounts(os.environ[RUNS])):
        subprocess.run(["umount", point], check=True)


def found_of(root: Path) -> list[str]:
    """Look, and leave out what runs elsewhere: others may run an OpenVMM of their own meanwhile."""
    found = leftovers.find(witness.host(), str(root))
    return [line for line in found if not line.startswith("process ") or str(root) in line]
