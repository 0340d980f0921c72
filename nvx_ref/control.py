"""A control session with a VMM that was verified first."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvx_ref import errors
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.process import ProcessRef
from nvx_ref.session import SessionDriver
from nvx_ref.store import names

if TYPE_CHECKING:
    from collections.abc import Generator

    from nvx_ref.deadline import Deadline
    from nvx_ref.platform.contract import Connection
    from nvx_ref.store import Reader


def read_capability(reader: Reader) -> bytes:
    """Return the capability of the running launch.

    Raises:
        SessionFailed: It is missing, so nobody can speak to the guest.
        Malformed: It isn't 32 bytes.
    """
    capability = reader.read_capability()
    if capability is None:
        raise errors.SessionFailed(
            "the capability is missing, so the guest can't be reached",
            subject=reader.path_of(names.CAPABILITY),
            hint="stop it by force",
            detail="capability",
        )
    return capability


@contextmanager
def open_session(
    endpoint: str, capability: bytes, process: ProcessRef, deadline: Deadline
) -> Generator[SessionDriver, None, None]:
    """Connect to a VMM's endpoint, once the kernel has said that it is that VMM who serves it."""
    connection = endpoints.connect(endpoint, deadline, alive=lambda: not process.has_exited())
    try:
        _require_server(connection, process, endpoint)
        driver = SessionDriver(connection, capability)
    except BaseException:
        connection.close()
        raise
    with driver:
        yield driver


def _require_server(connection: Connection, process: ProcessRef, endpoint: str) -> None:
    with ProcessRef.from_peer(connection) as server:
        if server.identity != process.identity:
            raise errors.Refused(
                f"process {server.identity.pid} serves it, not the VMM (process {process.identity.pid})",
                subject=endpoint,
                hint="nothing was said to it; find out what it is",
                detail="wrong-server",
            )
