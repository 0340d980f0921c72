"""The verdicts of reattach and of a look without the lock: one test and one row each."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from looking import exited, found_by, looked, unknown
from nvx_ref import errors
from nvx_ref.platform import process
from nvx_ref.platform.contract import FileId, Unpinnable
from nvx_ref.steps import Step
from nvx_ref.store import (
    Claim,
    IdentityPart,
    ProcessIdentity,
    Reader,
    RuntimeIdentity,
    RuntimeRecord,
    claim,
    evidence,
)
from nvx_ref.store.names import JOURNAL, LOG, RUNTIME
from nvx_ref.supervisor import Exited, Indeterminate, Live, Mismatched, inspect, reattach
from sandboxes import (
    IDENTITY,
    NAME,
    Site,
    ask_to_stop,
    claimed,
    ended,
    past,
    soon,
    stranger,
    write_journal,
    write_runtime,
)
from system import FIFO, forks, refuse_removal, symlink

pytestmark = pytest.mark.usefixtures("brief")

BOOT = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9"


def test_no_record_and_no_journal(provisioned: Site) -> None:
    for found in (looked(provisioned), found_by(provisioned)):
        assert isinstance(found, Exited)
        assert (found.record, found.recovery) == (None, None)


def test_no_record_and_a_log_that_some_process_has(provisioned: Site) -> None:
    """A descendant may outlive its VMM and the VMM's record: to be stopped is more than to be unrecorded."""
    provisioned.path(LOG).touch(0o600)
    with claimed(provisioned.path(LOG)):
        unknown(provisioned, "claim-held")
    for found in (looked(provisioned), found_by(provisioned)):
        assert isinstance(found, Exited)
        assert (found.record, found.recovery) == (None, None)


