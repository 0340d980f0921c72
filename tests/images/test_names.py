"""Names of images: which ones no record can keep, and which ones nobody reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvx_ref.errors import Refused
from nvx_ref.images import ImageFormat, check_binding, verify_distro
from system import unix

EROFS = ImageFormat.EROFS
DESCRIPTORS = () if sys.platform == "win32" else ("/proc/self/fd/3", "/dev/fd/3", "/proc/1/fd/7")
HANDED_OVER = ("a,b;c[d].erofs", "image.vhd", "ü .erofs")


@pytest.mark.spec("622.scope3.h")
@pytest.mark.parametrize("path", ["", "a\0b", *DESCRIPTORS, "x" * 5000, "\udcff"])
def test_paths_that_no_record_can_keep_are_refused(path: str) -> None:
    with pytest.raises(Refused) as caught:
        verify_distro(path, format=EROFS)
    assert caught.value.detail == "path"


@pytest.mark.parametrize("name", HANDED_OVER)
@unix("a VMM there opens the path, so that a name is judged: tests/plan/test_command.py")
def test_names_that_are_never_handed_over_may_hold_anything(erofs: Path, name: str) -> None:
    odd = erofs.rename(erofs.with_name(name))
    with check_binding(verify_distro(str(odd), format=EROFS)) as checked:
        assert checked.proc_path == f"/proc/self/fd/{checked.fd}"
