"""Shares in a changed root: the kernel's mount table may have no row for the root itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_openvmm import host, shares
from fake_openvmm.machine import Failure
from fake_openvmm.options import Options, parse


@pytest.fixture
def two(tmp_path: Path) -> Options:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    words = ["--mount-aggregate", "/run/nvx/shares"]
    for name in ("a", "b"):
        words += ["--mount-child", f"{name},{tmp_path / name}"]
    return parse(words)


def test_shares_under_no_known_mount_are_taken(two: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "mounts", lambda: [("0:21", "/", "/proc")])
    assert [share.name for share in shares.resolve(two)] == ["a", "b"]


def test_a_mount_that_both_show_is_still_found(two: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("8:1", "/inner", str(tmp_path / name / "m")) for name in ("a", "b")]
    monkeypatch.setattr(host, "mounts", lambda: rows)
    with pytest.raises(Failure, match="through a mount"):
        shares.resolve(two)
