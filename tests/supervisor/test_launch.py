"""A launch from its marker to a committed VMM, and every way in which it can fail."""

from __future__ import annotations

import base64
import errno
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from harness import witness
from nvx_ref import errors
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.process import ProcessRef
from nvx_ref.steps import Step
from nvx_ref.store import Claim, Recovered, RuntimeIdentity
from nvx_ref.store.names import CAPABILITY, JOURNAL, LOCK, LOG, RUNTIME
from nvx_ref.supervisor import Exited, Graceful, Inherited, Live, Starting, VmmCommand, launch, reattach
from sandboxes import IDENTITY, NAME, Site, ask_to_stop, past, raising, soon, wait_for, wait_until_served
from system import PYTHON, SLOWER, SOCKETS, SYNC, forks, unix

PROVISIONED = {"config.json", LOCK}
FAILED = PROVISIONED | {LOG}


@pytest.mark.spec("656.launch.a")
@pytest.mark.spec("656.launch.d")
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
        assert provisioned.listing() == PROVISIONED | {RUNTIME, CAPABILITY, LOG} | SOCKETS
        assert vmm.record == locked.runtime()
        assert vmm.record.process == vmm.process.identity
        assert (vmm.endpoint == provisioned.endpoint) is bool(SOCKETS)
        assert locked.look_at_claim(vmm.record.log) is Claim.HELD
        provisioned.steps.clear()
        assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
        assert provisioned.steps == [Step.STOP_REQUESTED, Step.STOP_EXITED, Step.STOP_RECORD_CLEARED]
        assert vmm.exit_status() == 0
    assert provisioned.listing() == FAILED


@pytest.mark.spec("620.scope3.b")
@pytest.mark.spec("656.spawn.a")
@pytest.mark.spec("656.spawn.b")
@pytest.mark.spec("656.spawn.c")
@unix("a VMM there inherits handles: tests/platform/windows/test_spawn.py")
def test_a_vmm_inherits_its_streams_and_what_is_allowed(provisioned: Site) -> None:
    image = os.open(provisioned.path("config.json"), os.O_RDONLY | os.O_CLOEXEC)
    unrelated = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        inherited = Inherited(image)
        assert inherited.proc_path() == f"/proc/self/fd/{image}"
        command = provisioned.command("descriptors")
        with (
            provisioned.lock() as locked,
            launch(locked, IDENTITY, lambda _: VmmCommand(command.argv, [inherited, inherited])),
        ):
            log = provisioned.path(LOG)
            wait_for(lambda: "ready" in log.read_text(), "the VMM looked at its descriptors")
            lines = log.read_text().splitlines()
    finally:
        os.close(image)
        os.close(unrelated)
    assert lines[0] == "capability 32 bytes"
    found = {line.split()[1]: line.split()[2] for line in lines if line.startswith("descriptor")}
    lifeline = next(number for number, path in found.items() if path == provisioned.lifeline)
    del found[lifeline]
    assert found.pop("0").startswith("pipe:")
    assert found == {"1": str(log), "2": str(log), str(image): str(provisioned.path("config.json"))}


def test_a_vmm_works_in_its_sandbox_and_is_told_its_endpoint(provisioned: Site) -> None:
    told: list[str] = []

    def command(endpoint: str) -> VmmCommand:
        told.append(endpoint)
        assert provisioned.listing() == PROVISIONED | {CAPABILITY, LOG, JOURNAL}
        return VmmCommand([PYTHON, "-I", "-c", "import os; print(os.getcwd())"])

    with provisioned.lock() as locked, launch(locked, IDENTITY, command) as begun:
        assert begun.process.wait(soon())
        assert os.path.samefile(provisioned.path(LOG).read_text().strip(), provisioned.path())
        assert told == [begun.endpoint]


