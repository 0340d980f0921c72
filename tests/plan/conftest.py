from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from harness.images import EROFS_UUID, unpack, write_artifacts
from nvx_ref.images import (
    Artifacts,
    DistroBinding,
    ImageFormat,
    ScratchBinding,
    find_artifacts,
    verify_distro,
    verify_scratch,
)
from nvx_ref.plan import Blocks, ColdPlan, Upper


class Inputs(msgspec.Struct):
    """Everything that one launch needs, on disk."""

    directory: Path
    artifacts: Artifacts
    distro: DistroBinding
    scratch: ScratchBinding


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("staged")
    unpack(str(directory / "images"))
    write_artifacts(str(directory / "release"))
    return directory


@pytest.fixture
def inputs(staged: Path, tmp_path: Path) -> Inputs:
    shutil.copytree(staged, tmp_path, dirs_exist_ok=True)
    return Inputs(
        directory=tmp_path,
        artifacts=find_artifacts(str(tmp_path / "release")),
        distro=verify_distro(str(tmp_path / "images/distro.erofs"), format=ImageFormat.EROFS, identity=EROFS_UUID),
        scratch=verify_scratch(str(tmp_path / "images/scratch.ext4")),
    )


@pytest.fixture
def plan() -> ColdPlan:
    """The contract's worked example."""
    return ColdPlan(version=1, blocks=Blocks(format=ImageFormat.EROFS, identity=EROFS_UUID))


@pytest.fixture
def ram_plan() -> ColdPlan:
    return ColdPlan(version=1, blocks=Blocks(format=ImageFormat.EROFS, identity=EROFS_UUID, upper=Upper.RAMFS))
