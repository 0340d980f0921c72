"""Private directories: what is refused, what survives, what is left behind."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from nvx_ref.errors import NotFound, NvxError, Refused
from nvx_ref.platform import files

pytestmark = pytest.mark.usefixtures("no_leak")


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.spec("620.scope1.a")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277, 0o777])
def test_what_is_created_is_private_whatever_the_umask(short_root: str, umask: int) -> None:
    old = os.umask(umask)
    try:
        directory, created = files.create_private(f"{short_root}/a/b")
        with directory:
            directory.create_new("new", b"1")
            directory.replace("put", b"2", durable=True)
    finally:
        os.umask(old)
    assert created
    assert [mode(f"{short_root}/{name}") for name in ("a", "a/b")] == [0o700, 0o700]
    assert [mode(f"{short_root}/a/b/{name}") for name in ("new", "put")] == [0o600, 0o600]


def test_the_name_of_what_is_created_is_on_the_disk(short_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    files.create_private(f"{short_root}/a/b")[0].close()
    assert synced == [os.stat(short_root).st_ino, os.stat(f"{short_root}/a").st_ino]


def test_a_set_group_bit_of_the_parent_is_not_inherited(short_root: str) -> None:
    os.chmod(short_root, 0o2700)
    directory, _ = files.create_private(f"{short_root}/a")
    directory.close()
    assert mode(f"{short_root}/a") == 0o700


def test_an_existing_directory_is_taken_and_not_created(short_root: str) -> None:
    first, created = files.create_private(f"{short_root}/a")
    again, created_again = files.create_private(f"{short_root}/a/")
    with first, again:
        assert (created, created_again) == (True, False)
        assert first.id == again.id
        assert first.path == again.path == f"{short_root}/a"


@pytest.mark.parametrize("bad", [0o755, 0o750, 0o701, 0o500, 0o2700])
def test_a_directory_that_others_may_reach_is_refused_and_never_changed(short_root: str, bad: int) -> None:
    path = f"{short_root}/a"
    os.mkdir(path)
    os.chmod(path, bad)
    for attempt in (files.open_private, files.create_private):
        with pytest.raises(Refused, match=f"{bad:04o}") as caught:
            attempt(path)
        assert caught.value.subject == path
        assert caught.value.hint
    assert mode(path) == bad


@pytest.mark.parametrize("target", [0o700, 0o755])
@pytest.mark.parametrize("slash", ["", "/", "//"])
def test_a_link_is_no_private_directory_and_its_target_stays_untouched(
    short_root: str, slash: str, target: int
) -> None:
    os.mkdir(f"{short_root}/real", target)
    os.symlink("real", f"{short_root}/link")
    for attempt in (files.open_private, files.create_private):
        with pytest.raises(Refused) as caught:
            attempt(f"{short_root}/link{slash}")
        assert caught.value.detail == "kind"
    assert mode(f"{short_root}/real") == target


def test_a_link_above_the_directory_is_followed(short_root: str) -> None:
    os.mkdir(f"{short_root}/real")
    os.symlink("real", f"{short_root}/link")
    directory, created = files.create_private(f"{short_root}/link/box")
    with directory:
        assert created
        assert directory.is_current()
    assert os.path.isdir(f"{short_root}/real/box")


def test_a_dangling_link_above_the_directory_is_named(short_root: str) -> None:
    os.symlink("nothing", f"{short_root}/link")
    with pytest.raises(Refused) as caught:
        files.create_private(f"{short_root}/link/a/b")
    assert caught.value.subject == f"{short_root}/link"


def test_a_file_is_no_directory(short_root: str) -> None:
    Path(f"{short_root}/file").write_bytes(b"x")
    for path in (f"{short_root}/file", f"{short_root}/file/below"):
        for attempt in (files.open_private, files.create_private):
            with pytest.raises(Refused):
                attempt(path)


def test_a_missing_directory_is_not_found_and_not_created(short_root: str) -> None:
    with pytest.raises(NotFound):
        files.open_private(f"{short_root}/a/b")
    assert os.listdir(short_root) == []


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_an_impossible_path_is_refused(path: str) -> None:
    with pytest.raises(Refused):
        files.open_private(path)


def test_a_relative_path_is_the_callers(short_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(short_root)
    directory, _ = files.create_private("a")
    with directory:
        monkeypatch.chdir("/")
        assert directory.path == f"{short_root}/a"
        assert directory.is_current()


@pytest.mark.usefixtures("root_only")
def test_another_users_directory_is_refused(short_root: str) -> None:
    os.mkdir(f"{short_root}/a", 0o700)
    os.chown(f"{short_root}/a", 12345, 12345)
    with pytest.raises(Refused, match="12345"):
        files.open_private(f"{short_root}/a")


def test_a_directory_is_current_while_its_path_names_it(short_root: str) -> None:
    directory, _ = files.create_private(f"{short_root}/a")
    with directory:
        assert directory.is_current()
        os.rename(f"{short_root}/a", f"{short_root}/b")
        assert not directory.is_current()
        # A link to it is another file, and whoever made it can let it name another directory.
        os.symlink("b", f"{short_root}/a")
        assert not directory.is_current()
        os.unlink(f"{short_root}/a")
        os.mkdir(f"{short_root}/a", 0o700)
        assert not directory.is_current()
        assert directory.remove_self()
        assert sorted(os.listdir(short_root)) == ["a", "b"]
        # Access goes on through the descriptor: to the directory that was opened, wherever it is now.
        directory.create_new("x", b"1")
        assert os.listdir(f"{short_root}/b") == ["x"]


def test_a_directory_is_removed_once_it_is_empty(sandbox: files.Directory) -> None:
    sandbox.create_new(".nfs0001", b"")
    assert sandbox.remove_self() is False
    sandbox.remove(".nfs0001")
    assert sandbox.remove_self() is True
    assert sandbox.remove_self() is True
    assert not os.path.exists(sandbox.path)
    assert sandbox.names() == []
    for attempt in (lambda: sandbox.open_lock("l"), lambda: sandbox.replace("a", b"", durable=True)):
        with pytest.raises(NotFound):
            attempt()
    assert sandbox.read("a", 1) is None


def test_creation_copes_with_a_removal_that_races_it(short_root: str) -> None:
    """Whatever the order, a creator ends with a directory it holds or a typed error, never with a traceback."""
    path = f"{short_root}/p/box"
    stop = threading.Event()

    def remove() -> None:
        while not stop.is_set():
            for victim in (path, os.path.dirname(path)):
                try:
                    os.rmdir(victim)
                except OSError:
                    continue

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(200):
            try:
                directory, _ = files.create_private(path)
            except NvxError:
                continue
            directory.close()
    finally:
        stop.set()
        remover.join()


def test_a_closed_directory_stays_closed(short_root: str) -> None:
    directory, _ = files.create_private(f"{short_root}/a")
    directory.close()
    directory.close()
    with pytest.raises(Refused):
        directory.names()
