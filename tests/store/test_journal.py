"""A launch on disk: what is there before, between and after the spawn, and what a failure leaves."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
from collections.abc import Callable

import pytest

import wine
from harness import witness
from nvx_ref.errors import AlreadyExists, Indeterminate, Malformed, NvxError, Refused
from nvx_ref.platform import files, process
from nvx_ref.steps import Step
from nvx_ref.store import Claim, Launch, Recovered, RuntimeIdentity, claim
from nvx_ref.store.names import CAPABILITY, JOURNAL, LOCK, LOG, RUNTIME
from sandboxes import IDENTITY, NAME, Site, claim_is_free, claimed, log_of, soon, wait_for, write_journal, write_runtime
from system import FIFO, PYTHON, SOCKETS, SYNC, refuse_removal, symlink, unix

STOPPED = {"config.json", LOCK}
BEGUN = {*STOPPED, CAPABILITY, LOG, JOURNAL}


@pytest.mark.spec("620.scope2.a")
@pytest.mark.spec("620.scope1.h")
@pytest.mark.spec("620.scope1.j")
def test_a_launch_leaves_its_trace_before_a_process(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        assert provisioned.listing() == BEGUN
        journal = locked.journal()
        assert journal is not None
        assert (journal.launch_id, journal.process, journal.endpoint) == (launch.launch_id, None, launch.endpoint)
        assert journal.boot == process.boot_identity()
        assert journal.log == launch.log == log_of(provisioned)
        assert (launch.endpoint == provisioned.endpoint) is bool(SOCKETS)
        assert provisioned.path(CAPABILITY).read_bytes() == launch.capability
        assert len(launch.capability) == 32
        assert any(launch.capability)
        found = provisioned.path(CAPABILITY)
        assert stat.S_IMODE(witness.host().mode(str(found), found.stat())) == 0o600
        launch.abandon(child_exited=True)


def test_no_two_launches_share_anything(provisioned: Site) -> None:
    seen: set[object] = set()
    with provisioned.lock() as locked:
        for _ in range(5):
            launch = locked.begin_launch(IDENTITY)
            seen |= {launch.launch_id, launch.capability}
            # 32 random bytes: fewer than half of them different comes once in 10**15 launches.
            assert len(set(launch.capability)) >= 16
            launch.abandon(child_exited=True)
    assert len(seen) == 10


@pytest.mark.spec("620.scope2.c")
@unix("nobody else may write to a log that is claimed: tests/platform/windows/test_guards.py")
def test_the_log_is_claimed_and_then_emptied_and_stays_the_same_file(provisioned: Site) -> None:
    log = log_of(provisioned)
    provisioned.path(LOG).write_text("of the last run\n")
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        assert (launch.log, provisioned.path(LOG).stat().st_size) == (log, 0)
        fd = launch.take_log()
        assert locked.look_at_claim(log) is Claim.HELD
        os.write(fd, b"a")
        provisioned.path(LOG).write_text("")
        os.write(fd, b"b")
        assert provisioned.path(LOG).read_bytes() == b"b"
        with pytest.raises(Refused):
            launch.take_log()
        os.close(fd)
        assert locked.look_at_claim(log) is Claim.FREE
        launch.abandon(child_exited=True)


@pytest.mark.spec("620.scope2.b")
def test_the_identity_and_then_the_record_join(provisioned: Site) -> None:
    me = process.own_identity()
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        with pytest.raises(Refused):
            launch.commit()
        launch.record_process(me)
        journal = locked.journal()
        assert journal is not None
        assert journal.process == me
        record = launch.commit()
        assert locked.runtime() == record
        assert (record.launch_id, record.process, record.endpoint) == (launch.launch_id, me, launch.endpoint)
        assert (record.log, record.identity) == (launch.log, IDENTITY)
        assert locked.journal() is None
        assert claim_is_free(provisioned.path(LOG))
        for late in (launch.take_log, launch.commit, lambda: launch.record_process(me), lambda: abandon(launch)):
            with pytest.raises(Refused) as caught:
                late()
            assert caught.value.detail == "launch-state"


def abandon(launch: Launch) -> object:
    return launch.abandon(child_exited=True)


def test_a_launch_that_never_spawned_is_over_even_for_who_has_seen_no_exit(provisioned: Site) -> None:
    """Its own hold on the log is let go of first, or the claim would say that a VMM may run."""
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        assert launch.abandon(child_exited=False).kind is Recovered.EXITED
        assert launch.ended
        assert provisioned.listing() == STOPPED | {LOG}


def test_a_launch_needs_its_lock(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
    with pytest.raises(Refused) as caught:
        launch.record_process(process.own_identity())
    assert caught.value.detail == "unlocked"


@pytest.mark.spec("620.scope1.i")
def test_stale_files_go_before_a_launch(provisioned: Site) -> None:
    stale = ["control.sock", CAPABILITY, "outcome.json", "console.log", ".tmpAb3dE6", f".{RUNTIME}.{'0' * 32}.tmp"]
    for name in stale:
        provisioned.path(name).write_text("stale")
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        assert provisioned.listing() == BEGUN
        abandon(launch)
        assert provisioned.listing() == STOPPED | {LOG}


def test_a_launch_is_refused_beside_another(provisioned: Site) -> None:
    me = process.own_identity()
    with provisioned.lock() as locked:
        write_runtime(provisioned, me)
        with pytest.raises(AlreadyExists):
            locked.begin_launch(IDENTITY)
        provisioned.path(RUNTIME).unlink()
        write_journal(provisioned)
        with pytest.raises(Refused) as caught:
            locked.begin_launch(IDENTITY)
        assert caught.value.detail == "launch-unfinished"
        provisioned.path(JOURNAL).write_bytes(b"damaged")
        with pytest.raises(Refused):
            locked.begin_launch(IDENTITY)


def test_a_launch_without_an_identity_is_refused(provisioned: Site) -> None:
    with provisioned.lock() as locked, pytest.raises(Malformed):
        locked.begin_launch(RuntimeIdentity("a", "b", "", "d", "e"))
    assert provisioned.listing() == STOPPED


@pytest.mark.spec("620.scope2.d")
def test_a_held_claim_stops_a_launch_before_it_touches_anything(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "CLAIM_WAIT", 0.1)
    provisioned.path("control.sock").write_text("of a VMM")
    provisioned.path(LOG).write_text("of a VMM")
    with claimed(provisioned.path(LOG)), provisioned.lock() as locked:
        with pytest.raises(Indeterminate) as caught:
            locked.begin_launch(IDENTITY)
        assert caught.value.detail == "claim-held"
        assert caught.value.subject == str(provisioned.path(LOG))
    assert provisioned.steps == []
    assert provisioned.path("control.sock").read_text() == provisioned.path(LOG).read_text() == "of a VMM"
    assert provisioned.listing() == {*STOPPED, LOG, "control.sock"}


@pytest.mark.spec("620.scope2.c")
def test_a_log_that_is_claimed_meanwhile_is_not_emptied(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first look and the claim another VMM may have got it, and write to it."""
    monkeypatch.setattr(claim, "CLAIM_WAIT", 0.05)
    monkeypatch.setattr(files, "claim_log", lambda _: False)
    provisioned.path(LOG).write_text("of a VMM")
    with provisioned.lock() as locked, pytest.raises(Indeterminate) as caught:
        locked.begin_launch(IDENTITY)
    assert caught.value.detail == "claim-held"
    assert provisioned.path(LOG).read_text() == "of a VMM"


