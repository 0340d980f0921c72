"""Shares where the mounts that a process is shown cover no host path: in a chroot that is no mount point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_openvmm import host, shares
from fake_openvmm.machine import Failure
from fake_openvmm.options import Options, parse


def options(tree: Path, *directories: str) -> Options:
    words = ["--machine", "microvm", "--mount-aggregate", "/run/nvx/shares"]
    for number, directory in enumerate(directories):
        words += ["--mount-child", f"c{number},{tree}/{directory}"]
    return parse(words)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one/sub", "two/point", "point"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(host, "mounts", lambda: [("0:5", "/", "/proc"), ("0:6", "/", "/dev")])
    return tmp_path


def test_they_are_taken(tree: Path) -> None:
    found = shares.resolve(options(tree, "one", "two"))
    assert [share.host for share in found] == [f"{tree}/one", f"{tree}/two"]


@pytest.mark.parametrize(("first", "second"), [("one", "one"), ("one", "one/sub"), ("one/sub", "one")])
def test_an_overlap_is_seen_in_the_paths(tree: Path, first: str, second: str) -> None:
    with pytest.raises(Failure, match="must not overlap"):
        shares.resolve(options(tree, first, second))


@pytest.mark.parametrize("order", [("one/sub", "point"), ("point", "one/sub")])
def test_an_overlap_is_seen_in_device_and_inode_of_what_is_above(
    tree: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    """As if `one` were mounted at `point` too."""
    real = os.lstat

    def bound(path: str) -> os.stat_result:
        return real(f"{tree}/one" if path == f"{tree}/point" else path)

    monkeypatch.setattr(os, "lstat", bound)
    with pytest.raises(Failure, match="must not overlap"):
        shares.resolve(options(tree, *order))


def test_an_overlap_is_seen_in_mounts_below(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounts inside two shares that show one tree."""
    inside = [("8:1", "/data", f"{tree}/one/sub"), ("8:1", "/data/more", f"{tree}/two/point")]
    monkeypatch.setattr(host, "mounts", lambda: inside)
    with pytest.raises(Failure, match="through a mount"):
        shares.resolve(options(tree, "one", "two"))
