"""A control session with a VMM that was verified first, and what is said over it.

The session is NVXS and knows no commands. What runs over it is the guest's agent's: NVX's own is :class:`NvxcGuest`; an
external orchestrator brings its own :class:`GuestClient` and composes the same plan and launch with it (622.scope4.f).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Protocol

from nvx_ref import errors
from nvx_ref.plan import GuestKind
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.process import ProcessRef
from nvx_ref.session import SessionDriver
from nvx_ref.store import names

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from nvx_ref.deadline import Deadline
    from nvx_ref.nvxc import ExecRequest, ExecResult, Stream
    from nvx_ref.plan import MapAction
    from nvx_ref.platform.contract import Connection
    from nvx_ref.store import Reader


class GuestClient(Protocol):
    """What an orchestrator asks of a guest over one attached session. A refusal of the guest's is a ``GuestRefused``.

    Args:
        driver: The session, attached.
    """

    kinds: ClassVar[frozenset[GuestKind]]
    """The guests whose agent speaks this."""

    def __init__(self, driver: SessionDriver) -> None:
        """Speak over a session."""
        ...

    def greet(self, deadline: Deadline) -> int:
        """Have the agent prove itself, and return its feature mask."""
        ...

    def maps(self, table: Sequence[MapAction], deadline: Deadline) -> None:
        """Apply a whole mapping table, in order; an empty one is no request."""
        ...

    def exec(self, request: ExecRequest, output: Callable[[Stream, bytes], None], deadline: Deadline) -> ExecResult:
        """Run a program to its end."""
        ...

    def stop(self, deadline: Deadline) -> None:
        """Ask the guest to power off, and wait for its word that it does."""
        ...


class NvxcGuest:
    """NVX's own agent, in layered and direct guests. See :class:`GuestClient`."""

    kinds: ClassVar[frozenset[GuestKind]] = frozenset({GuestKind.LAYERED, GuestKind.DIRECT})

    def __init__(self, driver: SessionDriver) -> None:
        # An orchestrator that only looks, or brings an agent of its own, never speaks it.
        from nvx_ref import nvxc  # noqa: PLC0415

        self._client = nvxc.NvxcClient(driver)
        self._entry = nvxc.MapEntry

    def greet(self, deadline: Deadline) -> int:
        """See the protocol."""
        self._client.ping(deadline)
        return int(self._client.features(deadline))

    def maps(self, table: Sequence[MapAction], deadline: Deadline) -> None:
        """See the protocol. A layered guest takes its shares by token, so its table is empty."""
        self._client.maps([self._entry(one.source, one.target, one.read_only) for one in table], deadline)

    def exec(self, request: ExecRequest, output: Callable[[Stream, bytes], None], deadline: Deadline) -> ExecResult:
        """See the protocol."""
        return self._client.exec(request, output, deadline)

    def stop(self, deadline: Deadline) -> None:
        """See the protocol."""
        self._client.stop(deadline)


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


def attach(driver: SessionDriver, deadline: Deadline) -> None:
    """Attach to the session of a VMM whose launch was committed.

    Raises:
        TimedOut: With ``detail`` ``session-in-use``, since that guest has been ready once: somebody else holds its one
            session, or it hangs.
        NvxError: As the driver says.
    """
    try:
        driver.attach(deadline)
    except errors.TimedOut as error:
        if error.detail != "no-answer":
            raise
        raise errors.TimedOut(
            "session in use by another process, or the VM hangs: it didn't answer by the deadline",
            subject=error.subject,
            detail="session-in-use",
        ) from error


def _require_server(connection: Connection, process: ProcessRef, endpoint: str) -> None:
    with ProcessRef.from_peer(connection) as server:
        if server.identity != process.identity:
            raise errors.Refused(
                f"process {server.identity.pid} serves it, not the VMM (process {process.identity.pid})",
                subject=endpoint,
                hint="nothing was said to it; find out what it is",
                detail="wrong-server",
            )