@pytest.mark.spec("622.scope5.a")
@pytest.mark.spec("620.scope3.n")
@pytest.mark.case("T04")
def test_a_record_of_an_earlier_boot_is_exited_without_any_probe(
    recorded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stranger() as alive:
        record = write_runtime(recorded, msgspec.structs.replace(alive, boot=BOOT, pid_namespace=1))
        with monkeypatch.context() as patched:
            patched.setattr(process.Pin, "open", None)
            patched.setattr(claim, "look", None)
            exited(recorded, record)


def test_a_record_of_another_namespace_is_decided_by_the_claim(recorded: Site) -> None:
    with stranger() as alive:
        record = write_runtime(recorded, msgspec.structs.replace(alive, pid_namespace=1))
        with claimed(recorded.path(LOG)):
            unknown(recorded, "pid-namespace")
        exited(recorded, record)


@pytest.mark.case("T01")
def test_a_record_that_was_copied_from_another_directory(recorded: Site) -> None:
    """Its process is verified, and another sandbox's: only a place *and* a log that are others say so."""
    other = FileId("1", "2")
    with stranger(log=recorded.path(LOG)) as alive:
        # Without a unique number the log is what tells, and this one is nobody's.
        rotated = Indeterminate if alive.pidfs_inode is None else Live
        for log, endpoint, expected in (
            (None, None, Live),
            (other, None, rotated),
            (None, "/moved/box/control.sock", Live),
            (other, "/another/box/control.sock", Indeterminate),
        ):
            write_runtime(recorded, alive, log=log, endpoint=endpoint)
            assert isinstance(looked(recorded), expected)
            assert isinstance(found_by(recorded), expected)
        unknown(recorded, "copied")
    assert isinstance(found_by(recorded), Exited)


@pytest.mark.case("T44")
@pytest.mark.spec("656.reattach.d")
@pytest.mark.parametrize("name", [RUNTIME, JOURNAL])
@pytest.mark.parametrize(
    ("damage", "detail"),
    [(b"", "record"), (b'{"format":2}', "format"), pytest.param(b"{" * 70_000, None, id="too long")],
)
def test_an_unreadable_record_is_unknown(recorded: Site, name: str, damage: bytes, detail: str | None) -> None:
    write_runtime(recorded, ended())
    recorded.path(name).write_bytes(damage)
    recorded.path(name).chmod(0o600)
    found = unknown(recorded, detail or "too-long")
    assert name in found.reason


@pytest.mark.parametrize("kind", ["symlink", FIFO, "directory"])
def test_a_record_that_is_no_file_is_unknown(recorded: Site, kind: str) -> None:
    path = recorded.path(RUNTIME)
    if kind == "symlink":
        symlink(path, "config.json")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    unknown(recorded, "kind")


@pytest.mark.spec("656.tests.l")
@pytest.mark.case("T08")
@pytest.mark.parametrize("detail", ["denied", "hidden", "no-pidfd"])
def test_a_process_that_can_not_be_examined_is_unknown(
    recorded: Site, monkeypatch: pytest.MonkeyPatch, detail: str
) -> None:
    def refuse(_: ProcessIdentity) -> None:
        raise Unpinnable("it can't be looked at", subject="process 7", detail=detail)

    with stranger() as alive:
        write_runtime(recorded, alive)
        monkeypatch.setattr(evidence.ProcessRef, "open", refuse)
        unknown(recorded, detail)


@pytest.mark.spec("656.reattach.c")
def test_a_process_that_is_gone_is_exited(recorded: Site) -> None:
    record = write_runtime(recorded, ended())
    found = exited(recorded, record)
    assert found.recovery is None
    assert recorded.steps == [Step.RECOVER_CLEARED]


@pytest.mark.case("T07")
@pytest.mark.spec("620.acc.4")
@pytest.mark.spec("656.reattach.g")
def test_a_number_of_another_process_is_exited_and_it_is_left_alone(recorded: Site) -> None:
    with stranger() as alive:
        for identity in (
            msgspec.structs.replace(alive, start_time=alive.start_time + 1, pidfs_inode=None),
            msgspec.structs.replace(process.own_identity(), start_time=1, pidfs_inode=None),
            ProcessIdentity(1, 1, alive.boot),
        ):
            record = write_runtime(recorded, identity)
            exited(recorded, record)


@pytest.mark.case("T02")
def test_a_number_and_start_of_another_process_are_told_apart_by_its_unique_number(recorded: Site) -> None:
    with stranger() as alive:
        if alive.pidfs_inode is None:
            pytest.skip("this kernel gives processes no unique number")
        other = msgspec.structs.replace(alive, pidfs_inode=alive.pidfs_inode + 1)
        exited(recorded, write_runtime(recorded, other))


@pytest.mark.case("T02")
def test_without_a_unique_number_the_claim_tells(recorded: Site) -> None:
    with stranger(log=recorded.path(LOG)) as alive:
        plain = msgspec.structs.replace(alive, pidfs_inode=None)
        write_runtime(recorded, plain)
        assert isinstance(looked(recorded), Live)
        assert isinstance(found_by(recorded), Live)
    with stranger() as alive:
        exited(recorded, write_runtime(recorded, msgspec.structs.replace(alive, pidfs_inode=None)))


@pytest.mark.case("T02")
def test_a_process_without_the_log_is_unknown_while_the_claim_is_held(recorded: Site) -> None:
    with stranger() as alive:
        record = write_runtime(recorded, msgspec.structs.replace(alive, pidfs_inode=None))
        with claimed(recorded.path(LOG)):
            unknown(recorded, "no-witness")
        exited(recorded, record)


@pytest.mark.case("T23")
@forks
def test_a_zombie_is_exited(recorded: Site) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    identity = ProcessIdentity(child, 0, process.boot_identity())
    with process.Pin.open(child) as pin:
        identity = pin.identity()
    exited(recorded, write_runtime(recorded, identity))
    os.waitpid(child, 0)


@pytest.mark.spec("622.scope5.a")
@pytest.mark.spec("620.scope3.l")
@pytest.mark.spec("620.acc.9")
def test_a_verified_process_of_the_same_runtime_is_live(recorded: Site) -> None:
    with stranger(log=recorded.path(LOG)) as alive:
        record = write_runtime(recorded, alive)
        before = recorded.listing()
        assert isinstance(looked(recorded), Live)
        with recorded.lock() as locked:
            found = reattach(locked, IDENTITY, deadline=past())
            assert isinstance(found, Live)
            with found.vmm as vmm:
                assert vmm.record == record
                assert vmm.process.identity.pid == alive.pid
                assert not vmm.has_exited()
        assert recorded.listing() == before
        assert recorded.steps == []


@pytest.mark.spec("622.scope5.a", "622.acc.16")
@pytest.mark.spec("620.scope3.m")
@pytest.mark.spec("620.acc.9")
@pytest.mark.parametrize("part", list(IdentityPart))
def test_a_verified_process_of_another_runtime_is_mismatched(recorded: Site, part: IdentityPart) -> None:
    field = dict(zip(IdentityPart, IDENTITY.__struct_fields__, strict=True))[part]
    other = msgspec.structs.replace(IDENTITY, **{field: "another"})
    with stranger(log=recorded.path(LOG)) as alive:
        write_runtime(recorded, alive, identity=other)
        for found in (looked(recorded), found_by(recorded)):
            assert isinstance(found, Mismatched)
            assert found.parts == (part,)
        assert RUNTIME in recorded.listing()


@pytest.mark.spec("656.reattach.a")
def test_the_callers_identity_is_checked_first(recorded: Site) -> None:
    write_journal(recorded, ended())
    bad = RuntimeIdentity("a", "b", "c", "", "e")
    with recorded.lock() as locked, pytest.raises(errors.Malformed):
        reattach(locked, bad, deadline=soon())
    with pytest.raises(errors.Malformed):
        inspect(recorded.store, NAME, bad)
    assert JOURNAL in recorded.listing()


def test_a_record_that_can_not_be_cleared_is_an_error_and_kept(recorded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runtime(recorded, ended())

    with recorded.lock() as locked:
        with monkeypatch.context() as patched:
            refuse_removal(patched, recorded.listing(), errno.EROFS)
            with pytest.raises(errors.Refused):
                reattach(locked, IDENTITY, deadline=soon())
        assert locked.runtime() is not None


def test_a_reattach_needs_the_lock(recorded: Site) -> None:
    with recorded.lock() as locked:
        pass
    with pytest.raises(errors.Refused) as caught:
        reattach(locked, IDENTITY, deadline=soon())
    assert caught.value.detail == "unlocked"


def test_a_look_at_nothing_is_not_found(site: Site) -> None:
    with pytest.raises(errors.NotFound):
        inspect(site.store, NAME, IDENTITY)
    assert not os.path.exists(site.store.root)


def test_a_look_needs_no_lock(recorded: Site) -> None:
    write_runtime(recorded, ended())
    with recorded.lock():
        assert isinstance(looked(recorded), Exited)


def test_a_look_during_a_commit_sees_one_state(recorded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch of the journal that was read first is finished, and the next one committed, before the record is."""
    with stranger(log=recorded.path(LOG)) as alive:
        write_journal(recorded)
        real = Reader.runtime
        finished = threading.Event()

        def between(self: Reader) -> RuntimeRecord | None:
            if not finished.is_set():
                finished.set()
                recorded.path(JOURNAL).unlink()
                write_runtime(recorded, alive)
            return real(self)

        monkeypatch.setattr(Reader, "runtime", between)
        found = inspect(recorded.store, NAME, IDENTITY)
        assert isinstance(found, Live)
        found.vmm.close()


@pytest.mark.spec("620.scope3.l")
def test_a_look_reads_the_journal_before_the_record(recorded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch is committed, and its journal removed, right after either was read for the first time.

    Read the other way round, there would be no record yet and no journal any more: nothing runs, to a look at a VMM.
    """
    with stranger(log=recorded.path(LOG)) as alive:
        launch_id = write_journal(recorded, alive).launch_id
        committed = threading.Event()

        def then_commit(real: Callable[[Reader], object]) -> Callable[[Reader], object]:
            def read(self: Reader) -> object:
                found = real(self)
                if not committed.is_set():
                    committed.set()
                    write_runtime(recorded, alive, launch_id=launch_id)
                    recorded.path(JOURNAL).unlink()
                return found

            return read

        for name in ("journal", "runtime"):
            monkeypatch.setattr(Reader, name, then_commit(getattr(Reader, name)))
        found = inspect(recorded.store, NAME, IDENTITY)
        assert isinstance(found, Live)
        found.vmm.close()


def test_many_looks_do_not_take_each_other_for_a_vmm(recorded: Site) -> None:
    journal = write_journal(recorded)

    def look(_: int) -> Claim:
        with recorded.store.peek(NAME) as reader:
            return reader.look_at_claim(journal.log)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(look, range(400))) == {Claim.FREE}


@pytest.mark.spec("620.notscope.a")
def test_a_reattach_says_nothing_to_the_guest(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        provisioned.start(locked).close()
        log = provisioned.path(LOG).read_text()
        for _ in range(3):
            found = reattach(locked, IDENTITY, lambda *_: pytest.fail("probed"), deadline=soon())
            assert isinstance(found, Live)
            found.vmm.close()
        assert provisioned.path(LOG).read_text() == log
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            vmm.stop(ask_to_stop, soon())
