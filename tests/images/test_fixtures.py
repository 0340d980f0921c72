"""The committed images are what their script makes, and unpacking them is safe to repeat and to race."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.images import Images, copy_scratch, unpack, write_artifacts
from nvx_ref.images import ImageFormat, seal_of
from nvx_ref.images.checked import open_sealed
from nvx_ref.images.distro import read_header
from nvx_ref.images.ext4 import read_ext4
from nvx_ref.images.gpt import read_gpt

FILES = 4
"""How many of the fields of `Images` are files."""
ROOT = Path(__file__).resolve().parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_fixtures", ROOT / "ci" / "make_fixtures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_images_are_what_the_script_makes(images: Images, tmp_path: Path) -> None:
    makers = script()
    try:
        fresh = makers.make(tmp_path)
    except makers.MissingToolError as error:
        pytest.skip(str(error))
    for committed, made in zip(images[:FILES], map(str, fresh), strict=True):
        assert os.path.getsize(made) == os.path.getsize(committed)
        with open_sealed(made) as new, open_sealed(committed) as old:
            length = new.seal.length
            if made.endswith(".ext4"):
                assert read_ext4(new.fd, length=length) == read_ext4(old.fd, length=length)
                continue
            kind = ImageFormat.EROFS if made.endswith(".erofs") else ImageFormat.GPT
            assert read_header(new, kind) == read_header(old, kind)
            if kind is ImageFormat.GPT:
                assert read_gpt(new.fd, length=length) == read_gpt(old.fd, length=length)


def test_a_missing_tool_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    makers = script()
    monkeypatch.setattr(makers.shutil, "which", lambda *_args, **_kwargs: None)
    assert makers.main([]) == 1
    assert "Debian package erofs-utils" in capsys.readouterr().err


def test_unpacking_twice_changes_nothing(tmp_path: Path) -> None:
    first = unpack(str(tmp_path))
    seals = [seal_of(path) for path in first[:FILES]]
    with open(first.scratch, "r+b") as file:
        file.write(b"data")
    assert unpack(str(tmp_path)) == first
    assert [seal_of(path) for path in first[:3]] == seals[:3]
    assert Path(first.scratch).read_bytes()[:4] == b"data"
    assert sorted(os.listdir(tmp_path)) == ["distro.erofs", "distro.gpt.img", "distro.gpt4k.img", "scratch.ext4"]
    assert os.stat(first.erofs).st_mode & 0o777 == 0o444


def test_several_processes_unpack_one_set_of_files(tmp_path: Path) -> None:
    code = (
        "import sys; from harness.images import unpack; from nvx_ref.images import seal_of\n"
        "sys.stdin.read(); print([seal_of(path) for path in unpack(sys.argv[1])[:4]])"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
        child.stdin = None
    outputs = {child.communicate()[0] for child in children}
    assert [child.returncode for child in children] == [0] * 4
    assert outputs == {f"{[seal_of(path) for path in unpack(str(tmp_path))[:FILES]]}\n"}


def test_each_scratch_is_its_own(tmp_path: Path) -> None:
    one, two = copy_scratch(str(tmp_path / "one")), copy_scratch(str(tmp_path / "two"))
    assert seal_of(one).file != seal_of(two).file
    assert os.stat(one).st_mode & 0o777 == 0o600


def test_made_up_artifacts_are_written_once(tmp_path: Path) -> None:
    first = write_artifacts(str(tmp_path))
    kernel = Path(first.kernel).read_bytes()
    assert kernel[:6] == b"\x7fELF\2\1"
    assert kernel[18:20] == b"\x3e\0"
    assert Path(first.adapter).read_bytes().startswith(b"nvx-fake-initramfs adapter\n")
    assert write_artifacts(str(tmp_path)) == first
    assert os.access(first.openvmm, os.X_OK)
