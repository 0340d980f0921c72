from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.images import Images, unpack


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The committed images, never changed by a test."""
    return unpack(str(tmp_path_factory.mktemp("images")))


@pytest.fixture
def erofs(images: Images, tmp_path: Path) -> Path:
    return Path(shutil.copy(images.erofs, tmp_path / "distro.erofs"))


@pytest.fixture
def scratch(images: Images, tmp_path: Path) -> Path:
    return Path(shutil.copy(images.scratch, tmp_path / "scratch.ext4"))


WriteManifest = Callable[..., Path]


@pytest.fixture
def write_manifest() -> WriteManifest:
    def write(layer: Path, **changes: object) -> Path:
        manifest: dict[str, object] = {
            "format": 1,
            "artifact": layer.name,
            "artifact_sha256": hashlib.sha256(layer.read_bytes()).hexdigest(),
            "packages": [{"name": "busybox", "version": "1"}],
            "uuid": "11111111-1111-1111-1111-111111111111",
        }
        manifest.update(changes)
        path = layer.with_name(layer.name + ".manifest.json")
        path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not ...}))
        return path

    return write


def later(path: Path) -> None:
    """Set another modification time, as a rewrite does even where the clock is coarse."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))
