"""Processes that wait for a lock through releases, removals and new provisions of the same name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Busy, TimedOut
from nvx_ref.platform import files
from nvx_ref.steps import Step
from nvx_ref.store import removal
from nvx_ref.store.names import LOCK
from sandboxes import NAME, SUPPORT, Site, soon
from system import KILLED, PYTHON, environment, freeze, thaw

HOLDER = """
import sys
from nvx_ref.deadline import Deadline
from nvx_ref.errors import NotFound
from nvx_ref.platform import files
from nvx_ref.store import Store

store = Store(sys.argv[1])
try_lock = files.try_lock
waits_for = []

def told(fd):
    # Once for each lock file that is found held: whoever reads it knows that this process has that file open.
    taken = try_lock(fd)
    if not taken and files.file_id(fd) not in waits_for:
        waits_for.append(files.file_id(fd))
        print("waits", flush=True)
    return taken

files.try_lock = told
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
            [PYTHON, "-c", HOLDER, site.store.root, NAME],
            env=environment(str(SUPPORT.parents[1])),
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


@pytest.mark.case("T41a")
@pytest.mark.spec("620.acc.13")
def test_three_processes_have_one_holder(site: Site) -> None:
    a, b, c = (Holder(site) for _ in range(3))
    try:
        a.say("take", "waiting", "held")
        b.say("take", "waiting", "waits")
        # Stopped, B can't look again before C holds the new file.
        freeze(b.child)
        a.say("close", "closed")
        assert not site.path(LOCK).exists()
        c.say("take", "waiting", "held")
        thaw(b.child)
        # For another file than before: it has looked at what it got.
        b.hear("waits")
        with pytest.raises(Busy):
            site.store.lock_provision(NAME, deadline=Deadline.after(0.1))
        c.say("close", "closed")
        b.hear("held")
        b.say("close", "closed")
    finally:
        thaw(b.child)
        for holder in (a, b, c):
            holder.end()


@contextmanager
def waiter(site: Site) -> Iterator[Holder]:
    """A process that waits for the existing sandbox, and is stopped until the block is over."""
    one = Holder(site)
    try:
        with site.lock():
            one.say("existing", "waiting", "waits")
            freeze(one.child)
        yield one
    finally:
        thaw(one.child)
        one.end()


@pytest.mark.case("T41")
@pytest.mark.spec("620.scope6.e")
@pytest.mark.parametrize("then", ["provisioned", "given up", "removed", "taken over"])
def test_a_waiter_of_a_removed_sandbox_never_gets_the_lock_of_a_new_one(provisioned: Site, then: str) -> None:
    """The removal is killed once the configuration is gone. Who waited is told, whatever has happened since."""
    with waiter(provisioned) as one:
        assert provisioned.run_until(Step.REMOVAL_FILE, "remove", how="kill") == KILLED
        assert provisioned.listing() == {LOCK}
        if then == "given up":
            provisioned.store.lock_provision(NAME, deadline=soon()).close()
        elif then == "removed":
            with provisioned.store.lock_removal(NAME, deadline=Deadline.after(1)) as locked:
                locked.recover()
                # Where a removed file keeps a name until it is closed, the directory waits for the waiter.
                with suppress(TimedOut):
                    locked.remove()
        elif then == "taken over":
            with files.open_private(str(provisioned.path())) as directory:
                removal._take_over(directory, provisioned.caller)
            assert LOCK not in provisioned.listing()
        provisioned.provision()
        thaw(one.child)
        one.hear("removed")
    assert provisioned.listing() == {"config.json", LOCK}


@pytest.mark.case("T41")
@pytest.mark.spec("620.scope6.f")
def test_a_waiter_of_a_removal_that_was_cut_short_is_told(provisioned: Site) -> None:
    with waiter(provisioned) as one:
        provisioned.run_until(Step.REMOVAL_FILE, "remove", how="kill")
        thaw(one.child)
        one.hear("not-provisioned")
    assert provisioned.listing() == set()
