"""Removing what tests made, with another program in the way as on Windows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import removing


class InTheWayError(PermissionError):
    """What Windows says."""

    winerror = 32


def held(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Have each removal of a file fail so often."""
    remove, tried = os.unlink, list[str]()

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        tried.append(path)
        if len(tried) <= times:
            raise InTheWayError
        remove(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    return tried


def test_a_file_that_is_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    tried = held(monkeypatch, 3)
    removing.remove_file(str(tmp_path / "file"))
    assert len(tried) == 4
    assert os.listdir(tmp_path) == []


def test_what_stays_held_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(removing, "PATIENCE", 0.1)
    held(monkeypatch, 1000)
    with pytest.raises(InTheWayError):
        removing.remove_file(str(tmp_path / "file"))


def test_what_nobody_holds_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(InTheWayError, "winerror", None)
    tried = held(monkeypatch, 1000)
    with pytest.raises(InTheWayError):
        removing.remove_file(str(tmp_path / "file"))
    assert len(tried) == 2
