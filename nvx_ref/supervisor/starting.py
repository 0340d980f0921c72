"""A launch: from the marker to a spawned, recorded VMM that still has to prove itself."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING, Self

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Indeterminate, LaunchFailed, NvxError, Refused, VmmExited
from nvx_ref.platform import spawn
from nvx_ref.platform.descriptors import let_go
from nvx_ref.process import ProcessRef
from nvx_ref.steps import Step
from nvx_ref.supervisor.vmm import Vmm

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nvx_ref.platform.contract import Child
    from nvx_ref.store import Launch, LockedStore, RuntimeIdentity
    from nvx_ref.supervisor.command import VmmCommand

END_WAIT = 10.0
"""Seconds that a failed launch waits for the exit of its own VMM, unless its caller says otherwise."""


def launch(locked: LockedStore, identity: RuntimeIdentity, command: Callable[[str], VmmCommand]) -> Starting:
    """Launch a VMM: journal, command, log, spawn, and its identity right after the spawn (656.launch.a, b).

    Its standard input is a pipe that holds the capability and then ends, its output and error are the claimed log,
    its directory is the sandbox's, and besides it inherits what the command allows and nothing else.

    A crash at any point leaves the journal for recovery. A step that fails ends the launch, and a VMM that was
    spawned by then through the hold on the child.

    Args:
        locked: The sandbox, recovered and without a recorded VMM.
        identity: What is launched.
        command: Returns the command for the endpoint that the launch chose.

    Returns:
        The launch, for the caller to check the endpoint through its own transport, and to commit or abandon.

    Raises:
        LaunchFailed: The program can't be executed; or, with ``detail`` ``launch-remains``, a step failed and what it
            left couldn't be ended or cleared: the VMM may still run, and ``launch.json`` was kept for recovery.
        Refused: A descriptor isn't close-on-exec, is a standard stream or closed; or a file can't be written.
        AlreadyExists: A VMM is recorded.
        Indeterminate: The log's claim is held by an earlier launch.
        Malformed: The identity has an empty part.
    """
    begun = locked.begin_launch(identity)
    try:
        built = command(begun.endpoint)
    except BaseException as error:
        _give_up(locked, begun, error, child_exited=True)
        raise
    try:
        child = _spawn(locked, begun, built)
    except BaseException as error:
        # The platform's own errors say that nothing was started; an interrupt says nothing, so the claim decides.
        _give_up(locked, begun, error, child_exited=isinstance(error, NvxError))
        raise
    process: ProcessRef | None = None
    try:
        locked.observe(Step.START_SPAWNED)
        process = ProcessRef.from_child(child)
        begun.record_process(process.identity)
        return Starting(locked, begun, process)
    except BaseException as error:
        if process is not None:
            process.close()
        _end_child(locked, begun, child, error)
        raise


def _spawn(locked: LockedStore, begun: Launch, command: VmmCommand) -> Child:
    log = begun.take_log()
    try:
        # Filled and closed before the spawn, so that a VMM that ends at once can't break the pipe.
        capability = spawn.pipe_with(begun.capability)
        try:
            return spawn.spawn(
                command.argv,
                stdin=capability,
                output=log,
                allowed=[inherited.fd for inherited in command.inherited],
                cwd=locked.path,
                breakaway=command.breakaway,
            )
        finally:
            let_go(capability)
    finally:
        # From here on the claim is the VMM's alone.
        let_go(log)


def _end_child(locked: LockedStore, begun: Launch, child: Child, error: BaseException) -> None:
    try:
        exited = child.terminate(Deadline.after(END_WAIT))
    except NvxError:
        exited = False
    if exited:
        _give_up(locked, begun, error, child_exited=True)
    else:
        _remains(locked, error, f"its VMM (process {child.pid}) could not be ended and may still run")


def _give_up(locked: LockedStore, begun: Launch, error: BaseException, *, child_exited: bool) -> None:
    try:
        begun.abandon(child_exited=child_exited)
    except NvxError as failure:
        _remains(locked, error, str(failure))


def _remains(locked: LockedStore, error: BaseException, what: str) -> None:
    """Say that the launch remains for recovery; an error that isn't of the family keeps its kind."""
    hint = "launch.json was kept: the next start, stop or deprovision recovers the launch"
    if not isinstance(error, NvxError):
        error.add_note(f"{locked.path}: {what}; {hint}")
        return
    raise LaunchFailed(
        f"the launch failed ({error}), and {what}", subject=locked.path, hint=hint, detail="launch-remains"
    ) from error


