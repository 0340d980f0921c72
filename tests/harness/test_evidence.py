"""What is kept of a test that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.witness import evidence as evidence_module
from harness.witness.evidence import Evidence


def test_a_file_that_can_t_be_read_is_told_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = tmp_path / "s" / "box"
    box.mkdir(parents=True)
    for name in ("lifecycle.lock", "notes.txt"):
        (box / name).write_text("text")

    def opened(path: str, *mode: str) -> object:
        if path == str(box / "lifecycle.lock"):
            raise PermissionError(13, "Permission denied")
        return open(path, *mode)

    monkeypatch.setattr(evidence_module, "open", opened, raising=False)
    evidence = Evidence(str(tmp_path / "evidence"), root=str(tmp_path / "s"))
    evidence.keep_files("state", [str(tmp_path / "s")])
    kept = {path.name: path.read_bytes() for path in (tmp_path / "evidence").rglob("*") if path.is_file()}
    assert kept["lifecycle.lock"] == b"<it can't be read: Permission denied>\n"
    assert kept["notes.txt"] == b"text"


def test_what_can_not_be_kept_keeps_nobody_from_what_comes_next(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    evidence = Evidence(str(tmp_path / "file" / "it"), root=str(tmp_path))
    assert evidence.lost == ""
    evidence.keep("survivors/1.txt", "explained")
    evidence.keep_files("state", [str(tmp_path)])
    assert evidence.lost
    assert (tmp_path / "file").read_bytes() == b""
