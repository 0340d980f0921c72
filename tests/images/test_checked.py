"""Checked files own their descriptors; the entrypoint check needs no image at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from nvx_ref.errors import Malformed, Refused
from nvx_ref.images import CheckedFile, ImageFormat, check_binding, check_entrypoint, check_plain, distro, verify_distro
from nvx_ref.images.checked import open_sealed
from nvx_ref.platform import files
from system import open_descriptors, unix
from tests.images.conftest import WriteManifest, later

EROFS = ImageFormat.EROFS


def test_a_file_that_can_t_be_sealed_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel").write_bytes(b"x")
    before = open_descriptors()

    def refuse(fd: int) -> NoReturn:
        raise Refused("its file system has no identities", subject=f"descriptor {fd}")

    monkeypatch.setattr(files, "seal", refuse)
    with pytest.raises(Refused):
        check_plain(str(tmp_path / "kernel"), "kernel")
    assert open_descriptors() <= before


@pytest.mark.skipif(not files.DESCRIPTORS_HAVE_PATHS, reason="the VMM opens the file by its own path here")
@pytest.mark.parametrize("way", ["open_image", "open_scratch"])
def test_a_file_that_the_vmm_couldn_t_open_by_its_descriptor_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "image").write_bytes(b"x")
    opened = getattr(files, way)

    def without_proc(path: str) -> int:
        return int(opened(path.replace("/proc/", f"{tmp_path}/no-proc/")))

    monkeypatch.setattr(files, way, without_proc)
    before = open_descriptors()
    with pytest.raises(Refused, match="by the name of its descriptor") as caught:
        open_sealed(str(tmp_path / "image"), writable=way == "open_scratch")
    assert (caught.value.subject, caught.value.detail) == (str(tmp_path / "image"), "reopen")
    assert open_descriptors() <= before


@pytest.mark.spec("622p1.scope1")
@pytest.mark.spec("622p1.acc.6")
@pytest.mark.parametrize(
    "entrypoint",
    [
        "/usr/lib/systemd/systemd",
        "/lib/systemd/systemd",
        "//lib/systemd/systemd",
        "/lib/./systemd/../systemd/systemd",
        "/lib/systemd/systemd/",
    ],
)
def test_systemd_is_no_entrypoint(entrypoint: str) -> None:
    with pytest.raises(Refused) as caught:
        check_entrypoint(entrypoint)
    assert caught.value.detail == "systemd-entrypoint"


@pytest.mark.parametrize("entrypoint", ["/bin/sh", "/opt/lib/systemd/systemd", "/lib/systemd/systemd-run"])
def test_other_entrypoints_pass(entrypoint: str) -> None:
    check_entrypoint(entrypoint)


def test_only_the_checks_make_checked_files() -> None:
    with pytest.raises(TypeError, match="made by the checks"):
        CheckedFile()


@pytest.mark.spec("622p1.acc.7")
@unix("an open file keeps its name: tests/platform/windows/test_guards.py")
def test_a_checked_file_owns_its_descriptor(erofs: Path) -> None:
    before = open_descriptors()
    with check_binding(verify_distro(str(erofs), format=EROFS)) as checked:
        assert not os.get_inheritable(checked.fd)
        assert os.stat(checked.proc_path).st_ino == erofs.stat().st_ino
        erofs.unlink()
        assert os.stat(checked.proc_path).st_size == 4096
    assert open_descriptors() <= before
    checked.close()
    with pytest.raises(ValueError, match="is closed"):
        _ = checked.fd


def test_a_failed_check_leaves_nothing_open(erofs: Path, write_manifest: WriteManifest) -> None:
    write_manifest(erofs)
    binding = verify_distro(str(erofs), format=EROFS)
    later(erofs)
    before = open_descriptors()
    with pytest.raises(Refused):
        check_binding(binding)
    with pytest.raises(Malformed):
        verify_distro(str(erofs), format=ImageFormat.GPT)
    assert open_descriptors() <= before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_forgotten_checked_file_warns_and_closes(erofs: Path) -> None:
    before = open_descriptors()
    forgotten = [check_plain(str(erofs), "kernel")]
    with pytest.warns(ResourceWarning, match="never closed"):
        forgotten.clear()
    assert open_descriptors() <= before


@pytest.mark.case("T54")
@pytest.mark.spec("622.scope3.a")
@unix("an open file keeps its name: tests/platform/windows/test_guards.py")
def test_what_takes_the_name_during_the_check_is_not_what_was_checked(
    erofs: Path, tmp_path: Path, write_manifest: WriteManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is opened once: what is compared is what the VMM gets, whenever its name is taken."""
    write_manifest(erofs)
    binding = verify_distro(str(erofs), format=EROFS)
    other = Path(shutil.copy2(erofs, tmp_path / "other.erofs"))
    checked, swapped = erofs.stat(), other.stat()
    real = distro.open_manifest

    def swap(path: str) -> CheckedFile | None:
        other.rename(erofs)
        return real(path)

    monkeypatch.setattr(distro, "open_manifest", swap)
    with check_binding(binding) as image:
        found = os.fstat(image.fd)
    assert (found.st_dev, found.st_ino) == (checked.st_dev, checked.st_ino)
    assert erofs.stat().st_ino == swapped.st_ino