class Starting:
    """A spawned and recorded VMM that isn't the sandbox's yet.

    A context manager: leaving it without :meth:`commit` abandons the launch. One that is dropped is abandoned as
    well, with a ``ResourceWarning``; a crash leaves the journal for recovery.

    Args:
        locked: The sandbox, whose lock must be held until the launch has ended.
        begun: The launch.
        process: The VMM, which this owns until the commit.
    """

    def __init__(self, locked: LockedStore, begun: Launch, process: ProcessRef) -> None:
        self._locked = locked
        self._launch = begun
        self.process = process
        import weakref  # noqa: PLC0415 - only a launch needs it

        # Alive until the launch was committed, or its end was tried once: nobody ends it a second time unasked.
        self._finalizer = weakref.finalize(self, _dropped, begun, process, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finalizer.alive and not self._launch.ended:
            self.abandon()

    def __repr__(self) -> str:
        return f"Starting({self.launch_id}, process {self.process.identity.pid})"

    @property
    def launch_id(self) -> str:
        """The launch's random name."""
        return self._launch.launch_id

    @property
    def endpoint(self) -> str:
        """Where the VMM has to serve its control session."""
        return self._launch.endpoint

    @property
    def capability(self) -> bytes:
        """The 32 bytes that the VMM got on its standard input, for the caller's session; never logged."""
        return self._launch.capability

    def commit(self) -> Vmm:
        """Make the VMM the sandbox's, once the caller has seen it serve its endpoint.

        After a crash the launch is committed or remains for recovery. A journal that can't be removed fails nothing.

        Returns:
            The VMM, under the same lock.

        Raises:
            VmmExited: It has exited meanwhile; the launch is still to be abandoned.
            Refused: The runtime record can't be written; the launch is still to be abandoned.
        """
        if self.process.has_exited():
            raise VmmExited(
                "the VMM exited before its launch was committed",
                subject=self._locked.path,
                hint="read openvmm.log and outcome.json there",
                detail="before-commit",
            )
        record = self._launch.commit()
        self._finalizer.detach()
        return Vmm(self.process, record, self._locked, self._locked.relock)

    def abandon(self, *, deadline: Deadline | None = None) -> None:
        """End the VMM, if it runs, through its verified reference, and clear the launch. Its log and report stay.

        Args:
            deadline: By when it must have exited; None: 10 s.

        Raises:
            Indeterminate: It hasn't exited by the deadline, or couldn't be ended: it may still run, and
                ``launch.json`` was kept. It may be abandoned again.
            Refused: The launch has ended already, or a file can't be removed; ``launch.json`` was kept.
        """
        if self._launch.ended:
            raise Refused("the launch has ended already", subject=f"launch {self.launch_id}", detail="launch-state")
        self._finalizer.detach()
        reason = _end(self.process, Deadline.after(END_WAIT) if deadline is None else deadline)
        if reason is not None:
            raise Indeterminate(
                f"the VMM (process {self.process.identity.pid}) {reason}, so it may still run",
                subject=self._locked.path,
                hint="launch.json was kept: the next start, stop or deprovision recovers the launch",
                detail="exit-pending",
            )
        self._launch.abandon(child_exited=True)
        self.process.close()


def _end(process: ProcessRef, deadline: Deadline) -> str | None:
    """End a verified process; returns why its exit wasn't seen, or None once it has exited."""
    if process.has_exited():
        return None
    try:
        process.terminate()
    except NvxError as error:
        return None if process.has_exited() else f"could not be ended ({error})"
    return None if process.wait(deadline) else "was ended and hasn't exited yet"


def _dropped(begun: Launch, process: ProcessRef, owner: int) -> None:
    # In a forked child the launch is its parent's.
    if os.getpid() != owner or begun.ended:
        return
    pid = process.identity.pid
    if _end(process, Deadline.after(END_WAIT)) is None:
        with contextlib.suppress(NvxError):
            begun.abandon(child_exited=True)
    process.close()
    warnings.warn(
        f"a launch was dropped without commit() or abandon(): process {pid} was ended", ResourceWarning, stacklevel=2
    )
