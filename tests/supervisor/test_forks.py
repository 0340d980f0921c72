"""Spawns of other threads: they hold copies of locks and claims until their exec, and disturb neither."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from system import only_linux

only_linux("a new process has no copies of what it doesn't inherit")

from nvx_ref.errors import Indeterminate
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileId
from nvx_ref.store import LockedStore, Recovered, claim
from nvx_ref.supervisor import Exited, launch, reattach
from sandboxes import IDENTITY, NAME, Site, past, soon


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a busy machine keeps a forked child from its exec is not what these tests are about."""
    monkeypatch.setattr(claim, "CLAIM_WAIT", 60.0)


@contextmanager
def storm() -> Iterator[None]:
    """Threads that fork and execute programs as fast as they can."""
    ended = threading.Event()
    faults: list[BaseException] = []

    def spawn() -> None:
        try:
            while not ended.is_set():
                # The slow way of a fork: the child works through the pass_fds before its exec.
                subprocess.run(["/bin/true"], pass_fds=[0], check=True, start_new_session=True)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            faults.append(error)

    threads = [threading.Thread(target=spawn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert faults == []


@pytest.mark.case("T40")
def test_a_released_lock_is_free_at_once(provisioned: Site) -> None:
    with storm():
        for _ in range(200):
            provisioned.store.lock_existing(NAME, deadline=past()).close()


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck")
@pytest.mark.usefixtures("patient")
def test_an_abandoned_launch_is_never_taken_for_a_running_one(provisioned: Site) -> None:
    with storm(), provisioned.lock() as locked:
        for _ in range(40):
            begun = locked.begin_launch(IDENTITY)
            assert begun.abandon(child_exited=False, deadline=soon()).kind is Recovered.EXITED


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck")
@pytest.mark.usefixtures("patient")
def test_an_ended_launch_can_be_followed_by_another(provisioned: Site) -> None:
    with storm(), provisioned.lock() as locked:
        for _ in range(10):
            launch(locked, IDENTITY, lambda _: provisioned.command("silent")).abandon()
            found = reattach(locked, IDENTITY, deadline=soon())
            assert isinstance(found, Exited)
            assert (found.record, found.recovery) == (None, None)


class Copies:
    """A child of this process that is held between its fork and its exec, with a copy of every descriptor."""

    def __init__(self) -> None:
        hold, self._release = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._release)
            os.read(hold, 1)
            os.execv("/bin/true", ["true"])  # noqa: S606 - the exec is what closes the copies
        os.close(hold)

    def release(self) -> None:
        """Let it reach its exec, and see it end."""
        if self._release >= 0:
            os.close(self._release)
            self._release = -1
            os.waitpid(self.pid, 0)


@contextmanager
def copies() -> Iterator[Copies]:
    held = Copies()
    try:
        yield held
    finally:
        held.release()


def abandoned(locked: LockedStore, monkeypatch: pytest.MonkeyPatch, *, looks: int) -> tuple[Recovered, int]:
    """Abandon a launch whose claim a forked child holds, too, until it has been looked at that many times."""
    seen = 0
    begun = locked.begin_launch(IDENTITY)
    real = claim.look
    with copies() as child:

        def look(directory: files.Directory, log: FileId) -> claim.Claim:
            nonlocal seen
            seen += 1
            found = real(directory, log)
            if seen == looks:
                assert found is claim.Claim.HELD
                child.release()
            return found

        monkeypatch.setattr(claim, "look", look)
        return begun.abandon(child_exited=False, deadline=soon()).kind, seen


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck")
@pytest.mark.usefixtures("patient")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("looks", [1, 3])
def test_a_claim_that_a_child_holds_before_its_exec_is_looked_at_again(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    with provisioned.lock() as locked:
        kind, seen = abandoned(locked, monkeypatch, looks=looks)
    assert (kind, seen) == (Recovered.EXITED, looks + 1)


@pytest.mark.spec("656.valid.d")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_without_a_second_look_such_a_child_is_taken_for_a_vmm(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "CLAIM_WAIT", 0.0)
    with provisioned.lock() as locked, pytest.raises(Indeterminate):
        abandoned(locked, monkeypatch, looks=1)
