"""Private directories, locks, claims, guards and seals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import wine

wine.only_windows()

import _winapi

from harness.witness import access
from nvx_ref.errors import AlreadyExists, Malformed, NotFound, NvxError, Refused
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileKind
from nvx_ref.platform.windows import handles, native, security
from windows_holders import IN_THE_WAY, let_go_in

# --- directories ---


def test_a_directory_is_made_private_with_its_parents_and_found_again(root: Path) -> None:
    path = str(root / "a" / "b" / "box")
    made, created = files.create_private(path)
    again, created_again = files.create_private(path)
    with made, again:
        assert (created, created_again) == (True, False)
        assert made.id == again.id
        assert made.is_current()
    for place in (root / "a", root / "a" / "b", root / "a" / "b" / "box"):
        handle = handles.open_path(str(place), native.READ_CONTROL, native.SHARE_ALL)
        try:
            found = security.permissions(handle)
            assert found.private
            assert found.mine
        finally:
            native.release(handle)


def test_a_directory_that_others_may_reach_is_refused_and_left_alone(root: Path) -> None:
    path = str(root / "shared")
    os.mkdir(path)
    access.expose(path)
    for attempt in (files.open_private, files.create_private):
        with pytest.raises(Refused) as told:
            attempt(path)
        assert told.value.detail == "mode"
    handle = handles.open_path(path, native.READ_CONTROL, native.SHARE_ALL)
    assert not security.permissions(handle).private
    native.release(handle)


def test_no_directory_and_a_file_are_told_apart(root: Path) -> None:
    with pytest.raises(NotFound):
        files.open_private(str(root / "none"))
    (root / "file").write_text("x")
    with pytest.raises(Refused) as told:
        files.open_private(str(root / "file"))
    assert told.value.detail == "kind"


def test_paths_over_260_characters_work(root: Path) -> None:
    path = str(root / ("x" * 100) / ("y" * 100) / ("z" * 100))
    box, _ = files.create_private(path)
    with box:
        box.replace("record.json", b"data", durable=True)
        assert box.read("record.json", 10) == b"data"
        os.close(files.open_image(box.child_path("record.json")))
        assert box.remove("record.json")
        assert box.remove_self()
    for place in (root / ("x" * 100) / ("y" * 100), root / ("x" * 100)):
        parent = files.open_private(str(place))
        with parent:
            assert parent.remove_self()


@wine.differs("an open file's path of over 260 characters can't be told")
def test_a_long_path_is_told_in_the_form_that_every_program_takes(root: Path) -> None:
    box, _ = files.create_private(str(root / ("x" * 100) / ("y" * 100) / ("z" * 100)))
    with box:
        box.create_new("image", b"x")
        fd = files.open_image(box.child_path("image"))
        try:
            assert files.proc_path(fd).startswith("\\\\?\\")
            os.close(os.open(files.proc_path(fd), os.O_RDONLY))
        finally:
            os.close(fd)


def test_a_removed_directory_is_gone_once_nobody_holds_it(root: Path, box: files.Directory) -> None:
    box.create_new("x", b"")
    assert not box.remove_self()
    box.remove("x")
    assert box.remove_self()
    box.close()
    assert not (root / "box").exists()
    again, created = files.create_private(str(root / "box"))
    again.close()
    assert created


# --- entries ---


def test_entries_are_written_read_replaced_and_removed(box: files.Directory) -> None:
    box.create_new("a", b"one")
    with pytest.raises(AlreadyExists):
        box.create_new("a", b"two")
    assert box.read("a", 3) == b"one"
    with pytest.raises(Malformed):
        box.read("a", 2)
    before = box.stat("a")
    box.replace("a", b"two", durable=True)
    box.replace("b", b"", durable=False)
    after = box.stat("a")
    assert before is not None
    assert after is not None
    assert before.id != after.id
    assert (after.kind, after.size, after.links, after.mine, after.private) == (FileKind.REGULAR, 3, 1, True, True)
    assert box.read("a", 10) == b"two"
    assert box.names() == ["a", "b"]
    assert (box.remove("a"), box.remove("a")) == (True, False)
    assert box.stat("a") is None
    assert box.read("a", 1) is None
    assert box.names() == ["b"]


def test_a_file_takes_another_s_name_though_both_are_open(box: files.Directory) -> None:
    box.create_new("new", b"new")
    old, fd = box.open_lock("old"), box.open_lock("new")
    box.rename("new", "old")
    # What is removed and still open may keep a name of its own until it is closed.
    assert [name for name in box.names() if not name.endswith(".tmp")] == ["old"]
    assert box.read("old", 10) == b"new"
    assert files.names_file(box, "old", fd)
    assert not files.names_file(box, "old", old)
    os.close(old)
    os.close(fd)
    assert box.names() == ["old"]
    with pytest.raises(NvxError):
        box.rename("none", "old")


def test_many_names_are_listed(box: files.Directory) -> None:
    wanted = sorted(f"{number:04}-{'n' * 60}" for number in range(700))
    for name in wanted:
        box.create_new(name, b"")
    assert box.names() == wanted


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a:stream", "a\0", "a*", "a.", "a "])
def test_a_name_that_windows_would_take_for_another_is_refused(box: files.Directory, name: str) -> None:
    for attempt in (box.stat, box.remove, box.open_lock, lambda name: box.create_new(name, b"")):
        with pytest.raises(Refused):
            attempt(name)
    assert box.names() == []


@pytest.mark.case("T42")
def test_a_hard_link_and_a_directory_are_no_lock(root: Path, box: files.Directory) -> None:
    victim = root / "victim"
    victim.write_bytes(b"precious")
    os.link(victim, box.child_path("lock"))
    os.mkdir(box.child_path("log"))
    for attempt in (lambda: box.open_lock("lock"), lambda: box.open_log("log"), lambda: box.read("lock", 100)):
        with pytest.raises(Refused):
            attempt()
    with pytest.raises(Refused):
        box.remove("log")
    assert victim.read_bytes() == b"precious"


@pytest.mark.case("T42")
@wine.differs("a symbolic link's attributes aren't those of a reparse point")
def test_a_link_is_no_lock(root: Path, box: files.Directory) -> None:
    victim = root / "victim"
    victim.write_bytes(b"precious")
    try:
        os.symlink(victim, box.child_path("lock"))
    except OSError as error:
        pytest.skip(f"this user may not make links: {error}")
    with pytest.raises(Refused) as told:
        box.open_lock("lock")
    assert told.value.detail == "kind"
    assert box.remove("lock")
    assert victim.read_bytes() == b"precious"


@pytest.mark.case("T42")
@wine.differs(wine.NO_LINKS)
def test_a_junction_is_neither_a_lock_nor_a_sandbox(root: Path, box: files.Directory) -> None:
    (root / "elsewhere").mkdir()
    for name in (box.child_path("lock"), str(root / "sandbox")):
        _winapi.CreateJunction(str(root / "elsewhere"), name)
    for attempt in (
        lambda: box.open_lock("lock"),
        lambda: box.open_log("lock"),
        lambda: box.read("lock", 100),
        lambda: files.open_private(str(root / "sandbox")),
        lambda: files.create_private(str(root / "sandbox")),
    ):
        with pytest.raises(Refused) as told:
            attempt()
        assert told.value.detail == "kind"
    assert list((root / "elsewhere").iterdir()) == []


# --- another program in the way ---


@pytest.mark.case("T48")
@pytest.mark.parametrize("action", ["replace", "remove", "read"])
def test_a_scanner_that_shares_too_little_is_waited_for(python, box: files.Directory, action: str) -> None:
    box.create_new("state", b"old")
    child = python(IN_THE_WAY, box.child_path("state"), "none")
    timer = let_go_in(child, 0.3)
    if action == "replace":
        box.replace("state", b"new", durable=False)
        assert box.read("state", 10) == b"new"
    elif action == "remove":
        assert box.remove("state")
    else:
        assert box.read("state", 10) == b"old"
    timer.join()


@pytest.mark.case("T48")
def test_what_stays_in_the_way_is_told_and_leaves_the_old_content(
    python, box: files.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "RETRY_SECONDS", 0.2)
    box.create_new("state", b"old")
    child = python(IN_THE_WAY, box.child_path("state"), "read")
    with pytest.raises(Refused) as told:
        box.replace("state", b"new", durable=False)
    assert "Windows error" in str(told.value)
    assert box.names() == ["state"]
    assert box.read("state", 10) == b"old"
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stdout.readline()
    box.replace("state", b"new", durable=False)
