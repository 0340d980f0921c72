"""What is the caller's: whether a sandbox may start, and who speaks to its guest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvx_ref.configuration import SandboxConfiguration, SandboxRequest, configure
from nvx_ref.deadline import Deadline
from nvx_ref.errors import Refused
from nvx_ref.orchestrator import Orchestrator
from nvx_ref.steps import Step


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "state"
    made.mkdir(mode=0o700)
    return made


@pytest.mark.spec("622.goal.2", "620.goal.2")
def test_a_caller_that_says_no_is_asked_last_and_nothing_is_launched(root: Path, request_: SandboxRequest) -> None:
    asked: list[SandboxConfiguration] = []
    steps: list[Step] = []

    def authorise(configuration: SandboxConfiguration) -> None:
        asked.append(configuration)
        raise Refused("the owner is on leave", subject="policy", detail="leave")

    orchestrator = Orchestrator(str(root), observer=steps.append, authorise=authorise)
    configuration = configure(request_)
    orchestrator.provision("box", configuration, deadline=Deadline.after(60))
    assert asked == []
    with pytest.raises(Refused) as caught:
        orchestrator.start("box", deadline=Deadline.after(60))
    assert caught.value.detail == "leave"
    assert asked == [configuration]
    assert steps[-1] is Step.START_INPUTS_CHECKED
    assert {path.name for path in (root / "box").iterdir()} == {"config.json", "lifecycle.lock"}
