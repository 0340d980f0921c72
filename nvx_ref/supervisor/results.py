"""What a stop and a reattach report.

``TimedOut`` and ``Indeterminate`` are results here, named as in the specification; the errors of the same names are
in :mod:`nvx_ref.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvx_ref.store import IdentityPart, Recovery, RuntimeRecord
    from nvx_ref.supervisor.vmm import Vmm


class _Result:
    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class _Stopped(_Result):
    __slots__ = ("error",)

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class Graceful(_Stopped):
    """The VMM has exited without being ended from here, and its record was cleared.

    Args:
        error: Why the graceful step failed, if it did and the VMM exited all the same.
    """

    __slots__ = ()


class Forced(_Stopped):
    """The VMM was ended by the forced step that the caller asked for, and its record was cleared (620.scope3.j).

    One that ended by itself in the instant of that step was not forced; where the kernel doesn't give its exit status
    (a VMM that another process has reaped, before Linux 6.15) it counts as forced all the same.

    Args:
        error: Why the graceful step failed, if it did.
    """

    __slots__ = ()


class TimedOut(_Stopped):
    """The VMM still runs, or its exit couldn't be seen in time; its record was kept.

    Args:
        error: Why the graceful or the forced step failed, if one did.
    """

    __slots__ = ()


Stopped = Graceful | Forced | TimedOut


class Live(_Result):
    """The recorded VMM runs, verified, with the caller's runtime identity.

    Args:
        vmm: The VMM.
    """

    __slots__ = ("vmm",)

    def __init__(self, vmm: Vmm) -> None:
        self.vmm = vmm


class Mismatched(_Result):
    """The recorded VMM runs, verified, and was launched with another runtime identity (620.scope3.m).

    Args:
        vmm: The VMM; its stop says nothing to the guest.
        parts: What differs, in its fixed order.
    """

    __slots__ = ("parts", "vmm")

    def __init__(self, vmm: Vmm, parts: tuple[IdentityPart, ...]) -> None:
        self.vmm = vmm
        self.parts = parts


class Exited(_Result):
    """No VMM of the sandbox runs.

    Args:
        record: The record of the VMM that has exited, None if there was none. :func:`reattach` has cleared it,
            :func:`inspect` leaves it.
        recovery: What became of an interrupted launch, None if there was none.
    """

    __slots__ = ("record", "recovery")

    def __init__(self, record: RuntimeRecord | None, recovery: Recovery | None) -> None:
        self.record = record
        self.recovery = recovery


class Indeterminate(_Result):
    """Whether a VMM runs can't be proven either way; every record was kept.

    Args:
        reason: Why, in one line.
        detail: A stable slug, for example ``launch-unfinished``, ``claim-held`` or ``exit-pending``.
    """

    __slots__ = ("detail", "reason")

    def __init__(self, reason: str, detail: str | None = None) -> None:
        self.reason = reason
        self.detail = detail


Verdict = Live | Mismatched | Exited | Indeterminate
