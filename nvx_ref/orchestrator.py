"""The reference orchestrator: provision, start, exec, stop, reattach, deprovision.

It only composes what lies below: the store keeps the records, the supervisor the process, the session the wire. Every
operation may be cut short by a crash at any instant; the next one finds a state that it can explain and go on from.
Authorisation, image resolution and product policy are the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nvx_ref import errors, supervisor
from nvx_ref.configuration import SandboxConfiguration, decode, encode
from nvx_ref.control import NvxcGuest, attach, open_session, read_capability
from nvx_ref.deadline import MAX_SECONDS, Deadline
from nvx_ref.images import check_binding, check_scratch, read_identity
from nvx_ref.outcome import decode_outcome
from nvx_ref.plan import check_exports
from nvx_ref.steps import Step, ignore
from nvx_ref.store import RuntimeIdentity, Store, names
from nvx_ref.verdicts import (
    Status,
    not_running,
    require_live,
    require_stopped,
    status_of,
    still_running,
    undetermined,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.control import GuestClient
    from nvx_ref.nvxc import ExecRequest, ExecResult, Stream
    from nvx_ref.outcome import Outcome
    from nvx_ref.steps import Observer
    from nvx_ref.store import LockedStore, Reader
    from nvx_ref.supervisor import Starting, Stopped, Vmm

UNKNOWN_RUNTIME = RuntimeIdentity("unknown", "unknown", "unknown", "unknown", "unknown")
"""Equals no recorded identity: whoever can't tell what it runs must not speak to a guest."""

_CLOSED_BY_VMM = frozenset({"closed", "authentication-or-gone", "connection-closed", "session-reset"})


class Started(msgspec.Struct, frozen=True, rename="camel"):
    """A sandbox that has come up.

    Args:
        pid: The VMM's process number, for messages.
        instance: The broker's instance ID, 32 hex digits: one per VMM.
        epoch: The session's epoch; the next session has a later one.
        features: The guest's feature mask.
    """

    pid: int
    instance: str
    epoch: int
    features: int


