"""Processes that wait for a lock through releases, removals and new provisions of the same name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Busy
from nvx_ref.platform import files
from nvx_ref.steps import Step
from nvx_ref.store import removal
from nvx_ref.store.names import LOCK
from sandboxes import NAME, Site, soon, wait_for

HOLDER = """
import sys
from nvx_ref.deadline import Deadline
from nvx_ref.errors import NotFound
from nvx_ref.store import Store
store = Store(sys.argv[1])
for line in sys.stdin:
    if line == "take\\n":
        print("waiting", flush=True)
        locked = store.lock_provision(sys.argv[2], deadline=Deadline.after(60))
        print("held", flush=True)
    elif line == "existing\\n":
        print("waiting", flush=True)
        try:
            locked = store.lock_existing(sys.argv[2], deadline=Deadline.after(60))
            print("held", flush=True)
        except NotFound as error:
            print(error.detail, flush=True)
    elif line == "close\\n":
        locked.close()
        print("closed", flush=True)
"""


class Holder:
    def __init__(self, site: Site) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, site.store.root, NAME],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, word: str, *answers: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(word + "\n")
        self.child.stdin.flush()
        self.hear(*answers)

    def hear(self, *answers: str) -> None:
        assert self.child.stdout is not None
        for answer in answers:
            assert self.child.stdout.readline().strip() == answer

    def end(self) -> None:
        self.child.communicate()


def opened(pid: int, path: Path) -> bool:
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
    return str(path) in links


@pytest.mark.case("T41a")
def test_three_processes_have_one_holder(site: Site) -> None:
    a, b, c = (Holder(site) for _ in range(3))
    try:
        a.say("take", "waiting", "held")
        b.say("take", "waiting")
        wait_for(lambda: opened(b.child.pid, site.path(LOCK)), "B opened the lock file")
        # Stopped, B can't look again before C holds the new file.
        b.child.send_signal(signal.SIGSTOP)
        a.say("close", "closed")
        assert not site.path().exists()
        c.say("take", "waiting", "held")
        b.child.send_signal(signal.SIGCONT)
        wait_for(lambda: opened(b.child.pid, site.path(LOCK)), "B opened the new lock file")
        with pytest.raises(Busy):
            site.store.lock_provision(NAME, deadline=Deadline.after(0.1))
        c.say("close", "closed")
        b.hear("held")
        b.say("close", "closed")
    finally:
        for holder in (a, b, c):
            holder.end()


@contextmanager
def waiter(site: Site) -> Iterator[Holder]:
    """A process that waits for the existing sandbox, and is stopped until the block is over."""
    one = Holder(site)
    try:
        with site.lock():
            one.say("existing", "waiting")
            wait_for(lambda: opened(one.child.pid, site.path(LOCK)), "it opened the lock file")
            one.child.send_signal(signal.SIGSTOP)
        yield one
    finally:
        one.child.send_signal(signal.SIGCONT)
        one.end()


@pytest.mark.case("T41")
@pytest.mark.spec("620.scope6.e")
@pytest.mark.parametrize("then", ["provisioned", "given up", "removed", "taken over"])
def test_a_waiter_of_a_removed_sandbox_never_gets_the_lock_of_a_new_one(provisioned: Site, then: str) -> None:
    """The removal is killed once the configuration is gone. Who waited is told, whatever has happened since."""
    with waiter(provisioned) as one:
        assert provisioned.run_until(Step.REMOVAL_FILE, "remove", how="kill") == -signal.SIGKILL
        assert provisioned.listing() == {LOCK}
        if then == "given up":
            provisioned.store.lock_provision(NAME, deadline=soon()).close()
        elif then == "removed":
            with provisioned.store.lock_removal(NAME, deadline=soon()) as locked:
                locked.recover()
                locked.remove()
        elif then == "taken over":
            with files.open_private(str(provisioned.path())) as directory:
                removal._take_over(directory, provisioned.caller)
            assert provisioned.listing() == set()
        provisioned.provision()
        one.child.send_signal(signal.SIGCONT)
        one.hear("removed")
    assert provisioned.listing() == {"config.json", LOCK}


@pytest.mark.case("T41")
@pytest.mark.spec("620.scope6.f")
def test_a_waiter_of_a_removal_that_was_cut_short_is_told(provisioned: Site) -> None:
    with waiter(provisioned) as one:
        provisioned.run_until(Step.REMOVAL_FILE, "remove", how="kill")
        one.child.send_signal(signal.SIGCONT)
        one.hear("not-provisioned")
    assert provisioned.listing() == set()
