"""Spawns of other threads: they hold copies of locks and claims until their exec, and disturb neither."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvx_ref.errors import Indeterminate
from nvx_ref.store import Recovered, claim
from nvx_ref.supervisor import Exited, launch, reattach
from sandboxes import IDENTITY, NAME, Site, past, soon


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
def test_an_abandoned_launch_is_never_taken_for_a_running_one(provisioned: Site) -> None:
    with storm(), provisioned.lock() as locked:
        for _ in range(40):
            begun = locked.begin_launch(IDENTITY)
            assert begun.abandon(child_exited=False, deadline=soon()).kind is Recovered.EXITED


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck")
def test_an_ended_launch_can_be_followed_by_another(provisioned: Site) -> None:
    with storm(), provisioned.lock() as locked:
        for _ in range(10):
            launch(locked, IDENTITY, lambda _: provisioned.command("silent")).abandon()
            found = reattach(locked, IDENTITY, deadline=soon())
            assert isinstance(found, Exited)
            assert (found.record, found.recovery) == (None, None)


@pytest.mark.spec("656.valid.d")
def test_without_a_second_look_the_storm_is_taken_for_a_vmm(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "CLAIM_WAIT", 1e-9)
    mistaken = 0
    with storm(), provisioned.lock() as locked:
        for _ in range(3000):
            try:
                locked.begin_launch(IDENTITY).abandon(child_exited=False, deadline=soon())
            except Indeterminate:
                mistaken += 1
                break
    assert mistaken, "the storm held no claim: the tests above show nothing"
