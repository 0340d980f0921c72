"""One holder per sandbox, through releases, removals and new provisions of the same name."""

from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wine
from harness import witness
from nvx_ref.deadline import Deadline
from nvx_ref.errors import Busy, NotFound, Refused
from nvx_ref.platform import files
from nvx_ref.store import LockedStore
from nvx_ref.store.names import LOCK
from sandboxes import CONFIGURATION, NAME, Site, past, soon, wait_for
from system import FIFO, forks, symlink, unix


def holds(locked: LockedStore, path: Path) -> bool:
    return os.fstat(locked.fd).st_ino == path.stat().st_ino


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody has opened a lock file and found it held."""
    found = threading.Event()
    try_lock = files.try_lock

    def told(fd: int) -> bool:
        taken = try_lock(fd)
        if not taken:
            found.set()
        return taken

    monkeypatch.setattr(files, "try_lock", told)
    return found


@pytest.mark.spec("620.scope1.a")
@unix("privacy is an access list: tests/platform/windows/test_files.py")
def test_a_provision_lock_makes_a_private_directory(site: Site) -> None:
    umask = os.umask(0o777)
    try:
        locked = site.store.lock_provision(NAME, deadline=soon())
    finally:
        os.umask(umask)
    with locked:
        locked.write_configuration(CONFIGURATION)
    assert stat.S_IMODE(site.path().stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in site.path().iterdir()} == {0o600}
    assert site.listing() == {"config.json", LOCK}
    assert site.path("config.json").read_bytes() == CONFIGURATION


@pytest.mark.spec("620.scope6.f")
def test_a_provision_that_writes_nothing_leaves_nothing(site: Site) -> None:
    site.store.lock_provision(NAME, deadline=soon()).close()
    assert not site.path().exists()


@pytest.mark.spec("620.scope6.f")
def test_a_release_takes_its_own_lock_file_from_a_directory_without_configuration(site: Site) -> None:
    site.path().mkdir(parents=True, mode=0o700)
    site.path("mine").touch()
    site.store.lock_provision(NAME, deadline=soon()).close()
    assert site.listing() == {"mine"}


def test_a_release_leaves_a_directory_that_was_there(site: Site) -> None:
    site.path().mkdir(parents=True, mode=0o700)
    site.store.lock_provision(NAME, deadline=soon()).close()
    assert site.listing() == set()


def test_a_release_leaves_the_lock_of_a_provisioned_sandbox(provisioned: Site) -> None:
    provisioned.lock().close()
    assert provisioned.listing() == {"config.json", LOCK}


@wine.differs(wine.KEPT_NAMES)
def test_a_release_leaves_a_lock_file_that_is_not_its_own(site: Site) -> None:
    locked = site.store.lock_provision(NAME, deadline=soon())
    site.path(LOCK).unlink()
    site.path(LOCK).touch(0o600)
    locked.close()
    assert site.listing() == {LOCK}


def test_a_release_is_idempotent_and_ends_every_change(provisioned: Site) -> None:
    locked = provisioned.lock()
    locked.close()
    locked.close()
    assert not locked.is_held
    for change in (lambda: locked.write_configuration(b""), locked.recover, locked.remove):
        with pytest.raises(Refused) as caught:
            change()
        assert caught.value.detail == "unlocked"


@pytest.mark.spec("620.scope6.e")
def test_no_sandbox_is_not_found_and_nothing_is_created(site: Site) -> None:
    for take in (site.store.lock_existing, site.store.lock_removal):
        with pytest.raises(NotFound):
            take(NAME, deadline=soon())
    with pytest.raises(NotFound):
        site.store.peek(NAME)
    assert not Path(site.store.root).exists()


@pytest.mark.spec("620.scope6.e")
def test_a_directory_without_configuration_is_not_found_and_left_alone(site: Site) -> None:
    site.path().mkdir(parents=True, mode=0o700)
    with pytest.raises(NotFound):
        site.lock()
    assert site.listing() == set()


@pytest.mark.spec("620.scope1.b")
def test_a_held_lock_is_busy_at_the_deadline(provisioned: Site) -> None:
    with provisioned.lock():
        for take in (provisioned.store.lock_existing, provisioned.store.lock_provision, provisioned.store.lock_removal):
            with pytest.raises(Busy):
                take(NAME, deadline=past())
            with pytest.raises(Busy):
                take(NAME, deadline=Deadline.after(0.06))
    provisioned.lock().close()


def test_other_sandboxes_are_not_busy(provisioned: Site) -> None:
    with provisioned.lock(), provisioned.store.lock_provision("beta", deadline=past()) as other:
        assert other.is_held


@pytest.mark.case("T41")
@pytest.mark.spec("620.acc.14")
def test_a_waiter_learns_of_the_removal_even_if_the_name_is_provisioned_anew(
    provisioned: Site, waits: threading.Event
) -> None:
    with ThreadPoolExecutor() as pool:
        holder = provisioned.store.lock_removal(NAME, deadline=soon())
        existing = pool.submit(provisioned.lock)
        assert waits.wait(60)
        # The waiter's next look must come after the new provision, whatever the scheduler does: the removed lock
        # file stays locked until then.
        kept = os.dup(holder.fd)
        holder.recover()
        # Where a removed file keeps a name until it is closed, the directory stays until it is provisioned anew.
        removal = pool.submit(holder.remove)
        wait_for(lambda: not provisioned.path(LOCK).exists(), "the lock file was removed")
        provisioned.provision()
        removal.result()
        os.close(kept)
        with pytest.raises(NotFound) as caught:
            existing.result()
        assert caught.value.detail == "removed"
    provisioned.lock().close()


@pytest.mark.case("T41")
@pytest.mark.spec("620.scope6.d")
def test_a_waiting_provision_gets_a_new_directory_after_a_removal(provisioned: Site, waits: threading.Event) -> None:
    with ThreadPoolExecutor() as pool:
        holder = provisioned.store.lock_removal(NAME, deadline=soon())
        provision = pool.submit(provisioned.store.lock_provision, NAME, deadline=soon())
        assert waits.wait(60)
        holder.recover()
        # The provision may take the directory over, which the removal waits for, or make a new one.
        removal = pool.submit(holder.remove)
        with provision.result() as locked:
            assert locked.read_configuration() is None
            assert holds(locked, provisioned.path(LOCK))
            locked.write_configuration(CONFIGURATION)
        removal.result()
    assert provisioned.listing() == {"config.json", LOCK}


@pytest.mark.spec("620.scope6.d")
def test_a_provision_takes_no_lock_file_over(provisioned: Site) -> None:
    with provisioned.store.lock_provision(NAME, deadline=soon()) as locked:
        # It is provisioned already: its lock stays what others wait for.
        assert holds(locked, provisioned.path(LOCK))
        old = locked.directory.open_lock(LOCK)
    assert os.fstat(old).st_ino == provisioned.path(LOCK).stat().st_ino
    provisioned.path("config.json").unlink()
    with provisioned.store.lock_provision(NAME, deadline=soon()) as locked:
        assert holds(locked, provisioned.path(LOCK))
        assert os.fstat(old).st_ino != provisioned.path(LOCK).stat().st_ino
        # What was replaced and is still open may keep a name of its own until it is closed.
        assert {name for name in provisioned.listing() if not name.endswith(".tmp")} == {LOCK}
        with pytest.raises(Busy):
            provisioned.store.lock_provision(NAME, deadline=past())
    os.close(old)


@pytest.mark.case("T17")
@pytest.mark.parametrize("call", ["open", "rename"])
@unix("the calls that fail here are Linux's")
def test_a_lock_file_that_can_not_be_replaced_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)

    def full(path: str, *arguments: object, **named: object) -> object:
        if str(path).endswith(".tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(Refused):
            site.store.lock_provision(NAME, deadline=soon())
    assert not site.path().exists()


@pytest.mark.case("T42")
@pytest.mark.parametrize("kind", ["symlink", "dangling", "hard link", FIFO, "directory"])
def test_a_lock_that_is_something_else_is_refused_and_untouched(provisioned: Site, kind: str) -> None:
    target = Path(provisioned.root, "target")
    target.write_text("precious")
    path = provisioned.path(LOCK)
    path.unlink()
    make = {
        "symlink": lambda: symlink(path, target),
        "dangling": lambda: symlink(path, f"{provisioned.root}/nowhere"),
        "hard link": lambda: path.hardlink_to(target),
        "fifo": lambda: os.mkfifo(path, 0o600),
        "directory": lambda: path.mkdir(mode=0o700),
    }
    make[kind]()
    before = path.lstat()
    for take in (provisioned.store.lock_existing, provisioned.store.lock_provision, provisioned.store.lock_removal):
        with pytest.raises(Refused) as caught:
            take(NAME, deadline=soon())
        assert caught.value.subject == str(path)
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert target.read_text() == "precious"
    assert not Path(provisioned.root, "nowhere").exists()


@pytest.mark.parametrize("kind", ["file", "symlink", "mode"])
def test_a_directory_that_is_something_else_is_refused(site: Site, kind: str) -> None:
    site.path().parent.mkdir()
    elsewhere = Path(site.root, "elsewhere")
    elsewhere.mkdir(mode=0o700)
    if kind == "file":
        site.path().touch()
    elif kind == "symlink":
        symlink(site.path(), elsewhere)
    else:
        site.path().mkdir()
        witness.host().expose(str(site.path()))
    for take in (site.store.lock_existing, site.store.lock_provision, site.store.lock_removal):
        with pytest.raises(Refused):
            take(NAME, deadline=soon())
    assert list(elsewhere.iterdir()) == []


@forks
def test_a_forked_child_does_not_release_its_parents_lock(provisioned: Site) -> None:
    with provisioned.lock() as locked:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert not locked.is_held
                locked.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(Busy):
            provisioned.store.lock_existing(NAME, deadline=past())
        assert locked.is_held


@pytest.mark.spec("656.tests.j")
@forks
def test_a_release_reaches_the_copies_of_a_forked_child(provisioned: Site) -> None:
    read, write = os.pipe()
    locked = provisioned.lock()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    locked.close()
    provisioned.store.lock_existing(NAME, deadline=past()).close()
    os.close(write)
    os.waitpid(child, 0)


@pytest.mark.spec("620.acc.12", "620.acc.13")
def test_threads_exclude_each_other_through_provisions_and_removals(site: Site) -> None:
    inside = threading.Lock()
    outcomes: list[str] = []

    def work(number: int) -> None:
        for turn in range(12):
            try:
                if (number + turn) % 3 == 0:
                    with site.store.lock_provision(NAME, deadline=soon()) as locked:
                        assert inside.acquire(blocking=False), "two holders"
                        if locked.read_configuration() is None:
                            locked.write_configuration(CONFIGURATION)
                            outcomes.append("provisioned")
                        inside.release()
                else:
                    with site.store.lock_existing(NAME, deadline=soon()) as locked:
                        assert inside.acquire(blocking=False), "two holders"
                        assert locked.read_configuration() == CONFIGURATION
                        assert holds(locked, site.path(LOCK))
                        if (number + turn) % 3 == 1:
                            locked.recover()
                            # The lock ends within.
                            inside.release()
                            locked.remove()
                            outcomes.append("removed")
                        else:
                            inside.release()
            except NotFound:
                outcomes.append("not found")

    with ThreadPoolExecutor(6) as pool:
        for result in [pool.submit(work, number) for number in range(6)]:
            result.result()
    assert {"provisioned", "removed"} <= set(outcomes)
    assert site.listing() == {"config.json", LOCK} if site.path().exists() else True


@unix("a directory isn't renamed while a file in it is open")
def test_a_lock_file_that_was_moved_away_is_no_lock(provisioned: Site, waits: threading.Event) -> None:
    with ThreadPoolExecutor() as pool:
        holder = provisioned.lock()
        waiting = pool.submit(provisioned.lock)
        assert waits.wait(60)
        provisioned.path().rename(f"{provisioned.root}/moved")
        provisioned.provision()
        holder.close()
        # What it waited for isn't there any more, and the new sandbox is none of its business.
        with pytest.raises(NotFound):
            waiting.result()
    provisioned.lock().close()
