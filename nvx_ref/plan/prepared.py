"""A launch that is ready: its files checked and open, its command rendered, and everything given back at the end."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.closing import Closing
from nvx_ref.errors import Refused
from nvx_ref.images import check_binding, check_plain, check_scratch
from nvx_ref.plan.argv import Endpoints, Files, render
from nvx_ref.plan.exports import check_exports
from nvx_ref.plan.model import Upper
from nvx_ref.plan.tokens import caller_text
from nvx_ref.platform import endpoint, files
from nvx_ref.store import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvx_ref.images import Artifacts, CheckedFile, DistroBinding, ScratchBinding
    from nvx_ref.plan.hostpaths import Protected
    from nvx_ref.plan.model import ColdPlan


_LOWEST = 3
"""The lowest descriptor that isn't a standard stream."""


_SPARE = 32
"""Numbers left free below a launch's descriptors: the lowest ones are the next that anything gets."""


class Command(msgspec.Struct, frozen=True):
    """What the supervisor starts.

    Args:
        argv: The whole command.
        allowed: The descriptors that the VMM inherits besides 0, 1 and 2, under the same numbers.
    """

    argv: list[str]
    allowed: tuple[int, ...]


class PreparedLaunch(Closing):
    """The checked files of one launch, their allowlist and their command; made by :func:`prepare`.

    Hold its context from the check until authenticated Ready or a finished teardown. Leaving it closes every file, on
    every way out; the VMM has its own by then. It is never persisted.
    """

    __slots__ = ("_files", "_openvmm", "_stack", "distro", "initramfs", "kernel", "plan", "scratch")

    def __init__(
        self,
        plan: ColdPlan,
        artifacts: Artifacts,
        *,
        distro: DistroBinding | None = None,
        scratch: ScratchBinding | None = None,
        protected: Iterable[Protected] = (),
    ) -> None:
        _check_parts(plan, distro, scratch)
        caller_text(plan)
        if plan.exports is not None:
            check_exports(plan.exports, protected)
        self.plan = plan
        self._openvmm = artifacts.openvmm
        with ExitStack() as stack:
            self.distro = stack.enter_context(check_binding(distro)) if distro else None
            self.scratch = stack.enter_context(check_scratch(scratch)) if scratch else None
            self.kernel = stack.enter_context(check_plain(artifacts.kernel, "kernel"))
            self.initramfs = stack.enter_context(check_plain(artifacts.initramfs, "initramfs"))
            self._set_apart()
            self._stack = stack.pop_all()

    def _set_apart(self) -> None:
        """Leave a gap before each number, above those that a spawn takes for itself.

        CPython asks the kernel to close the ranges between what a child inherits; an empty one fails, and it closes
        every number one by one instead, which takes a process with 10,000 descriptors a hundred times as long.
        """
        checked = self._checked()
        least = max(one.fd for one in checked) + _SPARE
        for one in checked:
            least = one.set_apart(least) + 2

    def command(self, *, endpoint: str, report: str | None) -> Command:
        """Render the command for one endpoint.

        Args:
            endpoint: Where the VMM shall listen; a one-shot launch has no use for it.
            report: Where it shall write its outcome, or None for a one-shot launch without one.

        Raises:
            Refused: The command isn't one that OpenVMM would take as it is meant.
            ValueError: The launch is closed.
        """
        paths = Files(
            kernel=self.kernel.proc_path,
            initramfs=self.initramfs.proc_path,
            distro=self.distro.proc_path if self.distro else None,
            scratch=self.scratch.proc_path if self.scratch else None,
        )
        argv = render(self._openvmm, self.plan, paths, Endpoints(control=endpoint, report=report))
        # Where a descriptor has no path the VMM opens the guarded path itself, and the guards are this launch's alone;
        # the scratch's is its ownership, which must last as long as the VMM.
        return Command(argv, tuple(one.fd for one in self._checked() if files.DESCRIPTORS_HAVE_PATHS or one.writable))

    def close(self) -> None:
        """Close every checked file. A second call does nothing."""
        self._stack.close()

    def _checked(self) -> list[CheckedFile]:
        checked = (self.distro, self.scratch, self.kernel, self.initramfs)
        return [one for one in checked if one is not None]


def check_command(plan: ColdPlan, artifacts: Artifacts, *, state: str, distro: str | None, scratch: str | None) -> None:
    """Check before anything is kept that a managed launch has a command, as far as that can be known by then.

    Descriptors have no numbers yet, so the shortest one stands for each: what is refused here would be at every start.

    Args:
        plan: The plan.
        artifacts: OpenVMM, kernel and initramfs.
        state: The sandbox's directory; it needn't be there yet.
        distro: The distro's path, if there is one.
        scratch: The scratch's, if there is one.

    Raises:
        Refused: OpenVMM couldn't serve an endpoint there, or as :meth:`PreparedLaunch.command` says.
    """
    paths = Files(
        kernel=_shortest(artifacts.kernel),
        initramfs=_shortest(artifacts.initramfs),
        distro=_shortest(distro) if distro is not None else None,
        scratch=_shortest(scratch) if scratch is not None else None,
    )
    places = Endpoints(control=endpoint.choose(state), report=os.path.join(state, names.OUTCOME))
    render(artifacts.openvmm, plan, paths, places)


def prepare(
    plan: ColdPlan,
    artifacts: Artifacts,
    *,
    distro: DistroBinding | None = None,
    scratch: ScratchBinding | None = None,
    protected: Iterable[Protected] = (),
) -> PreparedLaunch:
    """Check a launch's inputs by metadata and open them for the VMM: no content is read (622.acc.8).

    The command-line budget is checked first, before any file is looked at; then exports and their pinned objects, then
    the files.

    Args:
        plan: The plan.
        artifacts: OpenVMM, kernel and initramfs.
        distro: The distro's binding; needed unless the guest is direct.
        scratch: The scratch's; needed for the ext4 upper, and for no other.
        protected: What no export may reach (:func:`nvx_ref.plan.exports.check_exports`).

    Returns:
        The launch, to be used as a context manager.

    Raises:
        NotFound: A file is missing.
        Refused: A binding is missing, stale or of another format than the plan's; a file can't be handed over; another
            sandbox owns the scratch; a pinned object was replaced; or the command line is over its budget. Nothing
            stays open.
    """
    return PreparedLaunch(plan, artifacts, distro=distro, scratch=scratch, protected=protected)


def _shortest(path: str) -> str:
    return files.proc_path(_LOWEST) if files.DESCRIPTORS_HAVE_PATHS else path


def _check_parts(plan: ColdPlan, distro: DistroBinding | None, scratch: ScratchBinding | None) -> None:
    if (distro is None) != (plan.blocks is None):
        raise Refused("the plan's distro needs its binding", subject="distro", detail="binding")
    wants_scratch = plan.blocks is not None and plan.blocks.upper is Upper.EXT4
    if (scratch is not None) != wants_scratch:
        raise Refused("the ext4 upper needs a scratch, and every other none", subject="scratch", detail="upper")
    if distro is None or plan.blocks is None:
        return
    if (distro.format, distro.identity) != (plan.blocks.format, plan.blocks.identity):
        raise Refused(
            "the plan's format and identity aren't those that the distro was verified for",
            subject=distro.path,
            hint="verify it and provision again",
            detail="binding",
        )
