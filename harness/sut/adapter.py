"""A second orchestrator: the test adapter's, with the reference's plan, launch and session, and a framing of its own.

It is what an external orchestrator would be: it composes the public parts of the reference and brings only what speaks
to its guests' agent (622.scope4.f). Its guests run the adapter's agent; NVX's own would take its first message for a
broken frame, and the other way round, so each refuses the other's sandboxes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from harness.adapter import AdapterClient, AdapterRefused
from harness.sut import reference
from nvx_ref.errors import Refused
from nvx_ref.nvxc import ExecResult
from nvx_ref.plan import GuestKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvx_ref.deadline import Deadline
    from nvx_ref.nvxc import ExecRequest, Stream
    from nvx_ref.plan import MapAction
    from nvx_ref.session import SessionDriver


class AdapterGuest:
    """What the orchestrator asks of a guest. See :class:`nvx_ref.control.GuestClient`."""

    kinds: ClassVar[frozenset[GuestKind]] = frozenset({GuestKind.ADAPTER})

    def __init__(self, driver: SessionDriver) -> None:
        self._client = AdapterClient(driver)

    def greet(self, deadline: Deadline) -> int:
        """Say hello. The adapter's agent has no feature mask."""
        self._client.hello(deadline)
        return 0

    def maps(self, table: Sequence[MapAction], deadline: Deadline) -> None:
        """Apply the table in order."""
        self._client.maps([(one.source, one.target, one.read_only) for one in table], deadline)

    def exec(self, request: ExecRequest, output: Callable[[Stream, bytes], None], deadline: Deadline) -> ExecResult:
        """Run a program; the adapter's protocol has neither a directory nor variables."""
        if request.cwd is not None or request.environment is not None:
            raise Refused("the adapter runs programs without directory and variables", subject="exec", detail="exec")
        try:
            result = self._client.exec(request.argv, deadline, timeout_ms=request.timeout_ms)
        except AdapterRefused as refused:
            return ExecResult(refused.category, refused.status, refused=True)
        output("stdout", result.stdout)
        output("stderr", result.stderr)
        return ExecResult(result.category, result.status)

    def stop(self, deadline: Deadline) -> None:
        """Ask the guest to power off."""
        self._client.stop(deadline)


def main() -> int:
    """Serve on the standard streams."""
    return reference.main(AdapterGuest)


if __name__ == "__main__":
    sys.exit(main())
