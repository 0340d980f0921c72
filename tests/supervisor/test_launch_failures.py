"""Every way in which a launch can fail before its VMM is recorded, and what it leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from nvx_ref import errors
from nvx_ref.deadline import Deadline
from nvx_ref.platform import spawn
from nvx_ref.steps import Step
from nvx_ref.store import Recovered
from nvx_ref.store.names import JOURNAL, LOCK, LOG
from nvx_ref.supervisor import Exited, Inherited, VmmCommand, launch, reattach, starting
from sandboxes import IDENTITY, Site, raising, soon
from system import SYNC, open_descriptors, refuse_removal

PROVISIONED = {"config.json", LOCK}
FAILED = PROVISIONED | {LOG}


def failed(site: Site, command: Callable[[str], VmmCommand], error: type[BaseException]) -> BaseException:
    before = open_descriptors()
    with site.lock() as locked, pytest.raises(error) as caught:
        launch(locked, IDENTITY, command)
    assert site.listing() == FAILED
    assert open_descriptors() <= before
    with site.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Exited)
        assert (found.record, found.recovery) == (None, None)
    return caught.value


@pytest.mark.spec("656.tests.m")
def test_a_command_that_fails_ends_the_launch(provisioned: Site) -> None:
    def refuse(_: str) -> VmmCommand:
        raise LookupError("no such image")

    failed(provisioned, refuse, LookupError)
    assert Step.START_SPAWNED not in provisioned.steps


@pytest.mark.spec("656.tests.m")
@pytest.mark.parametrize(
    "program", ["/nowhere/openvmm", "no-such-program-anywhere", __file__, os.path.dirname(__file__)]
)
def test_a_program_that_can_not_be_executed_ends_the_launch(provisioned: Site, program: str) -> None:
    failed(provisioned, lambda _: VmmCommand([program]), errors.LaunchFailed)


@pytest.mark.case("T32")
@pytest.mark.spec("656.spawn.e")
@pytest.mark.parametrize("number", [0, 1, 2, -1, 900])
def test_a_descriptor_that_can_not_be_allowed_ends_the_launch(provisioned: Site, number: int) -> None:
    argv = provisioned.command("silent").argv
    error = failed(provisioned, lambda _: VmmCommand(argv, [Inherited(number)]), errors.Refused)
    assert str(number) in str(error)
    assert provisioned.stand_ins() == []


@pytest.mark.spec("656.launch.f")
@pytest.mark.parametrize("kind", [errors.Refused("full"), KeyboardInterrupt(), RuntimeError("observer")])
def test_a_vmm_that_can_not_be_recorded_is_ended_through_its_child(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch, kind: BaseException
) -> None:
    monkeypatch.setattr(starting.ProcessRef, "from_child", raising(kind))
    failed(provisioned, provisioned.serving, type(kind))
    assert provisioned.stand_ins() == []


@pytest.mark.case("T17")
@pytest.mark.spec("656.launch.f")
def test_a_full_disk_after_the_spawn_ends_the_vmm(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def full(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*SYNC, full)
    error = failed(provisioned, provisioned.serving, errors.Refused)
    assert "ENOSPC" in str(error)
    assert provisioned.steps[-1] is Step.START_SPAWNED
    assert provisioned.stand_ins() == []


@pytest.mark.case("T20")
@pytest.mark.spec("656.launch.g")
@pytest.mark.parametrize("outcome", ["pending", "unpinnable"])
def test_a_launch_that_remains_says_so(provisioned: Site, monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    monkeypatch.setattr(starting.ProcessRef, "from_child", raising(errors.Refused("no space")))

    def terminate(_: object, __: Deadline) -> bool:
        if outcome == "unpinnable":
            raise errors.Indeterminate("no hold")
        return False

    monkeypatch.setattr(spawn.Child, "terminate", terminate)
    with provisioned.lock() as locked:
        with pytest.raises(errors.LaunchFailed) as caught:
            launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
        assert caught.value.detail == "launch-remains"
        assert "no space" in str(caught.value)
        assert "may still run" in str(caught.value)
        assert "launch.json was kept" in str(caught.value)
        assert locked.journal() is not None
    assert len(provisioned.stand_ins()) == 1


@pytest.mark.spec("656.launch.g")
@pytest.mark.parametrize("program", ["missing", "refused"])
def test_a_launch_that_can_not_be_cleared_is_told_beside_what_failed(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    def command(_: str) -> VmmCommand:
        if program == "refused":
            raise errors.Refused("not this one")
        return VmmCommand([f"{provisioned.root}/no-such-program"])

    with provisioned.lock() as locked:
        with monkeypatch.context() as patched:
            refuse_removal(patched, [JOURNAL], errno.EIO)
            with pytest.raises(errors.LaunchFailed) as caught:
                launch(locked, IDENTITY, command)
        assert caught.value.detail == "launch-remains"
        assert ("not this one" if program == "refused" else "no-such-program") in str(caught.value)
        assert JOURNAL in caught.value.reason
        assert locked.journal() is not None
        assert locked.recover().kind is Recovered.EXITED


def test_an_interrupt_whose_launch_remains_stays_an_interrupt(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting.ProcessRef, "from_child", raising(KeyboardInterrupt()))
    monkeypatch.setattr(spawn.Child, "terminate", lambda *_: False)
    with provisioned.lock() as locked, pytest.raises(KeyboardInterrupt) as caught:
        launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
    assert any("launch.json was kept" in note for note in caught.value.__notes__)


@pytest.mark.spec("656.launch.f")
def test_an_interrupted_spawn_is_judged_by_the_claim(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = spawn.spawn

    def interrupted(*arguments: object, **options: object) -> object:
        real(*arguments, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(spawn, "spawn", interrupted)
    with provisioned.lock() as locked:
        with pytest.raises(KeyboardInterrupt):
            launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
        assert locked.journal() is not None
    assert len(provisioned.stand_ins()) == 1
