"""Entries of a private directory: what is read, opened and refused."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from nvx_ref.errors import AlreadyExists, Malformed, NotFound, Refused
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileKind

pytestmark = pytest.mark.usefixtures("no_leak")


def test_names_beyond_utf8_are_listed(sandbox: files.Directory) -> None:
    os.close(os.open(os.fsencode(sandbox.path) + b"/\xff", os.O_CREAT))
    sandbox.create_new("a", b"")
    assert sandbox.names() == ["a", "\udcff"]
    assert sandbox.remove("\udcff")


def test_two_threads_list_one_directory_whole(sandbox: files.Directory) -> None:
    wanted = sorted(f"file{number}" for number in range(300))
    for name in wanted:
        sandbox.create_new(name, b"")
    seen: list[bool] = []
    threads = [
        threading.Thread(target=lambda: seen.extend(sandbox.names() == wanted for _ in range(30))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 60


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b"])
def test_a_name_is_a_single_component(sandbox: files.Directory, name: str) -> None:
    for attempt in (
        sandbox.stat,
        sandbox.remove,
        sandbox.open_lock,
        sandbox.open_log,
        lambda text: sandbox.read(text, 9),
        lambda text: sandbox.create_new(text, b""),
        lambda text: sandbox.replace(text, b"", durable=False),
        lambda text: sandbox.rename(text, "b"),
        lambda text: sandbox.rename("b", text),
    ):
        with pytest.raises(Refused):
            attempt(name)
    assert sandbox.names() == []


def test_a_rename_takes_the_name_from_a_file_that_is_open(sandbox: files.Directory) -> None:
    sandbox.create_new("a", b"a")
    sandbox.create_new("b", b"b")
    a, b = sandbox.open_lock("a"), sandbox.open_lock("b")
    assert files.try_lock(a)
    assert files.try_lock(b)
    sandbox.rename("a", "b")
    assert sandbox.names() == ["b"]
    assert files.names_file(sandbox, "b", a)
    assert not files.names_file(sandbox, "b", b)
    assert sandbox.read("b", 9) == b"a"
    os.close(a)
    os.close(b)
    with pytest.raises(NotFound):
        sandbox.rename("a", "b")
    os.mkdir(f"{sandbox.path}/c")
    with pytest.raises(Refused):
        sandbox.rename("b", "c")
    os.rmdir(f"{sandbox.path}/c")


def test_absent_is_none_and_only_absent(sandbox: files.Directory) -> None:
    assert sandbox.read("a", 10) is None
    assert sandbox.stat("a") is None
    assert sandbox.remove("a") is False
    sandbox.create_new("a", b"")
    assert sandbox.read("a", 10) == b""
    assert sandbox.remove("a") is True


def test_a_file_over_the_limit_is_malformed(sandbox: files.Directory) -> None:
    sandbox.create_new("a", b"x" * 11)
    assert sandbox.read("a", 11) == b"x" * 11
    with pytest.raises(Malformed, match="longer than 10"):
        sandbox.read("a", 10)


def odd(sandbox: files.Directory, kind: str) -> str:
    """Make an entry that isn't a plain file; return the path that must stay untouched."""
    path = f"{sandbox.path}/odd"
    target = f"{os.path.dirname(sandbox.path)}/target"
    Path(target).write_bytes(b"target")
    if kind == "symlink":
        os.symlink(target, path)
    elif kind == "dangling":
        os.symlink(f"{target}-missing", path)
    elif kind == "hard link":
        os.link(target, path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
    return target


ODD = ["symlink", "dangling", "hard link", "fifo", "directory", "socket"]


@pytest.mark.case("T42")
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_entry_is_neither_locked_logged_nor_read(sandbox: files.Directory, kind: str) -> None:
    target = odd(sandbox, kind)
    for attempt in (sandbox.open_lock, sandbox.open_log, lambda name: sandbox.read(name, 100)):
        with pytest.raises(Refused) as caught:
            attempt("odd")
        assert caught.value.subject == f"{sandbox.path}/odd"
        assert caught.value.hint
    assert Path(target).read_bytes() == b"target"
    assert not os.path.exists(f"{target}-missing")


@pytest.mark.case("T42")
def test_a_fifo_is_refused_without_waking_its_writer(sandbox: files.Directory) -> None:
    os.mkfifo(f"{sandbox.path}/odd")
    for attempt in (sandbox.open_lock, sandbox.open_log, lambda name: sandbox.read(name, 100)):
        with pytest.raises(Refused):
            attempt("odd")
    # A reader that came and went would have let this open succeed at that moment; there is none now either.
    with pytest.raises(OSError, match="No such device"):
        os.open(f"{sandbox.path}/odd", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "socket"])
