"""Reparse points of Windows, junctions above all, in host paths: their modes say that they are directories."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvx_ref.errors import Refused
from nvx_ref.plan import Share, plan_shares


def refusal(host: str) -> str | None:
    with pytest.raises(Refused) as told:
        plan_shares([Share(target="/a", host=host)])
    return told.value.detail


def test_a_junction_in_a_host_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one/a", "two"):
        (tmp_path / name).mkdir(parents=True)
    real = os.lstat
    junction = str(tmp_path / "one")

    def looked_at(path: str) -> SimpleNamespace:
        found = {name: getattr(real(path), name) for name in ("st_mode", "st_dev", "st_ino", "st_uid", "st_gid")}
        attributes = stat.FILE_ATTRIBUTE_REPARSE_POINT if path == junction else 0
        return SimpleNamespace(**found, st_file_attributes=attributes)

    monkeypatch.setattr(os, "lstat", looked_at)
    assert refusal(junction) == "host-path"
    assert refusal(f"{junction}/a") == "host-path"
    assert plan_shares([Share(target="/a", host=str(tmp_path / "two"))])
