"""Sandboxes for the tests of the store and of the supervisor: real directories, real processes, real crashes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nvx_ref.deadline import Deadline
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.platform import files, process
from nvx_ref.steps import Step
from nvx_ref.store import (
    CallerFiles,
    FileId,
    Journal,
    LockedStore,
    ProcessIdentity,
    RuntimeIdentity,
    RuntimeRecord,
    Store,
)
from nvx_ref.store import names as store_names
from nvx_ref.store.records import FORMAT, encode
from nvx_ref.supervisor import Starting, Vmm, VmmCommand, launch
from system import PYTHON, SLOWER, Lifeline, environment, short_root

NAME = "alpha"
CONFIGURATION = b'{\n  "format": 1\n}\n'
IDENTITY = RuntimeIdentity(
    "sha256:" + "1" * 64,
    "sha256:" + "2" * 64,
    "sha256:" + "3" * 64,
    "microvm-abi/2",
    "nvx-microvm-v2-control-v2/session-1",
)
SUPPORT = Path(__file__).resolve().parent
STAND_IN = SUPPORT / "vmm_stand_in.py"
CHILD = SUPPORT / "crashing_orchestrator.py"
CRASHED = 91


def soon() -> Deadline:
    """A deadline that no healthy test reaches."""
    return Deadline.after(120)


def past() -> Deadline:
    return Deadline(0.0)


class Site:
    """A store's root, its sandboxes, and the stand-ins of VMMs in them, which end with the test."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.lifeline = f"{root}/lifeline"
        self._held = Lifeline(self.lifeline)
        self.steps: list[Step] = []
        self.caller = CallerFiles("config.json", ("disk.img",))
        self.store = Store(f"{root}/s", self.caller, observer=self.steps.append)
        self.endpoint = endpoints.choose(self.store.path(NAME))

    def close(self) -> None:
        """End every stand-in: each waits for the end of the lifeline."""
        self._held.end()

    def path(self, *parts: str) -> Path:
        return Path(self.store.path(NAME), *parts)

    def listing(self) -> set[str]:
        return set(os.listdir(self.path()))

    def provision(self) -> None:
        with self.store.lock_provision(NAME, deadline=soon()) as locked:
            locked.write_configuration(CONFIGURATION)

    def lock(self) -> LockedStore:
        return self.store.lock_existing(NAME, deadline=soon())

    def command(self, mode: str, *more: str) -> VmmCommand:
        return VmmCommand([PYTHON, "-I", str(STAND_IN), self.lifeline, mode, *more])

    def serving(self, endpoint: str) -> VmmCommand:
        return self.command("serve", endpoint)

    def start(self, locked: LockedStore, mode: str = "serve") -> Vmm:
        with launch(locked, IDENTITY, lambda endpoint: self.command(mode, endpoint)) as starting:
            if mode == "serve":
                wait_until_served(starting)
            return starting.commit()

    def run_until(
        self,
        step: Step | None,
        operation: str = "start",
        *,
        mode: str = "serve",
        how: str = "exit",
        hit: int = 1,
        quiet: bool = False,
    ) -> int:
        """Run an orchestrator of its own process; it crashes once the step has happened."""
        request = {"site": self.root, "operation": operation, "step": step, "mode": mode, "how": how, "hit": hit}
        run = subprocess.run(
            [PYTHON, str(CHILD), json.dumps(request)],
            env=environment(str(SUPPORT), str(SUPPORT.parents[1])),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if quiet else None,
            check=False,
            timeout=100 * SLOWER,
        )
        return run.returncode

    def stand_ins(self) -> list[int]:
        """The stand-ins that run, found by their command line alone, which one in the middle of its exec lacks yet."""
        from harness import witness  # noqa: PLC0415 - not in orchestrators, which import this module too

        host = witness.host()
        wanted = {str(STAND_IN), self.lifeline}
        return [pid for pid in host.processes() if wanted <= set(host.arguments(pid))]


