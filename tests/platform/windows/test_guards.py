"""Locks, claims, guards and seals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wine

wine.only_windows()

from nvx_ref.deadline import Deadline
from nvx_ref.errors import NvxError
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileKind
from nvx_ref.platform.windows import handles, native
from windows_holders import HOLD, wait_until

# --- lock ---


def test_a_lock_excludes_other_handles_and_processes_and_ends_with_its_process(python, box: files.Directory) -> None:
    mine, other = box.open_lock("lock"), box.open_lock("lock")
    assert (files.try_lock(mine), files.try_lock(other)) == (True, False)
    files.unlock(mine)
    files.unlock(mine)
    assert files.try_lock(other)
    files.unlock(other)
    child = python(HOLD, box.path, "lock", "lock")
    assert not files.try_lock(mine)
    child.kill()
    child.wait()
    wait_until(lambda: files.try_lock(mine))
    assert files.names_file(box, "lock", mine)
    box.remove("lock")
    os.close(mine)
    os.close(other)
    assert box.stat("lock") is None


# --- claim ---


@pytest.mark.spec("620.scope2.c")
def test_a_claim_is_a_write_handle_and_lasts_as_long_as_any(box: files.Directory) -> None:
    log = box.open_log("log")
    which = files.file_id(log)
    assert files.claim_is_held(box, "log", which) is False
    assert files.claim_log(log)
    os.write(log, b"first\n")
    files.truncate(log)
    os.write(log, b"second\n")
    second = box.open_log("log")
    assert not files.claim_log(second)
    assert files.claim_is_held(box, "log", which) is True
    assert box.read("log", 100) == b"second\n"
    # A copy that a child inherited keeps it.
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"], stdin=subprocess.PIPE, stdout=log
    )
    os.close(log)
    assert files.claim_is_held(box, "log", which) is True
    child.communicate()
    wait_until(lambda: files.claim_is_held(box, "log", which) is False)
    assert files.claim_log(second)
    os.close(second)


@pytest.mark.case("T07a")
def test_a_rotated_or_missing_log_proves_nothing(box: files.Directory) -> None:
    log = box.open_log("log")
    which = files.file_id(log)
    assert files.claim_log(log)
    os.rename(box.child_path("log"), box.child_path("log.1"))
    assert files.claim_is_held(box, "log", which) is None
    box.create_new("log", b"")
    assert files.claim_is_held(box, "log", which) is None
    assert files.claim_is_held(box, "log.1", which) is True
    os.close(log)


def test_two_who_look_at_a_claim_don_t_take_each_other_for_the_vmm(box: files.Directory) -> None:
    log = box.open_log("log")
    which = files.file_id(log)
    looker = box.open_handle("log", native.FILE_GENERIC_READ, native.SHARE_READ | native.SHARE_DELETE)
    assert files.claim_is_held(box, "log", which) is False
    assert not files.claim_log(log)
    native.release(looker)
    assert files.claim_log(log)
    os.close(log)


# --- images ---


@pytest.mark.spec("622.acc.5")
@pytest.mark.case("T55")
@pytest.mark.spec("622.scope3.c")
def test_a_guarded_image_can_t_be_written_renamed_or_removed(root: Path) -> None:
    image = root / "image"
    image.write_bytes(b"x" * 100)
    fd = files.open_image(str(image))
    for attempt in (
        lambda: image.open("r+b"),
        lambda: image.rename(root / "other"),
        image.unlink,
        lambda: (root / "new").replace(image),
    ):
        (root / "new").write_bytes(b"evil")
        with pytest.raises(PermissionError):
            attempt()
    # By the name that the VMM gets, it reads the checked object.
    with open(files.proc_path(fd), "rb") as file:
        assert file.read(1) == b"x"
    os.close(fd)
    image.rename(root / "other")
    with (root / "other").open("r+b"):
        pass


@wine.differs("a directory above an open file can be renamed")
def test_no_directory_above_a_guarded_image_can_be_renamed(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "image").write_bytes(b"x")
    fd = files.open_image(str(root / "a" / "image"))
    try:
        with pytest.raises(PermissionError):
            (root / "a").rename(root / "b")
    finally:
        os.close(fd)


@pytest.mark.spec("622.scope3.d")
def test_a_scratch_has_one_owner_which_a_child_keeps(root: Path) -> None:
    path = str(root / "scratch")
    Path(path).write_bytes(b"x" * 100)
    first, second = files.open_scratch(path), files.open_scratch(path)
    assert files.try_own(first)
    assert not files.try_own(second)
    os.close(second)
    # Who shares deletion, as a VMM does, reads and writes it; nobody removes it.
    vmm = handles.open_path(path, native.FILE_GENERIC_READ | native.FILE_GENERIC_WRITE, native.SHARE_ALL)
    handles.write_all(vmm, b"vmm")
    native.release(vmm)
    with pytest.raises(PermissionError):
        os.unlink(path)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=first,
    )
    os.close(first)
    third = files.open_scratch(path)
    assert not files.try_own(third)
    child.communicate()
    wait_until(lambda: files.try_own(third))
    os.close(third)


def test_a_seal_tells_a_changed_file(root: Path) -> None:
    image = root / "image"
    image.write_bytes(b"one")
    fd = files.open_image(str(image))
    first = files.seal(fd)
    os.close(fd)
    assert first.scheme == "windows-file-v1"
    assert (first.kind, first.length) == (FileKind.REGULAR, 3)
    assert first.modified == os.stat(image).st_mtime_ns
    image.write_bytes(b"longer")
    os.utime(image, ns=(first.modified, first.modified))
    fd = files.open_image(str(image))
    second = files.seal(fd)
    os.close(fd)
    assert second.id == first.id
    assert (second.length, second.modified) == (6, first.modified)
    assert second.changed != first.changed


def test_a_staged_file_must_be_read_only_and_this_user_s(root: Path) -> None:
    box, _ = files.create_private(str(root / "staged"))
    with box:
        box.create_new("image", b"x")
        path = box.child_path("image")
        assert files.staging_fault(path) == "it isn't read-only"
        os.chmod(path, 0o400)
        assert files.staging_fault(path) is None
        os.chmod(path, 0o600)
        with pytest.raises(NvxError):
            files.staging_fault(box.child_path("none"))


def test_a_device_s_name_is_no_image() -> None:
    fd = files.open_image("NUL")
    try:
        assert files.seal(fd).kind is not FileKind.REGULAR
    finally:
        os.close(fd)


def test_pauses_end_with_their_deadline() -> None:
    assert Deadline.after(0.05).pause(30.0)
    assert not Deadline(0.0).pause()