@pytest.mark.spec("656.recheck")
def test_a_claim_that_a_fork_holds_for_a_moment_stops_nothing(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "CLAIM_WAIT", 30)
    looks = threading.Event()
    look = claim.look

    def counted(*arguments: object) -> Claim:
        found = look(*arguments)  # type: ignore[arg-type]
        if found is Claim.HELD:
            looks.set()
        return found

    monkeypatch.setattr(claim, "look", counted)
    taken = threading.Event()

    def fork_window() -> None:
        with claimed(provisioned.path(LOG)):
            taken.set()
            looks.wait()

    thread = threading.Thread(target=fork_window)
    thread.start()
    try:
        assert taken.wait(120)
        with provisioned.lock() as locked:
            abandon(locked.begin_launch(IDENTITY))
        assert looks.is_set()
    finally:
        looks.set()
        thread.join()


@wine.differs("a file that was renamed can't be opened anew by its handle")
def test_a_log_that_is_replaced_while_it_is_claimed_is_refused(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = claim.files.claim_log

    def swap(fd: int) -> bool:
        provisioned.path(LOG).rename(provisioned.path("disk.img"))
        return real(fd)

    monkeypatch.setattr(claim.files, "claim_log", swap)
    with provisioned.lock() as locked, pytest.raises(Refused) as caught:
        locked.begin_launch(IDENTITY)
    assert caught.value.detail == "log-replaced"
    assert provisioned.listing() == {*STOPPED, "disk.img"}


@pytest.mark.case("T42")
@pytest.mark.parametrize("name", [LOG, CAPABILITY, JOURNAL, RUNTIME, "config.json"])
@pytest.mark.parametrize("kind", ["symlink", FIFO, "directory", "hard link"])
def test_a_file_that_is_something_else_is_refused_or_replaced_and_its_target_untouched(
    provisioned: Site, name: str, kind: str
) -> None:
    target = provisioned.path().parent / "target"
    target.write_text("precious")
    path = provisioned.path(name)
    path.unlink(missing_ok=True)
    make: dict[str, Callable[[], object]] = {
        "symlink": lambda: symlink(path, target),
        "hard link": lambda: path.hardlink_to(target),
        "fifo": lambda: os.mkfifo(path, 0o600),
        "directory": path.mkdir,
    }
    make[kind]()
    with provisioned.lock() as locked:
        try:
            locked.read_configuration()
            locked.recover()
            locked.runtime()
            abandon(locked.begin_launch(IDENTITY))
        except NvxError as error:
            assert error.code in {"Refused", "AlreadyExists"}  # noqa: PT017 - either is right, an OSError isn't
    assert target.read_text() == "precious"
    assert target.stat().st_nlink in {1, 2}


@pytest.mark.case("T17")
@pytest.mark.parametrize("failing", range(1, 4))
@pytest.mark.parametrize("persistent", [False, True])
def test_a_full_disk_leaves_no_half_of_a_launch(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch, failing: int, *, persistent: bool
) -> None:
    calls = 0
    sync = getattr(*SYNC)

    def full(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing or (persistent and calls > failing):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(fd)

    with provisioned.lock() as locked:
        monkeypatch.setattr(*SYNC, full)
        launch: Launch | None = None
        with pytest.raises(Refused, match="ENOSPC"):  # noqa: PT012 - any of the three writes
            launch = locked.begin_launch(IDENTITY)
            launch.record_process(process.own_identity())
            launch.commit()
        assert calls == failing
        assert (launch is None) == (failing == 1)
        if launch is not None:
            assert not launch.ended
            assert locked.journal() is not None
            abandon(launch)
        assert locked.runtime() is None
    assert provisioned.listing() == STOPPED | {LOG}


def test_a_launch_syncs_three_times(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(*SYNC, calls.append)
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        launch.record_process(process.own_identity())
        launch.commit()
    assert len(calls) == 3


@unix("the file system journals the names in a directory")
def test_a_configuration_is_synced_with_its_directory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    with site.store.lock_provision(NAME, deadline=soon()) as locked:
        monkeypatch.setattr(os, "fsync", calls.append)
        locked.write_configuration(b"{}")
    assert len(calls) == 2


@pytest.mark.spec("620.goal.2")
@pytest.mark.spec("620.scope1.m")
def test_a_configuration_is_the_callers_bytes(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        for data in (b"", b"\x00\xff not JSON", b"x" * 100_000):
            locked.write_configuration(data)
            assert locked.read_configuration() == data
        with pytest.raises(Refused):
            locked.write_configuration(b"x" * (16 * 1024 * 1024 + 1))
        assert locked.read_configuration() == b"x" * 100_000
    assert provisioned.listing() == STOPPED


def test_a_journal_that_can_not_be_removed_fails_no_commit(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        launch.record_process(process.own_identity())
        with monkeypatch.context() as patched:
            refuse_removal(patched, [JOURNAL], errno.EIO)
            record = launch.commit()
            assert provisioned.steps[-1] is Step.START_RUNTIME_WRITTEN
            assert locked.recover().kind is Recovered.COMPLETED
        assert locked.journal() is not None
        recovery = locked.recover()
        assert (recovery.kind, recovery.launch_id) == (Recovered.COMPLETED, record.launch_id)
        assert locked.journal() is None
        assert locked.runtime() == record


def test_a_capability_that_is_none_is_malformed(provisioned: Site) -> None:
    with provisioned.store.peek(NAME) as reader:
        assert reader.read_capability() is None
        for damage in (b"", b"x" * 31, b"x" * 33, bytes(32)):
            provisioned.path(CAPABILITY).write_bytes(damage)
            with pytest.raises(Malformed):
                reader.read_capability()
        provisioned.path(CAPABILITY).write_bytes(b"x" * 32)
        assert reader.read_capability() == b"x" * 32


def test_the_report_stays_until_the_next_launch(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        provisioned.path("outcome.json").write_text("{}")
        provisioned.path("console.log").write_text("booting")
        abandon(launch)
        assert locked.read_outcome() == b"{}"
        assert provisioned.listing() == {*STOPPED, LOG, "outcome.json", "console.log"}
        abandon(locked.begin_launch(IDENTITY))
        assert locked.read_outcome() is None


def test_a_root_that_records_can_not_name_is_refused(site: Site) -> None:
    for root in ("", f"{site.root}/\udcff", "a\0b"):
        with pytest.raises(Refused):
            type(site.store)(root)


@unix("the endpoint's name is no path")
def test_an_endpoint_that_can_not_be_served_is_refused_before_anything(site: Site) -> None:
    store = type(site.store)(f"{site.root}/{'long' * 30}")
    with store.lock_provision(NAME, deadline=soon()) as locked:
        locked.write_configuration(b"{}")
        with pytest.raises(Refused):
            locked.begin_launch(IDENTITY)
        assert sorted(locked.directory.names()) == sorted(STOPPED)


def test_the_claim_outlives_its_first_holder(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        launch = locked.begin_launch(IDENTITY)
        fd = launch.take_log()
        words = [PYTHON, "-I", "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=fd) as child:
            os.close(fd)
            assert locked.look_at_claim(launch.log) is Claim.HELD
            child.communicate()
        wait_for(lambda: locked.look_at_claim(launch.log) is Claim.FREE, "the claim was released")
        abandon(launch)
