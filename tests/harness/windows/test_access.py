"""Whose files are, and who else may reach them, whatever account runs the tests."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import wine

wine.only_windows()

from harness import platform
from harness.witness import access

LOCAL_ADMINISTRATOR = "LA"


@pytest.fixture
def users() -> Iterator[None]:
    """Nothing that was told of a user is remembered."""
    access.own_name.cache_clear()
    yield
    access.own_name.cache_clear()


@pytest.mark.usefixtures("users")
def test_this_user_is_known_by_the_two_letters_that_some_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "own_sid", lambda: "S-1-5-32-545")
    assert access.own_name() == "BU"
    assert access.others("O:BUD:(A;;FA;;;BU)(A;;FA;;;SY)") == []


def test_what_an_elevated_user_makes_is_reached_by_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the administrators', and its list names the user."""
    monkeypatch.setattr(access, "own_name", lambda: LOCAL_ADMINISTRATOR)
    assert access.others("O:BAD:(A;ID;FA;;;SY)(A;ID;FA;;;BA)(A;ID;FA;;;LA)") == []
    assert access.others("O:BAD:(A;ID;FA;;;LA)(A;;FR;;;WD)") == ["WD"]
    assert access.others("O:BAD:NO_ACCESS_CONTROL") == ["everybody"]


def test_a_file_is_its_maker_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    assert access.owned(str(tmp_path / "file"))
    owner = access.describe(str(tmp_path / "file")).partition("O:")[2].partition("D:")[0]
    assert owner in {access.own_name(), "BA"}
    monkeypatch.setattr(access, "describe", lambda _: "O:LAD:(A;;FA;;;LA)")
    monkeypatch.setattr(access, "own_name", lambda: LOCAL_ADMINISTRATOR)
    assert access.owned(str(tmp_path / "file"))
    monkeypatch.setattr(access, "own_name", lambda: "S-1-5-21-1-2-3-1001")
    assert not access.owned(str(tmp_path / "file"))


@pytest.mark.skipif(wine.version() is not None, reason="Wine makes up the short names that it is asked for")
def test_runs_are_where_their_long_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a long name of a directory"
    place.mkdir()
    short = ctypes.create_unicode_buffer(1024)
    ctypes.WinDLL("kernel32").GetShortPathNameW(ctypes.c_wchar_p(str(place)), short, len(short))
    if short.value in {"", str(place)}:
        pytest.skip("this volume has no short names")
    monkeypatch.setattr(tempfile, "tempdir", short.value)
    assert platform.short_root() == os.path.realpath(place)
