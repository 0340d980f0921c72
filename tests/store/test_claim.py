"""The claim that a launch takes: who has it for a moment is waited for, who keeps it isn't."""

from __future__ import annotations

import pytest

from nvx_ref.platform import files
from nvx_ref.store import claim
from nvx_ref.store.names import LOG
from sandboxes import IDENTITY, Site


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck")
def test_a_claim_that_is_taken_for_a_moment_after_the_first_look_stops_no_launch(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's child may be before its exec in that very instant."""
    monkeypatch.setattr(claim, "CLAIM_WAIT", 30)
    real, tries = files.claim_log, [False, False]
    monkeypatch.setattr(files, "claim_log", lambda fd: tries.pop() if tries else real(fd))
    provisioned.path(LOG).write_text("of an earlier launch")
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        assert tries == []
        assert provisioned.path(LOG).read_text() == ""
        launch.abandon(child_exited=True)
