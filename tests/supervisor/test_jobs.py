"""An orchestrator in a job that ends whatever is in it: a VMM outlives it only by leaving the job, on request."""

from __future__ import annotations

import subprocess

import pytest

import wine

wine.only_windows()

from nvx_ref.store.names import LOCK, LOG
from nvx_ref.supervisor import Exited, Graceful, Live, reattach
from sandboxes import IDENTITY, SUPPORT, Site, ask_to_stop, soon, wait_for
from system import PYTHON, environment

ORCHESTRATOR = """
import os, sys
import jobs
from nvx_ref.errors import Refused
from nvx_ref.store import CallerFiles, Store
from nvx_ref.supervisor import VmmCommand, launch
from sandboxes import IDENTITY, NAME, STAND_IN, soon, wait_until_served

root, lifeline, allowed, asked = sys.argv[1:]
job = jobs.Job(breakaway=allowed == "allowed")
job.add(os.getpid())
words = [sys.executable, "-I", str(STAND_IN), lifeline, "serve"]
store = Store(root, CallerFiles("config.json", ("disk.img",)))
with store.lock_existing(NAME, deadline=soon()) as locked:
    try:
        begun = launch(locked, IDENTITY, lambda place: VmmCommand([*words, place], breakaway=asked == "leave"))
    except Refused as error:
        print(error.detail, flush=True)
        os._exit(0)
    with begun:
        wait_until_served(begun)
        begun.commit()
print("up", flush=True)
# With this process its job ends.
os._exit(0)
"""


def run(site: Site, allowed: str, asked: str) -> str:
    done = subprocess.run(
        [PYTHON, "-c", ORCHESTRATOR, site.store.root, site.lifeline, allowed, asked],
        env=environment(str(SUPPORT), str(SUPPORT.parents[1])),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.case("T35")
@pytest.mark.spec("656.spawn.i", "656.tests.h")
def test_a_vmm_that_leaves_its_orchestrators_job_is_live_afterwards(provisioned: Site) -> None:
    assert run(provisioned, "allowed", "leave") == "up"
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)


@pytest.mark.case("T35")
@pytest.mark.spec("656.spawn.i", "656.tests.h")
@pytest.mark.parametrize("allowed", ["allowed", "forbidden"])
def test_a_vmm_that_stays_in_it_ends_with_it_and_is_exited(provisioned: Site, allowed: str) -> None:
    assert run(provisioned, allowed, "stay") == "up"
    wait_for(lambda: provisioned.stand_ins() == [], "the job ended the VMM")
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Exited)
        assert found.record is not None


@pytest.mark.case("T35")
@pytest.mark.spec("656.spawn.i")
def test_a_job_that_nothing_may_leave_refuses_such_a_launch_before_anything_runs(provisioned: Site) -> None:
    assert run(provisioned, "forbidden", "leave") == "breakaway"
    assert provisioned.stand_ins() == []
    assert provisioned.listing() == {"config.json", LOCK, LOG}
