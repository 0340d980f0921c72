"""An orchestrator that dies at each step of an operation, and the next one, which finds what it left."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from nvx_ref.errors import NotFound
from nvx_ref.steps import Step
from nvx_ref.store import Recovered
from nvx_ref.store.names import CAPABILITY, JOURNAL, LOCK, LOG, RUNTIME
from nvx_ref.supervisor import Exited, Graceful, Indeterminate, Live, Verdict, inspect, peer_probe, reattach
from sandboxes import CRASHED, IDENTITY, NAME, Site, ask_to_stop, soon, wait_for
from system import KILLED, SOCKETS, WAYS

PROVISIONED = {"config.json", LOCK}
BEGUN = PROVISIONED | {CAPABILITY, LOG, JOURNAL}
SERVED = BEGUN | SOCKETS
RUNNING = PROVISIONED | {CAPABILITY, LOG, RUNTIME} | SOCKETS


def nothing(found: Verdict) -> bool:
    return isinstance(found, Exited) and found.record is None and found.recovery is None


def recovered(kind: Recovered) -> Callable[[Verdict], bool]:
    def check(found: Verdict) -> bool:
        return isinstance(found, Exited) and found.recovery is not None and found.recovery.kind is kind

    return check


def live(found: Verdict) -> bool:
    return isinstance(found, Live)


START: dict[Step, tuple[set[str], int, Callable[[Verdict], bool]]] = {
    Step.START_STALE_REMOVED: (PROVISIONED, 0, nothing),
    Step.START_CAPABILITY_WRITTEN: (PROVISIONED | {CAPABILITY}, 0, nothing),
    Step.START_LOG_CREATED: (PROVISIONED | {CAPABILITY, LOG}, 0, nothing),
    Step.START_LOG_CLAIMED: (PROVISIONED | {CAPABILITY, LOG}, 0, nothing),
    Step.START_MARKER_WRITTEN: (BEGUN, 0, recovered(Recovered.EXITED)),
    Step.START_SPAWNED: (BEGUN, 1, recovered(Recovered.TERMINATED)),
    Step.START_IDENTITY_RECORDED: (BEGUN, 1, recovered(Recovered.TERMINATED)),
    Step.START_ENDPOINT_UP: (SERVED, 1, recovered(Recovered.TERMINATED)),
    Step.START_RUNTIME_WRITTEN: (RUNNING | {JOURNAL}, 1, live),
    Step.START_JOURNAL_REMOVED: (RUNNING, 1, live),
}


def finish(site: Site) -> None:
    """Whatever was found: the sandbox can be started, stopped and removed."""
    with site.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        vmm = found.vmm if isinstance(found, Live) else site.start(locked)
        with vmm:
            assert len(site.stand_ins()) == 1
            assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
        assert site.listing() - {"disk.img"} == PROVISIONED | {LOG}
    with site.store.lock_removal(NAME, deadline=soon()) as locked:
        assert nothing(reattach(locked, IDENTITY, deadline=soon()))
        locked.remove()
    assert not site.path().exists()
    wait_for(lambda: site.stand_ins() == [], "every stand-in ended")


def look(site: Site) -> Verdict:
    found = inspect(site.store, NAME, IDENTITY)
    if isinstance(found, Live):
        found.vmm.close()
    return found


def settled(site: Site) -> Verdict:
    """Reattach until the answer is known: a stand-in may need longer to serve than one recovery looks."""
    with site.lock() as locked:
        while isinstance(found := reattach(locked, IDENTITY, peer_probe, deadline=soon()), Indeterminate):
            assert found.detail == "claim-held"
        return found


@pytest.mark.spec("620.acc.3")
@pytest.mark.spec("620.today.1")
@pytest.mark.spec("656.launch.i")
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("step", START)
def test_a_crash_in_a_start_leaves_a_known_state(provisioned: Site, step: Step, how: str) -> None:
    listing, running, verdict = START[step]
    assert provisioned.run_until(step, how=how) == (CRASHED if how == "exit" else KILLED)
    # A VMM that was spawned may have bound its socket by now, or not yet.
    assert provisioned.listing() - SOCKETS == listing - SOCKETS
    assert len(provisioned.stand_ins()) == running
    looked = inspect(provisioned.store, NAME, IDENTITY)
    assert isinstance(looked, Indeterminate) == (step in list(START)[5:8])
    found = settled(provisioned)
    assert verdict(found), found
    if not isinstance(found, Live):
        wait_for(lambda: provisioned.stand_ins() == [], "the interrupted VMM ended")
    for vmm in [one.vmm for one in (looked, found) if isinstance(one, Live)]:
        vmm.close()
    finish(provisioned)


@pytest.mark.case("T13")
@pytest.mark.spec("656.tests.b")
@pytest.mark.spec("620.scope3.p")
def test_an_unrecorded_vmm_without_an_endpoint_is_never_signalled(provisioned: Site) -> None:
    provisioned.run_until(Step.START_SPAWNED, mode="silent", how="kill")
    with provisioned.lock() as locked:
        for _ in range(2):
            found = reattach(locked, IDENTITY, peer_probe, deadline=soon())
            assert isinstance(found, Indeterminate)
            assert found.detail == "claim-held"
        assert locked.journal() is not None
    assert len(provisioned.stand_ins()) == 1
    assert "signal" not in provisioned.path(LOG).read_text()
    provisioned.close()
    wait_for(lambda: provisioned.stand_ins() == [], "the VMM ended by itself")
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, peer_probe, deadline=soon())
        assert recovered(Recovered.EXITED)(found)
    assert provisioned.listing() == PROVISIONED | {LOG}


@pytest.mark.spec("620.acc.5")
@pytest.mark.spec("656.tests.e")
@pytest.mark.spec("620.scope3.k")
def test_a_committed_vmm_outlives_its_orchestrator(provisioned: Site) -> None:
    assert provisioned.run_until(None) == 0
    assert len(provisioned.stand_ins()) == 1
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            assert not vmm.has_exited()
            assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
            assert vmm.has_exited()
        assert locked.runtime() is None
    assert provisioned.listing() == PROVISIONED | {LOG}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("step", "listing"),
    [
        (Step.STOP_REQUESTED, None),
        (Step.STOP_EXITED, RUNNING),
        (Step.STOP_RECORD_CLEARED, PROVISIONED | {LOG}),
    ],
)
def test_a_crash_in_a_stop_leaves_a_known_state(
    provisioned: Site, step: Step, listing: set[str] | None, how: str
) -> None:
    provisioned.run_until(None)
    provisioned.run_until(step, "stop", how=how)
    assert listing is None or provisioned.listing() == listing
    wait_for(lambda: isinstance(look(provisioned), Exited), "the VMM stopped")
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Exited)
        assert (found.record is None) == (step is Step.STOP_RECORD_CLEARED)
    finish(provisioned)


REMOVAL = [
    (Step.REMOVAL_CHECKED, 1),
    *((Step.REMOVAL_FILE, hit) for hit in range(1, 5)),
    (Step.REMOVAL_LOCK_UNLINKED, 1),
    (Step.REMOVAL_DIRECTORY, 1),
]


@pytest.mark.case("T19")
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("step", "hit"), REMOVAL)
def test_a_crash_in_a_removal_can_be_repeated(provisioned: Site, step: Step, hit: int, how: str) -> None:
    for name in (LOG, "disk.img", ".tmpAb3dE6"):
        provisioned.path(name).touch(0o600)
    assert provisioned.run_until(step, "remove", hit=hit, how=how) == (CRASHED if how == "exit" else KILLED)
    if step is Step.REMOVAL_DIRECTORY:
        with pytest.raises(NotFound):
            provisioned.store.lock_removal(NAME, deadline=soon())
    else:
        assert os.path.isdir(provisioned.path())
        assert provisioned.run_until(None, "remove") == 0
    assert not provisioned.path().exists()


@pytest.mark.case("T19")
@pytest.mark.parametrize(("step", "hit"), REMOVAL)
def test_a_provision_after_an_interrupted_removal_is_whole(provisioned: Site, step: Step, hit: int) -> None:
    for name in (LOG, "disk.img", ".tmpAb3dE6"):
        provisioned.path(name).touch(0o600)
    provisioned.run_until(step, "remove", hit=hit)
    assert provisioned.run_until(None, "provision") == 0
    finish(provisioned)


@pytest.mark.parametrize("how", WAYS)
def test_a_crash_in_a_provision_leaves_no_sandbox(site: Site, how: str) -> None:
    site.run_until(Step.PROVISION_LOCKED, "provision", how=how)
    assert site.listing() == {LOCK}
    with pytest.raises(NotFound):
        site.lock()
    site.provision()
    finish(site)
