from __future__ import annotations

from pathlib import Path

import pytest

from harness import images
from nvx_ref.configuration import SandboxRequest


@pytest.fixture
def request_(tmp_path: Path) -> SandboxRequest:
    unpacked = images.unpack(str(tmp_path / "images"))
    artifacts = images.write_artifacts(str(tmp_path / "artifacts"))
    return SandboxRequest(
        distro=unpacked.erofs,
        format="erofs",
        identity=images.EROFS_UUID,
        scratch=images.copy_scratch(str(tmp_path / "scratch.ext4")),
        artifacts=artifacts.directory,
    )
