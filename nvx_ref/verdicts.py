"""What a verdict of the supervisor means to a user: an error with a way out, or a status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nvx_ref import errors, supervisor

if TYPE_CHECKING:
    from nvx_ref.supervisor import Verdict, Vmm


class Status(msgspec.Struct, frozen=True):
    """What is known of a sandbox's VMM.

    Args:
        verdict: ``live``, ``mismatched``, ``exited``, ``indeterminate``, or ``stopped``: nothing was launched.
        reason: Why, in one line; empty where the verdict says it all.
        parts: Which parts of the runtime identity differ.
    """

    verdict: str
    reason: str = ""
    parts: tuple[str, ...] = ()


def require_stopped(verdict: Verdict, path: str) -> None:
    """Raise unless the verdict says that no VMM of the sandbox runs."""
    if isinstance(verdict, supervisor.Live):
        verdict.vmm.close()
        raise errors.AlreadyExists("its VM runs", subject=path, hint="stop it first", detail="running")
    if isinstance(verdict, supervisor.Mismatched):
        verdict.vmm.close()
        raise mismatched(verdict, path)
    if isinstance(verdict, supervisor.Indeterminate):
        raise undetermined(verdict, path)


def require_live(verdict: Verdict, path: str) -> Vmm:
    """Return the VMM of a live sandbox, which the caller closes; raise what fits otherwise."""
    if isinstance(verdict, supervisor.Live):
        return verdict.vmm
    if isinstance(verdict, supervisor.Exited):
        raise not_running(path)
    require_stopped(verdict, path)
    raise not_running(path)


def not_running(path: str) -> errors.VmmExited:
    """Return the error for a sandbox whose VM does not run."""
    return errors.VmmExited("its VM isn't running", subject=path, hint="start it first", detail="not-running")


def mismatched(verdict: supervisor.Mismatched, path: str) -> errors.Mismatched:
    """Return the error for a VM that another runtime started."""
    parts = tuple(part.value for part in verdict.parts)
    return errors.Mismatched(
        f"its VM runs, and was started by another runtime ({', '.join(parts)} differ)",
        parts=parts,
        subject=path,
        hint="stop it by force, or with the runtime that started it",
        detail="mismatched",
    )


def undetermined(verdict: supervisor.Indeterminate, path: str) -> errors.Indeterminate:
    """Return the error for a VM of which nothing can be proven."""
    return errors.Indeterminate(
        f"whether its VM runs can't be told: {verdict.reason}", subject=path, detail=verdict.detail
    )


def still_running(
    stopped: supervisor.TimedOut, verdict: supervisor.Live | supervisor.Mismatched, path: str
) -> errors.NvxError:
    """Return the error for a stop after which the VM still runs."""
    if isinstance(stopped.error, errors.TimedOut) and stopped.error.detail == "no-reply":
        reason = "its VM was asked to stop, its guest didn't answer, and it still runs"
    elif stopped.error is not None:
        reason = f"its VM couldn't be asked to stop and still runs: {stopped.error}"
    elif isinstance(verdict, supervisor.Mismatched):
        parts = ", ".join(part.value for part in verdict.parts)
        reason = f"its VM still runs; another runtime started it ({parts} differ), so nothing was said to it"
    else:
        reason = "its VM was asked to stop and still runs"
    return errors.TimedOut(reason, subject=path, hint="stop again, by force if need be", detail="still-running")


def status_of(verdict: Verdict) -> Status:
    """Return what a verdict says, in words; lets go of its VMM."""
    if isinstance(verdict, supervisor.Live):
        verdict.vmm.close()
        return Status("live")
    if isinstance(verdict, supervisor.Mismatched):
        verdict.vmm.close()
        parts = tuple(part.value for part in verdict.parts)
        return Status("mismatched", f"{', '.join(parts)} differ", parts)
    if isinstance(verdict, supervisor.Indeterminate):
        return Status("indeterminate", verdict.reason)
    if verdict.record is not None:
        return Status("exited", "its VM has exited")
    if verdict.recovery is not None:
        return Status("exited", "a launch was interrupted, and nothing of it runs")
    return Status("stopped")
