from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
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


RUNNER = """
import pickle, subprocess, sys
binds, code, argument = pickle.load(sys.stdin.buffer)
for source, point in binds:
    subprocess.run(["mount", "--bind", source, point], check=True)
from nvx_ref.errors import NvxError
try:
    exec(code, {"ARGUMENT": argument})
except NvxError as error:
    print(error.detail)
else:
    print("-")
"""


def in_mount_namespace(binds: list[tuple[Path, Path]], code: str, argument: object) -> str | None:
    """Run code where bind mounts are in place, and return the detail of the error that it ends with, if any."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is missing: install the Debian package util-linux")
    options = ["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"]
    if subprocess.run([unshare, *options, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user can't have a mount namespace: run as root, or allow user namespaces")
    done = subprocess.run(
        [unshare, *options, sys.executable, "-c", RUNNER],
        input=pickle.dumps(([(str(source), str(point)) for source, point in binds], code, argument)),
        check=True,
        capture_output=True,
        cwd=Path(__file__).resolve().parents[2],
        timeout=60,
    )
    detail = done.stdout.decode().strip()
    return None if detail == "-" else detail