@contextmanager
def site() -> Iterator[Site]:
    root = tempfile.mkdtemp(prefix="nvx", dir=short_root())
    made = Site(root)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(root, ignore_errors=True)


def wait_until_served(starting: Starting) -> None:
    endpoints.connect(starting.endpoint, soon(), alive=lambda: not starting.process.has_exited()).close()


def ask_to_stop(vmm: Vmm, deadline: Deadline) -> None:
    """The graceful step of the stand-in's own protocol."""
    connection = endpoints.connect(vmm.endpoint, deadline, alive=lambda: not vmm.has_exited())
    try:
        connection.send(b"stop\n", deadline)
    finally:
        connection.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait for what no event tells; fails loudly."""
    deadline = soon()
    while not condition():
        assert deadline.pause(), f"never happened: {what}"


def claim_is_free(path: Path) -> bool:
    """Ask by the test's own open file whether nobody claims a log."""
    with files.open_private(str(path.parent)) as directory:
        found = directory.stat(path.name)
        assert found is not None
        return files.claim_is_held(directory, path.name, found.id) is False


def open_log(path: Path) -> int:
    """Open a log that nobody claims by that alone, created where it is missing."""
    with files.open_private(str(path.parent)) as directory:
        return directory.open_log(path.name)


def log_of(site: Site) -> FileId:
    """The log as an object, created where it is missing."""
    fd = open_log(site.path(store_names.LOG))
    try:
        return files.file_id(fd)
    finally:
        os.close(fd)


def write_journal(
    site: Site,
    process: ProcessIdentity | None = None,
    *,
    log: FileId | None = None,
    launch_id: str = "a" * 32,
    boot: str | None = None,
) -> Journal:
    """Leave the journal that a crash would leave; a marker without a boot, as another build may write it."""
    journal = Journal(
        format=FORMAT,
        launch_id=launch_id,
        process=process,
        endpoint=site.endpoint,
        log=log or log_of(site),
        boot=boot,
    )
    _write(site.path(store_names.JOURNAL), encode(journal, "launch.json"))
    return journal


def write_runtime(
    site: Site,
    process: ProcessIdentity,
    *,
    log: FileId | None = None,
    launch_id: str = "b" * 32,
    identity: RuntimeIdentity = IDENTITY,
    endpoint: str | None = None,
) -> RuntimeRecord:
    """Leave the runtime record of a VMM."""
    record = RuntimeRecord(
        format=FORMAT,
        launch_id=launch_id,
        process=process,
        endpoint=endpoint or site.endpoint,
        log=log or log_of(site),
        identity=identity,
    )
    _write(site.path(store_names.RUNTIME), encode(record, "runtime.json"))
    return record


def _write(path: Path, data: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(data)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold the claim on a log, as a VMM would."""
    fd = open_log(path)
    try:
        assert files.claim_log(fd)
        yield
    finally:
        os.close(fd)


@contextmanager
def stranger(*, log: Path | None = None) -> Iterator[ProcessIdentity]:
    """A process that nobody launched as a VMM; it must be alive at the end of the block.

    With a log it is one, to everybody who looks: it has the log as its error output, and so the claim.
    """
    errors = None
    if log is not None:
        errors = open_log(log)
        assert files.claim_log(errors)
    child = subprocess.Popen(
        [PYTHON, "-I", "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    if errors is not None:
        os.close(errors)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline()
        with process.Pin.open(child.pid) as pin:
            yield pin.identity()
            assert not pin.has_exited(), "a process that nobody verified was ended"
    finally:
        child.communicate()


def ended() -> ProcessIdentity:
    """The identity of a process that was, and has been reaped."""
    with stranger() as identity:
        return identity


def raising(error: BaseException) -> Callable[..., object]:
    """A function that fails."""

    def fail(*_: object, **__: object) -> object:
        raise error

    return fail
