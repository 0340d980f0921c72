"""Reports are published whole, and never over anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import wine
from nvx_ref.errors import NotFound, Refused
from nvx_ref.outcome import check_destination, encode_exec_report, publish
from system import symlink


def test_an_exec_report_says_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    check_destination(str(path))
    publish(str(path), encode_exec_report("exit", 7))
    report = json.loads(path.read_text())
    assert list(report) == ["schema_version", "operation_id", "outcome"]
    assert report["outcome"] == {"operation": "exec", "category": "exit", "status_code": 7}
    assert len(bytes.fromhex(report["operation_id"])) == 16
    assert os.listdir(tmp_path) == ["report.json"]


def test_nothing_is_replaced_and_no_staging_stays(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("mine")
    for attempt in (lambda: check_destination(str(path)), lambda: publish(str(path), b"{}")):
        with pytest.raises(Refused, match="exists"):
            attempt()
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_report_is_whole_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    sync, link = os.fsync, os.link

    def noted_sync(fd: int) -> None:
        seen.append(os.fstat(fd).st_size)
        sync(fd)

    def noted_link(*names: str) -> None:
        seen.append("link")
        link(*names)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "link", noted_link)
    publish(str(tmp_path / "report.json"), b"{}\n")
    assert seen == [3, "link"]


def test_a_dangling_link_counts_as_existing(tmp_path: Path) -> None:
    symlink(tmp_path / "report.json", "none")
    with pytest.raises(Refused, match="exists"):
        check_destination(str(tmp_path / "report.json"))


def test_the_directory_must_be_a_real_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "file").touch()
    if wine.version() is None:
        symlink(tmp_path / "link", "real")
    for name in ("file",) if wine.version() else ("link", "file"):
        with pytest.raises(Refused):
            check_destination(str(tmp_path / name / "report.json"))
    with pytest.raises(NotFound):
        check_destination(str(tmp_path / "none" / "report.json"))
    for path in ("", str(tmp_path) + "/", "a\0b"):
        with pytest.raises(Refused):
            check_destination(path)
