"""Waits for one descriptor's event."""

from __future__ import annotations

import math
import select
import sys
from typing import TYPE_CHECKING

assert sys.platform == "linux"

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline

_LONGEST = 2**31 - 1
"""Milliseconds that one ``poll`` can wait: less than the longest deadline."""


def wait_for(fd: int, event: int, deadline: Deadline) -> bool:
    """Wait until a descriptor shows an event, an error or a hang-up; False once the deadline has passed.

    An event that is there already counts even if the deadline has passed.
    """
    poll = select.poll()
    poll.register(fd, event)
    while True:
        # Rounded up: a wait that ends a moment early would look at the same state twice.
        milliseconds = min(math.ceil(deadline.remaining() * 1000), _LONGEST)
        if poll.poll(milliseconds):
            return True
        if deadline.expired():
            return False
