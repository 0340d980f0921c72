"""Removal: nothing is deleted before everything was looked at, and everything in an order that can be repeated."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import AlreadyExists, ForeignEntries, Indeterminate, NotFound, Refused, TimedOut
from nvx_ref.platform import files
from nvx_ref.steps import Step
from nvx_ref.store import LockedStore, claim, removal
from nvx_ref.store.names import CAPABILITY, JOURNAL, LOCK, LOG, OUTCOME, RUNTIME, SOCKET
from sandboxes import NAME, Site, claimed, ended, soon, wait_for, write_journal, write_runtime
from system import FIFO, ODD_NAME, refuse_removal, symlink, unix

HEX = "0123456789abcdef" * 2


def remove(site: Site, deadline: Deadline | None = None) -> None:
    with site.store.lock_removal(NAME, deadline=soon()) as locked:
        locked.recover()
        locked.remove(deadline=deadline)
        assert not locked.is_held


@pytest.mark.spec("620.scope1.i", "620.acc.16")
@pytest.mark.spec("620.scope6.h")
@pytest.mark.spec("620.scope6.j")
def test_a_removal_deletes_in_its_order(provisioned: Site) -> None:
    gone: list[str] = []
    for name in (SOCKET, CAPABILITY, LOG, OUTCOME, "console.log", ".tmpAb3dE6", f".{RUNTIME}.{HEX}.tmp", "disk.img"):
        provisioned.path(name).write_text("x")
    left = provisioned.listing()

    def watch(step: Step) -> None:
        nonlocal left
        # What is still open may keep a name of its own until it is closed.
        now = (
            {name for name in provisioned.listing() if "removed" not in name} if provisioned.path().exists() else set()
        )
        gone.extend(sorted(left - now))
        left = now
        provisioned.steps.append(step)

    provisioned.store.observer = watch
    remove(provisioned)
    assert not provisioned.path().exists()
    assert gone[-4:] == [LOG, "disk.img", "config.json", LOCK]
    assert set(gone[:-3]) == {SOCKET, CAPABILITY, LOG, OUTCOME, "console.log", ".tmpAb3dE6", f".{RUNTIME}.{HEX}.tmp"}
    assert provisioned.steps == [
        Step.REMOVAL_CHECKED,
        *[Step.REMOVAL_FILE] * 9,
        Step.REMOVAL_LOCK_UNLINKED,
        Step.REMOVAL_DIRECTORY,
    ]


@pytest.mark.spec("620.acc.16")
@pytest.mark.case("T43")
@pytest.mark.parametrize(
    "names",
    [
        [],
        [LOCK],
        [".nfs000000000001"],
        [".tmpAb3dE6"],
        [f".config.json.{HEX}.tmp"],
        [LOCK, ".nfs000000000001", ".tmpAb3dE6", f".{RUNTIME}.{HEX}.tmp", LOG, "disk.img"],
    ],
)
def test_what_a_removal_or_a_provision_left_is_removed(site: Site, names: list[str]) -> None:
    site.path().mkdir(parents=True, mode=0o700)
    for name in names:
        site.path(name).touch(0o600)
    with pytest.raises(NotFound):
        site.lock()
    remove(site)
    assert not site.path().exists()
    with pytest.raises(NotFound):
        remove(site)


@pytest.mark.case("T43")
@pytest.mark.spec("620.scope6.i")
@pytest.mark.parametrize("configured", [True, False])
def test_foreign_entries_refuse_before_anything_is_deleted(site: Site, *, configured: bool) -> None:
    site.provision()
    strange = tuple(sorted(("notes.txt", ODD_NAME)))
    for name in (*strange, LOG, ".tmpAb3dE6"):
        site.path(name).touch(0o600)
    if not configured:
        site.path("config.json").unlink()
    before = site.listing()
    with pytest.raises(ForeignEntries) as caught:
        remove(site)
    assert caught.value.names == strange
    assert ", ".join(ascii(name)[1:-1] for name in strange) in str(caught.value)
    assert site.listing() == (before if configured else before - {LOCK})
    for name in strange:
        site.path(name).unlink()
    remove(site)
    assert not site.path().exists()


@pytest.mark.spec("620.scope6.i")
@pytest.mark.parametrize("name", ["disk.img", LOG, SOCKET, ".tmpAb3dE6", "config.json"])
@pytest.mark.parametrize("kind", ["directory", "symlink", FIFO])
def test_a_declared_name_that_is_something_else_is_foreign(provisioned: Site, name: str, kind: str) -> None:
    path = provisioned.path(name)
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
        (path / "precious").touch()
    elif kind == "symlink":
        symlink(path, provisioned.root)
    else:
        os.mkfifo(path)
    before = provisioned.listing()
    with pytest.raises(ForeignEntries) as caught:
        remove(provisioned)
    assert caught.value.names == (name,)
    assert provisioned.listing() == before


@unix("the endpoint is a pipe, which is no file")
def test_a_socket_of_the_vmm_is_removed(provisioned: Site) -> None:
    import socket  # noqa: PLC0415

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(provisioned.path(SOCKET)))
    remove(provisioned)
    assert not provisioned.path().exists()


@pytest.mark.spec("620.scope6.g")
def test_a_removal_needs_a_recovery(provisioned: Site) -> None:
    before = provisioned.listing()
    with provisioned.lock() as locked:
        with pytest.raises(Refused) as caught:
            locked.remove()
        assert caught.value.detail == "not-recovered"
    assert provisioned.listing() == before


@pytest.mark.spec("620.scope6.g")
def test_a_removal_is_refused_while_anything_may_run(provisioned: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "CLAIM_WAIT", 0.1)

    def refused(locked: LockedStore) -> str:
        before = provisioned.listing()
        with pytest.raises((Refused, AlreadyExists, Indeterminate)) as caught:
            locked.remove()
        assert provisioned.listing() == before
        assert locked.is_held
        return caught.value.detail or ""

    with provisioned.lock() as locked:
        locked.recover()
        write_runtime(provisioned, ended())
        assert refused(locked) == "running"
        provisioned.path(RUNTIME).write_bytes(b"damaged")
        assert refused(locked) == "running"
        provisioned.path(RUNTIME).unlink()
        write_journal(provisioned)
        assert refused(locked) == "not-recovered"
        provisioned.path(JOURNAL).unlink()
        with claimed(provisioned.path(LOG)):
            assert refused(locked) == "claim-held"
        locked.remove()
    assert not provisioned.path().exists()


def test_a_lock_that_can_not_be_unlinked_keeps_the_sandbox_removable(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        refuse_removal(patched, [LOCK], errno.EIO)
        locked = provisioned.store.lock_removal(NAME, deadline=soon())
        locked.recover()
        with pytest.raises(Refused):
            locked.remove()
        # The release tries again, and says so when it fails.
        with pytest.raises(Refused):
            locked.close()
    assert provisioned.listing() == {LOCK}
    remove(provisioned)
    assert not provisioned.path().exists()


def racing(site: Site, at: Step, act: object) -> None:
    def observe(step: Step) -> None:
        if step is at:
            act()  # type: ignore[operator]

    site.store.observer = observe


@pytest.mark.case("T19")
@pytest.mark.spec("620.scope6.l")
def test_a_provision_that_takes_the_directory_over_keeps_it(provisioned: Site) -> None:
    racing(provisioned, Step.REMOVAL_LOCK_UNLINKED, provisioned.provision)
    with ThreadPoolExecutor() as pool:
        pool.submit(remove, provisioned).result()
    assert provisioned.listing() == {"config.json", LOCK}
    provisioned.lock().close()


@pytest.mark.spec("620.scope6.l")
def test_a_provision_that_holds_the_directory_is_waited_for(provisioned: Site) -> None:
    taken: list[LockedStore] = []
    racing(
        provisioned,
        Step.REMOVAL_LOCK_UNLINKED,
        lambda: taken.append(provisioned.store.lock_provision(NAME, deadline=soon())),
    )
    with ThreadPoolExecutor() as pool:
        removal = pool.submit(remove, provisioned)
        wait_for(lambda: bool(taken), "the provision took the lock")
        assert provisioned.path(LOCK).exists()
        # It gives up without a configuration: nothing keeps the directory any more.
        taken[0].close()
        removal.result()
    assert not provisioned.path().exists()


@pytest.mark.spec("620.scope6.k")
@pytest.mark.parametrize("left", [[LOCK], [LOCK, f".config.json.{HEX}.tmp"], [".nfs0001"], [".nfs0001", LOCK]])
def test_what_a_killed_waiter_left_does_not_keep_the_directory(provisioned: Site, left: list[str]) -> None:
    racing(
        provisioned,
        Step.REMOVAL_LOCK_UNLINKED,
        lambda: [provisioned.path(name).touch(0o600) for name in left],
    )
    remove(provisioned)
    assert not provisioned.path().exists()


@pytest.mark.spec("620.scope6.k")
def test_a_name_that_lingers_keeps_the_directory_until_the_deadline(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    provisioned.path(".nfs0001").touch()
    with monkeypatch.context() as patched:
        refuse_removal(patched, [".nfs0001"], errno.EBUSY)
        with pytest.raises(TimedOut) as caught:
            remove(provisioned, Deadline.after(0.1))
        assert caught.value.detail == "lingering"
        assert ".nfs0001" in caught.value.reason
    assert provisioned.listing() == {".nfs0001"}
    with pytest.raises(NotFound):
        provisioned.lock()
    remove(provisioned)
    assert not provisioned.path().exists()


def test_an_empty_directory_that_some_program_works_in_is_told(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(files.Directory, "remove_self", lambda _: False)
        with pytest.raises(TimedOut, match="some program works in, or has open") as caught:
            remove(provisioned, Deadline.after(0.1))
        assert caught.value.detail == "lingering"
    assert provisioned.listing() == set()
    remove(provisioned)
    assert not provisioned.path().exists()


@unix("an open file keeps its name")
@pytest.mark.spec("620.scope6.l")
def test_a_lock_that_was_replaced_while_it_was_taken_is_left_to_its_holder(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a removal gets may be the lock of a file that somebody else has removed, and another holds the new one."""
    path, real = provisioned.path(LOCK), files.try_lock
    provisioned.path("config.json").unlink()
    held: list[int] = []

    def replace(fd: int) -> bool:
        path.unlink()
        held.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return real(held[0]) and real(fd)

    monkeypatch.setattr(files, "try_lock", replace)
    with files.open_private(str(provisioned.path())) as directory:
        removal._take_over(directory, provisioned.caller)
        assert files.names_file(directory, LOCK, held[0])
    os.close(held[0])


