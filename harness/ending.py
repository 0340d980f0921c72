"""Waiting for the end of a program that was started, which Ctrl-C may cut short at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import witness

if TYPE_CHECKING:
    import subprocess

    from harness.deadline import Deadline


def has_ended(child: subprocess.Popen[bytes], deadline: Deadline) -> bool:
    """Wait until a child has ended or the deadline has passed, by the system's event; return whether it has ended.

    `Popen.wait` with a timeout looks again and again under a lock of its own. If an interrupt comes right after it has
    taken the lock, nobody lets go of that, and whoever waits next waits for ever: one of some 1,600 interrupts that
    come at random.
    """
    if child.returncode is not None:
        return True
    pin = witness.host().pin(child.pid)
    if pin is None:
        return True
    try:
        return pin.wait(deadline)
    finally:
        pin.close()