@pytest.mark.spec("656.launch.b")
def test_a_launch_needs_the_lock(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        pass
    with pytest.raises(errors.Refused) as caught:
        launch(locked, IDENTITY, lambda _: pytest.fail("asked"))
    assert caught.value.detail == "unlocked"


@pytest.mark.spec("656.launch.e")
def test_a_launch_that_is_left_without_a_commit_is_abandoned(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        with launch(locked, IDENTITY, lambda _: provisioned.command("report")) as begun:
            wait_for(lambda: "ready" in provisioned.path(LOG).read_text(), "the VMM reported")
        assert provisioned.stand_ins() == []
        with pytest.raises(errors.Refused):
            begun.abandon()
        with pytest.raises(errors.NvxError):
            begun.commit()
        assert locked.read_outcome() == b"{}\n"
    # Its log and its report stay, what it staged and never published doesn't (620.scope6.m).
    assert provisioned.listing() == FAILED | {"outcome.json"}


@contextmanager
def stubborn(begun: Starting, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(type(begun.process), "terminate", lambda _: None)
        yield


@pytest.mark.case("T20")
def test_an_abandoned_vmm_that_does_not_exit_is_named_with_what_was_kept(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with provisioned.lock() as locked:
        begun = launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
        with stubborn(begun, monkeypatch), pytest.raises(errors.Indeterminate) as caught:
            begun.abandon(deadline=past())
        assert caught.value.detail == "exit-pending"
        assert f"process {begun.process.identity.pid}" in str(caught.value)
        assert "may still run" in str(caught.value)
        assert "launch.json was kept" in str(caught.value)
        assert locked.journal() is not None
        begun.abandon()
    assert provisioned.listing() == FAILED


def test_a_failed_abandon_is_not_repeated_on_the_way_out(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with provisioned.lock() as locked:
        begun = launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
        with pytest.raises(errors.Indeterminate), begun, stubborn(begun, monkeypatch):
            begun.abandon(deadline=past())
        assert not begun.process.has_exited()
        assert locked.journal() is not None
        begun.abandon()


def drop(held: list[Starting]) -> None:
    held.clear()
    gc.collect()


@pytest.mark.spec("656.launch.h")
def test_a_dropped_launch_is_abandoned_with_a_warning(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        begun = launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
        pid = begun.process.identity.pid
        held = [begun]
        del begun
        with pytest.warns(ResourceWarning, match=f"process {pid} was ended"):
            drop(held)
        assert locked.journal() is None
    assert provisioned.stand_ins() == []
    assert provisioned.listing() == FAILED


def test_a_launch_that_is_dropped_after_its_lock_is_ended_and_recovered_later(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        begun = launch(locked, IDENTITY, lambda _: provisioned.command("silent"))
    held = [begun]
    del begun
    with pytest.warns(ResourceWarning):
        drop(held)
    assert JOURNAL in provisioned.listing()
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Exited)
        assert found.recovery is not None
        assert found.recovery.kind is Recovered.EXITED


@forks
def test_a_forked_child_leaves_its_parents_launch_alone(provisioned: Site) -> None:
    with provisioned.lock() as locked, launch(locked, IDENTITY, lambda _: provisioned.command("silent")) as begun:
        child = os.fork()
        if child == 0:
            begun._finalizer()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not begun.process.has_exited()
        assert locked.journal() is not None


@pytest.mark.spec("656.launch.c")
def test_a_vmm_that_exited_is_not_committed(provisioned: Site) -> None:
    with provisioned.lock() as locked, launch(locked, IDENTITY, lambda _: provisioned.command("exit", "7")) as begun:
        assert begun.process.wait(soon())
        with pytest.raises(errors.VmmExited):
            endpoints.connect(begun.endpoint, soon(), alive=lambda: not begun.process.has_exited())
        with pytest.raises(errors.VmmExited) as caught:
            begun.commit()
        assert caught.value.detail == "before-commit"
        assert begun.process.exit_status() == 7
    assert provisioned.listing() == FAILED


def test_a_record_that_can_not_be_written_leaves_a_launch_to_abandon(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with provisioned.lock() as locked, launch(locked, IDENTITY, provisioned.serving) as begun:
        wait_until_served(begun)
        with monkeypatch.context() as patched:
            patched.setattr(*SYNC, raising(OSError(errno.EIO, os.strerror(errno.EIO))))
            with pytest.raises(errors.Refused, match="EIO"):
                begun.commit()
        assert RUNTIME not in provisioned.listing()
        assert not begun.process.has_exited()
    assert provisioned.listing() == FAILED
    assert provisioned.stand_ins() == []


@pytest.mark.spec("656.reattach.a")
def test_a_runtime_identity_without_a_part_is_refused_before_anything(provisioned: Site) -> None:
    with provisioned.lock() as locked, pytest.raises(errors.Malformed):
        launch(locked, RuntimeIdentity("", "b", "c", "d", "e"), lambda _: pytest.fail("asked"))
    assert provisioned.listing() == PROVISIONED


@pytest.mark.case("T18")
def test_two_orchestrators_start_one_vmm(provisioned: Site) -> None:
    barrier = threading.Barrier(2)

    def start(outcomes: list[str]) -> None:
        barrier.wait(120)
        with provisioned.lock() as locked:
            found = reattach(locked, IDENTITY, deadline=soon())
            if isinstance(found, Live):
                found.vmm.close()
                outcomes.append("running")
            else:
                provisioned.start(locked).close()
                outcomes.append("started")

    for _ in range(5 // SLOWER):
        outcomes: list[str] = []
        threads = [threading.Thread(target=start, args=(outcomes,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["running", "started"]
        assert len(provisioned.stand_ins()) == 1
        with provisioned.lock() as locked:
            found = reattach(locked, IDENTITY, deadline=soon())
            assert isinstance(found, Live)
            with found.vmm as vmm:
                vmm.stop(ask_to_stop, soon())


@pytest.mark.case("T18")
def test_two_processes_start_one_vmm(provisioned: Site) -> None:
    for _ in range(3 // SLOWER + 1):
        with ThreadPoolExecutor() as pool:
            results = [pool.submit(provisioned.run_until, None, quiet=True) for _ in range(2)]
            assert sorted(result.result() for result in results) == [0, 1]
        assert len(provisioned.stand_ins()) == 1
        assert provisioned.run_until(None, "stop") == 0


def forms_of(secret: bytes) -> list[bytes]:
    """Every form in which a secret may be written down."""
    texts = [secret.hex(), secret.hex().upper(), base64.b64encode(secret).decode().rstrip("="), ascii(secret)[2:-1]]
    return [secret, *(text.encode() for text in texts)]


def test_the_capability_appears_nowhere(provisioned: Site) -> None:
    with provisioned.lock() as locked, launch(locked, IDENTITY, provisioned.serving) as begun:
        wait_until_served(begun)
        shown = [repr(begun).encode(), str(begun.process).encode()]
        shown += [provisioned.path(name).read_bytes() for name in provisioned.listing() - {CAPABILITY, *SOCKETS}]
        shown += [word.encode() for word in witness.host().arguments(begun.process.identity.pid)]
        for path in (f"/proc/{begun.process.identity.pid}/environ",) if SOCKETS else ():
            with open(path, "rb") as file:
                shown.append(file.read())
        assert begun.endpoint.encode() in b"".join(shown)
        for form in forms_of(begun.capability):
            assert not any(form in text for text in shown)


def test_a_second_launch_waits_for_no_descendant_forever(provisioned: Site) -> None:
    """A descendant of an exited VMM keeps its log: the next launch can't prove that nothing runs."""
    with provisioned.lock() as locked:
        with launch(locked, IDENTITY, lambda _: provisioned.command("descendant")) as begun:
            wait_for(lambda: "ready" in provisioned.path(LOG).read_text(), "the descendant runs")
            pid = begun.process.identity.pid
        assert [one for one in provisioned.stand_ins() if one != pid]
        with pytest.raises(errors.Indeterminate) as caught:
            launch(locked, IDENTITY, provisioned.serving)
        assert caught.value.detail == "claim-held"
        provisioned.close()
        locked.deadline = soon()
        wait_for(lambda: provisioned.stand_ins() == [], "the descendant ended")
        locked.begin_launch(IDENTITY).abandon(child_exited=True)


def test_a_reference_to_a_child_is_complete(provisioned: Site) -> None:
    with provisioned.lock() as locked, provisioned.start(locked) as vmm:
        again = ProcessRef.open(vmm.record.process)
        assert again is not None
        assert again.identity == vmm.process.identity
        again.close()
        assert vmm.stop(ask_to_stop, soon()).error is None
    assert NAME in repr(provisioned.path())
