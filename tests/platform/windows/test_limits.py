"""Names and paths at their limits, and what other file systems, kernels and accounts say than the usual ones."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wine

wine.only_windows()

import _winapi

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Refused
from nvx_ref.platform import files, spawn
from nvx_ref.platform.contract import FileKind
from nvx_ref.platform.windows import handles, native, security

OLDER = (
    native.STATUS_INVALID_INFO_CLASS,
    native.STATUS_NOT_IMPLEMENTED,
    native.STATUS_NOT_SUPPORTED,
    native.STATUS_INVALID_PARAMETER,
    native.STATUS_INVALID_DEVICE_REQUEST,
    native.STATUS_ILLEGAL_FUNCTION,
)
NEWER = (64, 65)
"""The classes of a removal and of a renaming that not everybody knows."""


def signed(status: int) -> int:
    return ctypes.c_int32(status).value


# --- structures ---

SIZES = {
    native.Overlapped: 32,
    native.UnicodeString: 16,
    native.ObjectAttributes: 48,
    native.IoStatus: 16,
    native.IdInfo: 24,
    native.BasicInfo: 40,
    native.StandardInfo: 24,
    native.TagInfo: 8,
    native.PipeInfo: 40,
    native.StartupInfo: 112,
    native.ProcessInformation: 24,
    native.BasicProcess: 48,
}
"""What the headers of 64-bit Windows make of them."""


@pytest.mark.parametrize(("structure", "size"), SIZES.items(), ids=[one.__name__ for one in SIZES])
def test_a_structure_is_as_large_as_the_system_s(structure: type[ctypes.Structure], size: int) -> None:
    assert ctypes.sizeof(structure) == size


# --- names ---


def test_a_name_is_counted_in_units_of_which_some_characters_have_two() -> None:
    assert (native.kernel_name("a\U0001f600").length, native.kernel_name("a\U0001f600").maximum) == (6, 8)
    assert native.kernel_name("").length == 0


def test_a_name_that_no_kernel_takes_is_refused_and_not_cut() -> None:
    assert native.kernel_name("x" * native.LONGEST_NAME).maximum == 0xFFFE
    for text in ("x" * (native.LONGEST_NAME + 1), "\U0001f600" * (native.LONGEST_NAME // 2 + 1)):
        with pytest.raises(OSError) as told:
            native.kernel_name(text)
        assert told.value.errno == errno.ENAMETOOLONG


@pytest.mark.skipif(wine.version() is not None, reason="Wine has as many letters as the locale of its host")
def test_a_directory_of_any_name_is_that_one(root: Path) -> None:
    path = str(root / "box \U0001f600\U0001f600")
    made, _ = files.create_private(path)
    with made:
        assert os.listdir(root) == [os.path.basename(path)]
        made.create_new("\U0001f600", b"x")
        assert made.names() == ["\U0001f600"]
        made.replace("\U0001f600", b"y", durable=False)
        assert made.read("\U0001f600", 10) == b"y"
        assert made.remove("\U0001f600")


def test_a_file_among_the_parents_of_a_directory_is_named(root: Path) -> None:
    (root / "file").write_text("x")
    for path in (root / "file" / "box", root / "file" / "above" / "box"):
        with pytest.raises(Refused) as told:
            files.create_private(str(path))
        assert (told.value.subject, told.value.detail) == (str(root / "file"), "kind")


@wine.differs(wine.NO_LINKS)
def test_a_junction_that_leads_nowhere_makes_nothing_there(root: Path) -> None:
    (root / "elsewhere").mkdir()
    _winapi.CreateJunction(str(root / "elsewhere"), str(root / "box"))
    (root / "elsewhere").rmdir()
    for path in (root / "box", root / "box" / "inner"):
        with pytest.raises(Refused) as told:
            files.create_private(str(path))
        assert told.value.detail == "kind"
    assert os.listdir(root) == ["box"]


# --- a long working directory ---


@pytest.fixture
def deep(root: Path) -> Iterator[str]:
    places = [root / ("x" * 100), root / ("x" * 100) / ("y" * 100), root / ("x" * 100) / ("y" * 100) / ("z" * 100)]
    files.create_private(str(places[-1]))[0].close()
    yield str(places[-1])
    for place in reversed(places):
        with files.open_private(str(place)) as left:
            left.remove_self()


def started_in(root: Path, directory: str) -> spawn.Child:
    stdin, output = spawn.pipe_with(b""), os.open(root / "out", os.O_RDWR | os.O_CREAT | os.O_NOINHERIT)
    try:
        return spawn.spawn([sys.executable, "-c", ""], stdin=stdin, output=output, allowed=[], cwd=directory)
    finally:
        os.close(stdin)
        os.close(output)


@pytest.mark.skipif(wine.version() is not None, reason="Wine starts a process in a directory of any length")
def test_a_process_starts_in_a_long_path_s_directory_by_its_short_name(root: Path, deep: str) -> None:
    if not native.get_short_path(f"\\\\?\\{deep}", ctypes.create_unicode_buffer(259), 259):
        pytest.skip("this volume has no short names")
    child = started_in(root, deep)
    assert child.pin().wait(Deadline.after(60))
    child.close()


def test_a_directory_without_a_short_name_is_refused_by_its_length(
    root: Path, deep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "get_short_path", lambda *_: 0)
    with pytest.raises(Refused) as told:
        started_in(root, deep)
    assert (told.value.subject, told.value.detail) == (deep, "too-long")


# --- other file systems ---


@pytest.mark.parametrize("status", OLDER, ids=hex)
def test_a_file_system_that_knows_no_newer_calls_gets_the_older_ones(
    box: files.Directory, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    known = handles._set
    monkeypatch.setattr(handles, "_set", lambda *given: signed(status) if given[1] in NEWER else known(*given))
    box.create_new("a", b"old")
    box.replace("a", b"new", durable=False)
    assert box.read("a", 10) == b"new"
    assert box.remove("a")
    assert box.names() == []
    assert box.remove_self()


def test_a_file_without_an_identity_is_refused_with_that_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "image").write_bytes(b"x")
    fd = files.open_image(str(root / "image"))

    def unknown(*_: object) -> None:
        raise native.error_of(native.ERROR_INVALID_PARAMETER)

    monkeypatch.setattr(handles, "_query", unknown)
    try:
        with pytest.raises(Refused) as told:
            files.file_id(fd)
    finally:
        os.close(fd)
    assert told.value.detail == "ENOTSUP"
    assert "file system" in str(told.value.hint)


@pytest.mark.parametrize("tag", [0x8000_0013, 0x8000_0017, 0x9000_001A, 0x9000_701A], ids=hex)
def test_what_the_system_keeps_elsewhere_is_a_file_once_links_are_followed(tag: int) -> None:
    mark = native.ATTRIBUTE_REPARSE
    assert handles._kind(mark, tag, followed=True) is FileKind.REGULAR
    assert handles._kind(mark | native.ATTRIBUTE_DIRECTORY, tag, followed=True) is FileKind.DIRECTORY
    assert handles._kind(mark, tag, followed=False) is FileKind.REPARSE


@pytest.mark.parametrize("tag", [0xA000_0003, native.REPARSE_SYMLINK, 0x8000_001B, 0x8000_0024], ids=hex)
def test_links_and_special_files_are_none_whether_followed_or_not(tag: int) -> None:
    for followed in (True, False):
        assert handles._kind(native.ATTRIBUTE_REPARSE, tag, followed=followed) is not FileKind.REGULAR


# --- access lists ---


@pytest.mark.parametrize(
    ("rights", "writes"),
    [("FRFX", False), ("0x1200a9", False), ("CCLORC", False), ("DT", True), ("CCRP", True), ("0x1301bf", True)],
)
def test_a_right_to_change_something_is_seen_in_letters_and_in_bits(rights: str, *, writes: bool) -> None:
    found = security.Permissions(f"O:{security.own_name()}D:(A;;FA;;;SY)(A;;{rights};;;BU)")
    assert found.others_write() is writes
    assert not found.private
