"""Probes: can the hypervisor of a backend run a guest on this machine? Each *runs* something, in its own process.

A probe is a module with a function ``check()``, which needs nothing but the standard library; `run.py` prints what it
comes to as one line, ``ok`` and what it saw, or ``no`` and why not. A hypervisor that hangs or takes its caller down is
an answer like any other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from harness import python

LIMIT = 20.0
"""Seconds after which a probe that says nothing is ended."""

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe found.

    Attributes:
        works: Whether guests can run.
        reason: What it saw, or why they can't: one line.
    """

    works: bool
    reason: str


def probe(name: str, *, limit: float = LIMIT, script: str | None = None) -> Verdict:
    """Run the probe of a hypervisor.

    Args:
        name: ``kvm``, ``mshv`` or ``whp``.
        limit: Seconds that it may take.
        script: Another script than the hypervisor's own.

    Returns:
        Its verdict; a probe that dies or doesn't answer in time is a no.
    """
    if (name == "whp") is not (sys.platform == "win32"):
        return Verdict(works=False, reason=f"it takes {'Windows' if name == 'whp' else 'Linux'}")
    command = python.command(script or os.path.join(HERE, "run.py"), name)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict(works=False, reason=f"its probe didn't come back within {limit:g} s")
    except OSError as error:
        return Verdict(works=False, reason=f"its probe can't be started: {error.strerror}")
    lines = done.stdout.strip().splitlines()
    word, _, reason = (lines[-1] if lines else "").partition(" ")
    if word not in {"ok", "no"} or done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Verdict(works=False, reason=f"its probe ended with {done.returncode} and said {said}")
    return Verdict(works=word == "ok", reason=reason)
