"""Who serves an endpoint, as the kernel says: the probe for callers whose transport is a stream socket or a pipe."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nvx_ref.errors import NvxError
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.process import ProcessRef

if TYPE_CHECKING:
    from nvx_ref.deadline import Deadline


def peer_probe(endpoint: str, deadline: Deadline) -> ProcessRef | None:
    """Return the process at the other end of an endpoint, None if there is none or it can't be held.

    Nothing is sent to it. Whether it is the launch's VMM is recovery's to check.

    Args:
        endpoint: The endpoint of an interrupted launch.
        deadline: By when somebody must serve it.
    """
    with contextlib.suppress(NvxError):
        connection = endpoints.connect(endpoint, deadline, alive=lambda: True)
        try:
            return ProcessRef.from_peer(connection)
        finally:
            connection.close()
    return None
