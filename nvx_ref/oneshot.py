"""A one-shot run: a sandbox that lives as long as its entrypoint, in a private directory that goes with it.

It is the same launch as a managed one, with the same journal, checked files and allowlist, and without a control
session: the VMM ends by itself, with the entrypoint's status.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from nvx_ref import supervisor
from nvx_ref.deadline import MAX_SECONDS, Deadline
from nvx_ref.errors import LaunchFailed
from nvx_ref.images import read_identity
from nvx_ref.plan import Budget, Lifecycle, explain
from nvx_ref.plan.argv import Endpoints, Files, render
from nvx_ref.steps import ignore
from nvx_ref.store import Store, names

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.configuration import SandboxConfiguration
    from nvx_ref.nvxc import Stream
    from nvx_ref.steps import Observer
    from nvx_ref.store import LockedStore

NAME = "run"
OUTPUT_INTERVAL = 0.1
"""Seconds between two looks at what the VMM has logged: no file says that it has grown. Its exit is an event."""

ENDING = 10.0
"""Seconds that what is ended may take to be gone."""

_CHUNK = 1 << 16
_SIGNALLED = 128


def one_shot(configuration: SandboxConfiguration) -> SandboxConfiguration:
    """Return the configuration of a run that ends with its entrypoint."""
    return msgspec.structs.replace(
        configuration, plan=msgspec.structs.replace(configuration.plan, lifecycle=Lifecycle.ONE_SHOT)
    )


def dry_run(configuration: SandboxConfiguration, *, report: str | None = None) -> tuple[list[str], Budget]:
    """Return the command of a one-shot run, with the files by their own names, and its command-line budget.

    Args:
        configuration: A checked one.
        report: Where the VMM shall write its outcome, or None.

    Raises:
        Refused: A path is one that OpenVMM would cut or read as a container format.
    """
    plan = one_shot(configuration).plan
    artifacts = configuration.artifacts
    files = Files(
        kernel=artifacts.kernel,
        initramfs=artifacts.initramfs,
        distro=configuration.distro.path if configuration.distro else None,
        scratch=configuration.scratch.path if configuration.scratch else None,
    )
    return render(artifacts.openvmm, plan, files, Endpoints(control="none", report=report)), explain(plan)


def run_once(
    configuration: SandboxConfiguration,
    *,
    report: str | None,
    output: Callable[[Stream, bytes], None],
    deadline: Deadline,
    observer: Observer = ignore,
) -> int:
    """Boot, hand on what the VMM says, and return its status once it has ended and everything of it is gone.

    Ctrl-C ends the VMM. A crash leaves a directory ``nvx-run-*`` for temporary files, with the launch's journal.

    Args:
        configuration: A checked one whose plan is one-shot.
        report: Where the VMM shall publish its outcome, or None.
        output: Gets ``stdout`` and the bytes as they come.
        deadline: For the steps before the boot; the run itself may take as long as it takes.
        observer: Called with each step once it has happened.

    Returns:
        OpenVMM's status; 128 and the number for a signal.

    Raises:
        LaunchFailed: It couldn't be started, or its status can't be known.
        NvxError: As the store, the images and the plan say; nothing runs and nothing stays.
    """
    from tempfile import mkdtemp  # noqa: PLC0415 - loads much, for this alone

    root = mkdtemp(prefix="nvx-run-")
    try:
        with Store(root, observer=observer).lock_provision(NAME, deadline=deadline) as locked:
            try:
                status = _boot(locked, configuration, report, output)
            finally:
                locked.recover(deadline=Deadline.after(ENDING))
                locked.remove(deadline=Deadline.after(ENDING))
    finally:
        with suppress(OSError):
            os.rmdir(root)
    if status is None:
        raise LaunchFailed("the VMM has ended, and its status isn't known", subject="run", detail="status")
    return status if status >= 0 else _SIGNALLED - status


def _boot(
    locked: LockedStore,
    configuration: SandboxConfiguration,
    report: str | None,
    output: Callable[[Stream, bytes], None],
) -> int | None:
    identity = read_identity(configuration.artifacts)
    with configuration.prepare(locked.path) as prepared:

        def command(endpoint: str) -> supervisor.VmmCommand:
            built = prepared.command(endpoint=endpoint, report=report)
            return supervisor.VmmCommand(built.argv, [supervisor.Inherited(fd) for fd in built.allowed])

        with (
            supervisor.launch(locked, identity, command) as starting,
            open(locked.path_of(names.LOG), "rb", buffering=0) as log,
        ):
            until = Deadline.after(MAX_SECONDS)
            exited = False
            while not exited and until.remaining():
                exited = starting.process.wait(until.sooner(OUTPUT_INTERVAL))
                # Wine's C runtime takes a file for ended once it was read to its end, until somebody seeks.
                log.seek(0, os.SEEK_CUR)
                while data := log.read(_CHUNK):
                    output("stdout", data)
            return starting.process.exit_status()
