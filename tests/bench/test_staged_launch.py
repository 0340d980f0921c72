"""How long the checks of a launch take for a small image and for a huge sparse one; a ratio is printed, none fails."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path

import pytest

from harness.images import EROFS_UUID, unpack, write_artifacts
from nvx_ref.images import ImageFormat, find_artifacts, verify_distro, verify_scratch
from nvx_ref.plan import Blocks, ColdPlan, prepare

ROUNDS = 300
SIZES = {"1 MiB": 1 << 20, "10 GiB": 10 << 30}


def test_a_staged_launch_costs_the_same_for_any_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = unpack(str(tmp_path / "images"))
    artifacts = find_artifacts(write_artifacts(str(tmp_path / "release")).directory)
    scratch = verify_scratch(images.scratch)
    plan = ColdPlan(version=1, blocks=Blocks(format=ImageFormat.EROFS, identity=EROFS_UUID))
    bindings = {}
    for name, size in SIZES.items():
        path = shutil.copy(images.erofs, tmp_path / f"{size}.erofs")
        path.chmod(0o644)
        os.truncate(path, size)
        bindings[name] = verify_distro(str(path), format=ImageFormat.EROFS, identity=EROFS_UUID)
    taken: dict[str, list[float]] = {name: [] for name in SIZES}
    for _ in range(ROUNDS):
        for name, binding in bindings.items():
            start = time.perf_counter()
            with prepare(plan, artifacts, distro=binding, scratch=scratch):
                taken[name].append(time.perf_counter() - start)
    small, huge = (statistics.median(taken[name]) for name in SIZES)
    with capsys.disabled():
        print(
            f"\nchecks of a staged launch: 1 MiB {small * 1e6:.0f} us, 10 GiB {huge * 1e6:.0f} us, {huge / small:.3f}x"
        )
    assert len(taken["10 GiB"]) == ROUNDS
