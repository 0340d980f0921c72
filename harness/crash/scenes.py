"""The scenes: each operation of an orchestrator, with what was before it, so that a sweep passes every step there is.

What a scene needs beforehand is made by the orchestrator itself where it takes a VMM, and put there as files where a
stopped VMM would only have left files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.crash.stage import Stage
    from harness.sut.protocol import Args

STAGING = ".tmpAbC123"
"""A report that a VMM had prepared when it was killed."""

INTERRUPTED = (".launch.json.00112233445566778899aabbccddeeff.tmp", ".config.json.ffeeddccbbaa99887766554433221100.tmp")
"""Records that an orchestrator had prepared when it was killed."""

SPAWNED = ("start.spawned", 1)
IDENTIFIED = ("start.identity_recorded", 1)
COMMITTED = ("start.runtime_written", 1)
FORCED: Args = {"forceWithin": 20.0, "timeout": 2.0}
"""A stop that is by force where the guest can't be asked. Where that isn't known, it waits for its deadline first."""

BOUND = "after_bind"


@dataclass(frozen=True, slots=True)
class Scene:
    """One operation and what was before it.

    Attributes:
        name: What cells call it.
        op: The operation that crashes.
        prepare: Makes what was before.
        args: What the operation takes besides the sandbox's name.
        again: The operation that is asked for after the crash in a pair of crashes.
        hold: Where the operation's own VMM is held, so that nothing depends on how fast it is; empty: nowhere.
        release: The step at whose announcement it is let go; empty: as soon as the orchestrator may connect.
        knobs: How the operation's own VMM behaves.
        refused: The code with which the operation ends when nothing crashes; empty: it succeeds.
        like: The scene of the same operation whose steps a quick sweep doesn't repeat here; empty: none.
    """

    name: str
    op: str
    prepare: Callable[[Stage], None]
    args: Callable[[Stage], Args] = field(default=lambda _: {})
    again: str = ""
    hold: str = ""
    release: str = ""
    knobs: dict[str, object] = field(default_factory=dict[str, object])
    refused: str = ""
    like: str = ""


def _nothing(_stage: Stage) -> None:
    return


def _request(stage: Stage) -> Args:
    return {name: value for name, value in stage.box.request().items() if name not in stage.box.named()}


def _by_force(_stage: Stage) -> Args:
    return FORCED


def _provisioned(stage: Stage) -> None:
    stage.box.provision(stage.program)


def _stopped(stage: Stage) -> None:
    """A sandbox that ran once, and whose VMM was killed while it published a second report."""
    _provisioned(stage)
    for name in ("openvmm.log", "outcome.json", STAGING):
        _leave(stage, name)


def _littered(stage: Stage) -> None:
    """Everything that a removal may find."""
    _stopped(stage)
    for name in ("console.log", "control.capability", "control.sock", *INTERRUPTED):
        _leave(stage, name)


def _leave(stage: Stage, name: str) -> None:
    if not stage.keeps_store:
        # To an orchestrator with other files of its own it would be a stranger's.
        return
    descriptor = os.open(stage.box.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("left by an earlier run\n")


def _running(stage: Stage) -> None:
    _provisioned(stage)
    stage.box.succeed(stage.program, "start")


def _unreachable(stage: Stage) -> None:
    """A VM to which nobody can speak, so that only force ends it."""
    _running(stage)
    os.unlink(stage.box.path("control.capability"))


def _interrupted(at: tuple[str, int]) -> Callable[[Stage], None]:
    def prepare(stage: Stage) -> None:
        _provisioned(stage)
        if at == COMMITTED:
            stage.program.crash("start", stage.box.named(), at, "exit", stage.world.soon())
        else:
            stage.world.vmm.configure(pauses=[BOUND])
            stage.program.crash("start", stage.box.named(), at, "exit", stage.world.soon())
            stage.world.channel.wait_paused(BOUND, stage.world.soon())
        stage.replace_program()

    return prepare


def _ended(stage: Stage) -> None:
    """A VMM that ended by itself while no orchestrator looked."""
    _running(stage)
    vmm = stage.world.processes.one(f"{stage.where}: before")
    vmm.pin.end()
    stage.world.processes.none(f"{stage.where}: before", stage.world.soon())


SCENES = {
    scene.name: scene
    for scene in (
        Scene("provision", "provision", _nothing, _request, again="provision"),
        Scene("start", "start", _stopped, again="start", hold=BOUND),
        Scene(
            "refused-start",
            "start",
            _provisioned,
            again="start",
            hold="guest_boot",
            release="start.endpoint_up",
            knobs={"guest_exit_at": {"guest_boot": 125}},
            refused="LaunchFailed",
            like="start",
        ),
        Scene("stop", "stop", _running, again="stop"),
        Scene("forced-stop", "stop", _unreachable, _by_force, again="stop", like="stop"),
        Scene("recover", "reattach", _interrupted(IDENTIFIED), again="reattach"),
        Scene("recover-served", "reattach", _interrupted(SPAWNED), again="reattach"),
        Scene("recover-committed", "reattach", _interrupted(COMMITTED), again="reattach"),
        Scene("recover-ended", "reattach", _ended, again="reattach"),
        Scene("deprovision", "deprovision", _littered, again="deprovision"),
    )
}


def scene(name: str) -> Scene:
    """Return a scene by name.

    Raises:
        HarnessError: There is none.
    """
    if name not in SCENES:
        raise HarnessError(f"no scene is called {name!r}: there are {', '.join(SCENES)}")
    return SCENES[name]
