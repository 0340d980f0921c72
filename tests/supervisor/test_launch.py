"""A launch from its marker to a committed VMM, and every way in which it can fail."""

from __future__ import annotations

import pytest

from nvx_ref.steps import Step
from nvx_ref.supervisor import Graceful, Live, reattach
from sandboxes import IDENTITY, Site, ask_to_stop, soon


@pytest.mark.spec("656.launch.a")
def test_a_launch_passes_its_steps_in_order(provisioned: Site) -> None:
    with provisioned.lock() as locked, provisioned.start(locked) as vmm:
        assert provisioned.steps == [
            Step.START_STALE_REMOVED,
            Step.START_CAPABILITY_WRITTEN,
            Step.START_LOG_CREATED,
            Step.START_LOG_CLAIMED,
            Step.START_MARKER_WRITTEN,
            Step.START_SPAWNED,
            Step.START_IDENTITY_RECORDED,
            Step.START_RUNTIME_WRITTEN,
            Step.START_JOURNAL_REMOVED,
        ]
        assert provisioned.listing() == {
            "config.json",
            "lifecycle.lock",
            "runtime.json",
            "control.capability",
            "control.sock",
            "openvmm.log",
        }
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        provisioned.steps.clear()
        assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
        assert provisioned.steps == [Step.STOP_REQUESTED, Step.STOP_EXITED, Step.STOP_RECORD_CLEARED]
        found.vmm.close()
    assert provisioned.listing() == {"config.json", "lifecycle.lock", "openvmm.log"}
    with provisioned.store.lock_removal("alpha", deadline=soon()) as locked:
        locked.recover()
        locked.remove()
    assert not provisioned.path().exists()
