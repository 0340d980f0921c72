"""A VMM whose first thread has ended while others live: its process looks like a zombie, and it runs (T22)."""

from __future__ import annotations

from pathlib import Path

import pytest

from system import only_linux

only_linux("a process there has no first thread that could end before it")

from nvx_ref.platform.linux import pidfd
from nvx_ref.steps import Step
from nvx_ref.store import Recovered
from nvx_ref.store.names import JOURNAL, LOG, RUNTIME
from nvx_ref.supervisor import Exited, Forced, Graceful, Indeterminate, Live, inspect, peer_probe, reattach
from sandboxes import IDENTITY, NAME, Site, ask_to_stop, soon, wait_for

pytestmark = [pytest.mark.case("T22"), pytest.mark.usefixtures("brief")]


def started(site: Site, *, committed: bool = True) -> None:
    """Have an orchestrator that ends launch such a VMM."""
    site.run_until(None if committed else Step.START_IDENTITY_RECORDED, mode="leaderless")
    wait_for(lambda: "ready" in site.path(LOG).read_text(), "it serves")
    with site.store.peek(NAME) as reader:
        record = reader.runtime() or reader.journal()
    assert record is not None
    assert record.process is not None
    pid = record.process.pid
    # What a naive reader would go by: a zombie, without program and arguments.
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z", "its leader ended")
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b""


def test_it_is_live_and_is_asked_to_stop(provisioned: Site) -> None:
    started(provisioned)
    with provisioned.lock() as locked:
        looked = inspect(provisioned.store, NAME, IDENTITY)
        assert isinstance(looked, Live)
        looked.vmm.close()
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
    assert RUNTIME not in provisioned.listing()


def test_it_is_ended_by_force_as_a_whole(provisioned: Site) -> None:
    started(provisioned)
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            assert isinstance(vmm.stop(None, soon().sooner(0.05), 30), Forced)
    assert RUNTIME not in provisioned.listing()


def test_an_interrupted_launch_of_it_is_ended(provisioned: Site) -> None:
    started(provisioned, committed=False)
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, peer_probe, deadline=soon())
    assert isinstance(found, Exited)
    assert found.recovery is not None
    assert found.recovery.kind is Recovered.TERMINATED


def test_without_a_unique_number_nobody_can_tell_and_everything_is_kept(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptors can't be seen, so the log that it holds is no witness for it, and none against it."""
    monkeypatch.setitem(pidfd._probed, "unique", False)
    started(provisioned, committed=False)
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Indeterminate)
        # To other users than root such a leader's table is denied, not empty.
        assert found.detail in {"no-witness", "denied"}
    assert JOURNAL in provisioned.listing()
    provisioned.close()
    wait_for(lambda: isinstance(inspect(provisioned.store, NAME, IDENTITY), Exited), "it ended")
