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
from nvx_ref.platform import files
from nvx_ref.steps import Step
from nvx_ref.store import CallerFiles, LockedStore, RuntimeIdentity, Store
from nvx_ref.store import names as store_names
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
        identity: RuntimeIdentity = IDENTITY,
    ) -> int:
        """Run an orchestrator of its own process; it crashes once the step has happened."""
        run = subprocess.run(
            [sys.executable, str(CHILD), json.dumps(self.request(step, operation, mode=mode, how=how))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])},
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=100,
        )
        assert identity is IDENTITY
        return run.returncode

    def request(self, step: Step | None, operation: str, *, mode: str, how: str) -> dict[str, object]:
        return {"site": self.root, "operation": operation, "step": step, "mode": mode, "how": how}


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