def test_a_name_that_is_gone_before_it_is_looked_at_stops_no_removal(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A VMM's child may still take its staging file away."""
    listed = files.Directory.names
    monkeypatch.setattr(files.Directory, "names", lambda directory: [*listed(directory), ".tmpAb3dE6"])
    with provisioned.store.lock_removal(NAME, deadline=soon()) as locked:
        locked.recover()
        removal._require_ours(locked, locked.directory.names())
    monkeypatch.undo()
    remove(provisioned)


@pytest.mark.parametrize(("count", "more"), [(10, False), (11, True)])
def test_ten_strangers_are_named_and_more_are_told(provisioned: Site, count: int, *, more: bool) -> None:
    names = [f"note{number:02}.txt" for number in range(count)]
    for name in names:
        provisioned.path(name).touch()
    with pytest.raises(ForeignEntries) as caught:
        remove(provisioned)
    assert caught.value.names == tuple(names)
    assert f"{', '.join(names[:10])}{', ...' if more else ''}; nothing was removed" in caught.value.reason


def test_a_stranger_that_appears_during_a_removal_is_named(provisioned: Site) -> None:
    racing(provisioned, Step.REMOVAL_LOCK_UNLINKED, lambda: provisioned.path("notes.txt").touch())
    with pytest.raises(ForeignEntries) as caught:
        remove(provisioned)
    assert caught.value.names == ("notes.txt",)
    assert provisioned.listing() == {"notes.txt"}


@unix("a directory isn't renamed while it is open")
def test_a_directory_that_was_replaced_is_not_removed(provisioned: Site) -> None:
    def swap() -> None:
        provisioned.path().rename(f"{provisioned.root}/moved")
        provisioned.path().mkdir(mode=0o700)

    racing(provisioned, Step.REMOVAL_LOCK_UNLINKED, swap)
    remove(provisioned)
    assert provisioned.listing() == set()