def test_an_odd_entry_is_replaced_and_removed_without_touching_its_target(sandbox: files.Directory, kind: str) -> None:
    target = odd(sandbox, kind)
    sandbox.replace("odd", b"new", durable=False)
    assert sandbox.read("odd", 10) == b"new"
    assert Path(target).read_bytes() == b"target"
    sandbox.remove("odd")
    odd(sandbox, kind)
    assert sandbox.remove("odd")
    assert Path(target).read_bytes() == b"target"


def test_a_directory_is_neither_replaced_nor_removed(sandbox: files.Directory) -> None:
    os.mkdir(f"{sandbox.path}/odd")
    with pytest.raises(Refused):
        sandbox.replace("odd", b"new", durable=False)
    with pytest.raises(Refused):
        sandbox.remove("odd")
    assert sandbox.names() == ["odd"]


@pytest.mark.usefixtures("root_only")
def test_another_users_file_is_not_read(sandbox: files.Directory) -> None:
    sandbox.create_new("a", b"x")
    os.chown(f"{sandbox.path}/a", 12345, 12345)
    found = sandbox.stat("a")
    assert found is not None
    assert not found.mine
    with pytest.raises(Refused, match="12345"):
        sandbox.read("a", 10)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("symlink", FileKind.SYMLINK),
        ("hard link", FileKind.REGULAR),
        ("fifo", FileKind.FIFO),
        ("directory", FileKind.DIRECTORY),
        ("socket", FileKind.SOCKET),
    ],
)
def test_a_look_tells_the_kind_without_following(sandbox: files.Directory, kind: str, expected: FileKind) -> None:
    odd(sandbox, kind)
    found = sandbox.stat("odd")
    assert found is not None
    assert found.kind is expected
    assert found.links == (2 if kind in {"hard link", "directory"} else 1)


def test_a_look_tells_permissions_and_length(sandbox: files.Directory) -> None:
    sandbox.create_new("a", b"12345")
    found = sandbox.stat("a")
    assert found is not None
    assert (found.size, found.private, found.mine) == (5, True, True)
    os.chmod(f"{sandbox.path}/a", 0o640)
    found = sandbox.stat("a")
    assert found is not None
    assert not found.private


def test_create_new_takes_no_taken_name(sandbox: files.Directory) -> None:
    sandbox.create_new("a", b"first")
    with pytest.raises(AlreadyExists):
        sandbox.create_new("a", b"second")
    assert sandbox.read("a", 10) == b"first"
    os.symlink("elsewhere", f"{sandbox.path}/b")
    with pytest.raises(AlreadyExists):
        sandbox.create_new("b", b"x")


def test_a_log_is_opened_without_truncation_and_appended_to(sandbox: files.Directory) -> None:
    sandbox.create_new("log", b"old\n")
    log = sandbox.open_log("log")
    os.write(log, b"new\n")
    assert sandbox.read("log", 100) == b"old\nnew\n"
    files.truncate(log)
    os.write(log, b"fresh\n")
    os.close(log)
    assert sandbox.read("log", 100) == b"fresh\n"


def test_a_file_that_loses_its_name_while_it_is_opened_is_no_link(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader meets a writer's rename: the old content, whole, is a valid answer; a refusal isn't."""
    sandbox.create_new("a", b"old")
    real = os.open

    def racing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = real(path, flags, mode, dir_fd=dir_fd)
        if path == "a":
            monkeypatch.setattr(os, "open", real)
            sandbox.replace("a", b"new", durable=False)
        return fd

    monkeypatch.setattr(os, "open", racing)
    assert sandbox.read("a", 10) == b"old"
    assert sandbox.read("a", 10) == b"new"


def test_a_link_that_appears_while_a_file_is_opened_is_not_followed(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = odd(sandbox, "none")
    sandbox.create_new("a", b"old")
    real = os.open

    def racing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "a":
            os.unlink(f"{sandbox.path}/a")
            os.symlink(target, f"{sandbox.path}/a")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", racing)
    for attempt in (lambda: sandbox.read("a", 10), lambda: sandbox.open_lock("a"), lambda: sandbox.open_log("a")):
        with pytest.raises(Refused):
            attempt()


@pytest.mark.parametrize("umask", [0o022, 0o777])
def test_a_lock_is_created_once_and_stays(sandbox: files.Directory, umask: int) -> None:
    old = os.umask(umask)
    try:
        lock = sandbox.open_lock("lock")
    finally:
        os.umask(old)
    assert files.names_file(sandbox, "lock", lock)
    os.close(lock)
    found = sandbox.stat("lock")
    assert found is not None
    assert found.size == 0


def test_descriptors_are_close_on_exec_and_do_not_wait(sandbox: files.Directory) -> None:
    opened = [sandbox.fileno(), sandbox.open_lock("lock"), sandbox.open_log("log")]
    opened += [files.open_image(f"{sandbox.path}/log"), files.open_scratch(f"{sandbox.path}/log")]
    try:
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in opened)
        # A FIFO may take a name between the look and the open, which would wait for its other end.
        assert all(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK for fd in opened[1:])
    finally:
        for fd in opened[1:]:
            os.close(fd)
