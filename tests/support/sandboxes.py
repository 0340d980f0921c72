"""Sandboxes for the tests of the store and of the supervisor: real directories, real processes, real crashes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
SOCKETS = {store_names.SOCKET}


def soon() -> Deadline:
    """A deadline that no healthy test reaches."""
    return Deadline.after(60)


def past() -> Deadline:
    return Deadline(0.0)


class Site:
    """A store's root, its sandboxes, and the stand-ins of VMMs in them, which end with the test."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.lifeline = f"{root}/lifeline"
        os.mkfifo(self.lifeline, 0o600)
        self._writer = os.open(self.lifeline, os.O_RDWR | os.O_CLOEXEC)
        self.steps: list[Step] = []
        self.caller = CallerFiles("config.json", ("disk.img",))
        self.store = Store(f"{root}/s", self.caller, observer=self.steps.append)

    def close(self) -> None:
        """End every stand-in: each waits for the end of the lifeline."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def path(self, *parts: str) -> Path:
        return Path(self.store.path(NAME), *parts)

    def listing(self) -> set[str]:
        return set(os.listdir(self.path()))

    def provision(self) -> None:
        with self.store.lock_provision(NAME, deadline=soon()) as locked:
            locked.write_configuration(CONFIGURATION)

    def lock(self) -> LockedStore:
        return self.store.lock_existing(NAME, deadline=soon())

    def command(self, mode: str = "serve", *more: str) -> VmmCommand:
        return VmmCommand([sys.executable, "-I", str(STAND_IN), self.lifeline, mode, *more])

    def start(self, locked: LockedStore, mode: str = "serve") -> Vmm:
        with launch(locked, IDENTITY, lambda _: self.command(mode)) as starting:
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
            [sys.executable, str(CHILD), json.dumps(request)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if quiet else None,
            check=False,
            timeout=100,
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
    # A short path: the endpoint is a socket in it.
    root = tempfile.mkdtemp(prefix="nvx", dir="/tmp")
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
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return files.try_lock(fd)
    finally:
        os.close(fd)


def log_of(site: Site) -> FileId:
    """The log as an object, created where it is missing."""
    fd = os.open(site.path(store_names.LOG), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
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
        endpoint=str(site.path(store_names.SOCKET)),
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
        endpoint=endpoint or str(site.path(store_names.SOCKET)),
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
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        assert files.claim_log(fd)
        yield
    finally:
        os.close(fd)


@contextmanager
def stranger(*, log: Path | None = None) -> Iterator[ProcessIdentity]:
    """A process that nobody launched as a VMM, unless it has a log; it must be alive at the end of the block."""
    errors = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    if errors is not None:
        os.close(errors)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline()
        with process.Pin.open(child.pid) as pin:
            yield pin.identity()
            assert not pin.has_exited(), "a process that nobody verified was ended"
        child.stdin.close()
        child.wait()


def ended() -> ProcessIdentity:
    """The identity of a process that was, and has been reaped."""
    with stranger() as identity:
        return identity


def raising(error: BaseException) -> Callable[..., object]:
    """A function that fails."""

    def fail(*_: object, **__: object) -> object:
        raise error

    return fail