class Orchestrator:
    """Runs the sandboxes below one root.

    Args:
        root: The directory that holds the sandboxes' directories.
        observer: Called with each step once it has happened.
        authorise: The caller's policy, asked before anything of a launch is written; it raises ``Refused`` to say no.
        guest: What speaks to the guests' agent; an external orchestrator's own for ``adapter`` guests.
    """

    def __init__(
        self,
        root: str,
        *,
        observer: Observer = ignore,
        authorise: Callable[[SandboxConfiguration], None] | None = None,
        guest: type[GuestClient] = NvxcGuest,
    ) -> None:
        self.store = Store(root, observer=observer)
        self._observe = observer
        self._authorise = authorise
        self._guest = guest

    def provision(self, name: str, configuration: SandboxConfiguration, *, deadline: Deadline) -> None:
        """Create a sandbox; nothing is started, and no image content is read.

        After a crash it is provisioned, or not, and can be provisioned again; a failure leaves nothing behind.

        Raises:
            AlreadyExists: It is provisioned.
            Busy: Another transition was in progress until the deadline.
            Refused: The name isn't one, OpenVMM couldn't serve an endpoint there or would get too long a command,
                nobody here speaks to such a guest, an export reaches the sandbox's own files, or an image changed
                since it was verified.
        """
        self._require_spoken(configuration)
        # A sandbox that would never start for its endpoint or its command is better refused now.
        configuration.check_command(self.store.path(name))
        with self.store.lock_provision(name, deadline=deadline) as locked:
            self._observe(Step.PROVISION_DIRECTORY)
            self._observe(Step.PROVISION_LOCKED)
            if locked.read_configuration() is not None:
                raise errors.AlreadyExists(
                    "it is provisioned already",
                    subject=locked.path,
                    hint="deprovision it first",
                    detail="already-provisioned",
                )
            if configuration.plan.exports is not None:
                check_exports(configuration.plan.exports, configuration.protected(locked.path))
            if configuration.distro is not None:
                check_binding(configuration.distro).close()
            if configuration.scratch is not None:
                check_scratch(configuration.scratch).close()
            self._observe(Step.PROVISION_BINDING)
            locked.write_configuration(encode(configuration))
            self._observe(Step.PROVISION_CONFIGURATION)

    def start(self, name: str, *, deadline: Deadline) -> Started:
        """Boot a sandbox: recover, check, authorise, launch, authenticated Ready, commit.

        After a crash the VMM is recorded, or provably of an interrupted launch, which the next transition ends. A
        failure ends the VMM; its log and report stay.

        Raises:
            NotFound: It isn't provisioned, or a file of it is gone.
            AlreadyExists: It runs.
            Mismatched: It runs, started by another runtime.
            Indeterminate: Whether something runs can't be told; nothing was started.
            LaunchFailed: The VMM or its guest ended or refused; category and status are its report's, if it published
                one.
            NvxError: As the store, the images and the plan say; nothing was started.
        """
        with self.store.lock_existing(name, deadline=deadline) as locked:
            self._observe(Step.START_LOCKED)
            configuration = _configuration(locked)
            self._require_spoken(configuration)
            found = supervisor.reattach(locked, _identity(configuration), supervisor.peer_probe, deadline=deadline)
            require_stopped(found, locked.path)
            self._observe(Step.START_RECOVERED)
            identity = read_identity(configuration.artifacts)
            with configuration.prepare(locked.path) as prepared:
                self._observe(Step.START_INPUTS_CHECKED)
                if self._authorise is not None:
                    self._authorise(configuration)
                self._observe(Step.START_POLICY_AUTHORISED)

                def command(endpoint: str) -> supervisor.VmmCommand:
                    built = prepared.command(endpoint=endpoint, report=locked.path_of(names.OUTCOME))
                    return supervisor.VmmCommand(built.argv, [supervisor.Inherited(fd) for fd in built.allowed])

                with supervisor.launch(locked, identity, command) as starting:
                    try:
                        return self._bring_up(starting, configuration, deadline)
                    except errors.NvxError as error:
                        raise self._failed(locked, starting, error, deadline) from error

    def exec(
        self, name: str, request: ExecRequest, *, deadline: Deadline, output: Callable[[Stream, bytes], None]
    ) -> ExecResult:
        """Run a program in a running sandbox, through a session of its own; takes no lock.

        After a crash the broker resets the session, which ends the program; the VM runs on.

        Args:
            name: The sandbox.
            request: What to run; its own timeout bounds the program.
            deadline: By when the guest must have taken the session. The program may run longer.
            output: Gets ``stdout`` or ``stderr`` and the bytes as they come.

        Raises:
            NotFound: It isn't provisioned.
            VmmExited: It doesn't run.
            Mismatched: Another runtime started it; nothing was said to it.
            Indeterminate: Whether it runs can't be told.
            TimedOut: Its one session is in use, or the guest isn't ready.
            SessionFailed: The session broke or ended.
        """
        with self.store.peek(name) as reader:
            configuration = _configuration(reader)
            self._require_spoken(configuration)
            identity = _identity(configuration)
            verdict = supervisor.inspect(self.store, name, identity)
            with require_live(verdict, reader.path) as vmm:
                capability = read_capability(reader)
                with open_session(vmm.endpoint, capability, vmm.process, deadline) as driver:
                    attach(driver, deadline)
                    return self._guest(driver).exec(request, output, Deadline.after(MAX_SECONDS))

    def stop(self, name: str, *, deadline: Deadline, force_within: float | None = None) -> Stopped:
        """Ask the guest to stop, wait for the VMM's exit, and clear its record.

        After a crash the VMM runs with its record, or has exited with it: the next transition finds out which.

        Args:
            name: The sandbox.
            deadline: By when the VMM must have exited.
            force_within: Seconds that a forced step may take after that; None: the VMM is never ended by force.

        Returns:
            ``Graceful``, also for a VMM that had exited by itself, or ``Forced``.

        Raises:
            NotFound: It isn't provisioned.
            Busy: Another transition was in progress until the deadline.
            VmmExited: Nothing runs, and nothing was recorded.
            Indeterminate: Whether it runs can't be told; every record was kept.
            TimedOut: It still runs; its record was kept.
        """
        with self.store.lock_existing(name, deadline=deadline) as locked:
            self._observe(Step.STOP_LOCKED)
            try:
                identity = _identity(_configuration(locked))
            except errors.NvxError as error:
                # The runtime's metadata is gone. Ending a verified VMM by force needs none of it.
                if force_within is None:
                    error.hint = error.hint or "restore it, or stop by force, which needs none of it"
                    raise
                identity = UNKNOWN_RUNTIME
            verdict = supervisor.reattach(locked, identity, supervisor.peer_probe, deadline=deadline)
            if isinstance(verdict, supervisor.Exited):
                if verdict.record is None and verdict.recovery is None:
                    raise not_running(locked.path)
                return supervisor.Graceful()
            if isinstance(verdict, supervisor.Indeterminate):
                raise undetermined(verdict, locked.path)
            with verdict.vmm as vmm:
                stopped = vmm.stop(lambda vm, until: self._ask_to_stop(locked, vm, until), deadline, force_within)
            if isinstance(stopped, supervisor.TimedOut):
                raise still_running(stopped, verdict, locked.path)
            return stopped

    def reattach(self, name: str, *, deadline: Deadline) -> Status:
        """Find a sandbox's VMM again after a restart of the orchestrator; an interrupted launch is ended first.

        Nothing is said to the guest. What has exited is cleared. After a crash the next reattach starts over.

        Returns:
            The verdict; ``indeterminate`` keeps every record.

        Raises:
            NotFound: It isn't provisioned.
            Busy: Another transition was in progress until the deadline.
            NvxError: The configuration or the runtime's metadata can't be read; nothing was done.
        """
        with self.store.lock_existing(name, deadline=deadline) as locked:
            identity = _identity(_configuration(locked))
            return status_of(supervisor.reattach(locked, identity, supervisor.peer_probe, deadline=deadline))

    def status(self, name: str) -> Status:
        """Tell what is known of a sandbox's VMM, without a lock, a recovery or a change of anything.

        Raises:
            NotFound: It isn't provisioned.
        """
        with self.store.peek(name) as reader:
            identity = _identity(_configuration(reader))
        return status_of(supervisor.inspect(self.store, name, identity))

    def deprovision(self, name: str, *, deadline: Deadline) -> None:
        """Remove a stopped sandbox with its directory; what a cut-short removal or provision left goes as well.

        Neither the configuration's content nor the artifacts are needed for it. After a crash the sandbox is
        provisioned or not, and deprovisioning it again finishes the removal.

        Raises:
            NotFound: There is no such directory.
            Busy: Another transition was in progress until the deadline.
            AlreadyExists: It runs; stop it first.
            Indeterminate: Whether it runs can't be told; nothing was removed.
            ForeignEntries: Files that nobody declared are in it; nothing was removed.
        """
        with self.store.lock_removal(name, deadline=deadline) as locked:
            self._observe(Step.REMOVAL_LOCKED)
            identity = _recorded_identity(locked)
            verdict = supervisor.reattach(locked, identity, supervisor.peer_probe, deadline=deadline)
            require_stopped(verdict, locked.path)
            locked.remove(deadline=deadline)

    def _require_spoken(self, configuration: SandboxConfiguration) -> None:
        kind = configuration.plan.guest.kind
        if kind not in self._guest.kinds:
            raise errors.Refused(
                f"this orchestrator doesn't speak to the agent of a guest of kind {kind.value}",
                subject="guest",
                hint="use the orchestrator that it was made for",
                detail="guest-kind",
            )

    def _bring_up(self, starting: Starting, configuration: SandboxConfiguration, deadline: Deadline) -> Started:
        """Let a launched VMM prove itself, hand over its mappings in order, then commit (622.scope4.f)."""
        exports = configuration.plan.exports
        with open_session(starting.endpoint, starting.capability, starting.process, deadline) as driver:
            self._observe(Step.START_ENDPOINT_UP)
            ready = driver.attach(deadline)
            guest = self._guest(driver)
            features = guest.greet(deadline)
            self._observe(Step.START_SESSION_READY)
            guest.maps(exports.mappings if exports is not None else (), deadline)
            self._observe(Step.START_MAPS_APPLIED)
            with starting.commit() as vmm:
                return Started(vmm.record.process.pid, ready.instance.hex(), ready.epoch, features)

    def _failed(
        self, locked: LockedStore, starting: Starting, error: errors.NvxError, deadline: Deadline
    ) -> errors.NvxError:
        """End a start that failed, and say why in the VMM's own words where it published them."""
        refused = error if isinstance(error, errors.GuestRefused) else None
        if refused or isinstance(error, errors.VmmExited) or error.detail in _CLOSED_BY_VMM:
            # It closed by itself, so it is about to say why and to exit (contract nvx-host 2.4, N5); and a guest that
            # refused has until the deadline to do so.
            starting.process.wait(deadline)
            self._observe(Step.FAILED_START_REPORT_AWAITED)
        try:
            starting.abandon()
        except errors.NvxError as failure:
            return failure
        self._observe(Step.FAILED_START_ABANDONED)
        outcome = _outcome(locked)
        said = f"; its report says {outcome.category}, status {outcome.status_code}" if outcome else ""
        return errors.LaunchFailed(
            f"the VM didn't come up: {error}{said}",
            category=outcome.category if outcome else refused.category if refused else None,
            status=outcome.status_code if outcome else refused.status if refused else None,
            subject=locked.path,
            hint=f"read {names.LOG} there",
            detail=error.detail,
        )

    def _ask_to_stop(self, locked: LockedStore, vmm: Vmm, deadline: Deadline) -> None:
        self._require_spoken(_configuration(locked))
        with open_session(vmm.endpoint, read_capability(locked), vmm.process, deadline) as driver:
            attach(driver, deadline)
            self._guest(driver).stop(deadline)


def _configuration(reader: Reader) -> SandboxConfiguration:
    raw = reader.read_configuration()
    if raw is None:
        raise errors.NotFound("it isn't provisioned", subject=reader.path, hint="provision it first")
    return decode(raw, reader.path_of(reader.caller.configuration))


def _identity(configuration: SandboxConfiguration) -> RuntimeIdentity:
    """Read the runtime identity to compare with; a release of other contracts is a verdict then, not a refusal."""
    return read_identity(configuration.artifacts, launching=False)


def _recorded_identity(reader: Reader) -> RuntimeIdentity:
    try:
        record = reader.runtime()
    except errors.NvxError as error:
        raise errors.Indeterminate(error.reason, subject=error.subject, hint=error.hint, detail=error.detail) from error
    return UNKNOWN_RUNTIME if record is None else record.identity


def _outcome(locked: LockedStore) -> Outcome | None:
    try:
        raw = locked.read_outcome()
        return None if raw is None else decode_outcome(raw, locked.path_of(names.OUTCOME))
    except errors.NvxError:
        # A report that can't be read doesn't hide why the start failed.
        return None
