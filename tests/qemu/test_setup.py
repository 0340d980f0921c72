"""The set-up: what is missing is named at once, what is cut short leaves nothing, what is built is found again."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from harness import backends
from harness.errors import HarnessError, Unavailable
from harness.images import guest
from harness.qemu import initramfs, kernel, setup, tools
from harness.settings import Settings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NVX_HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "qemu"


@pytest.fixture
def built(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A set-up whose steps are made up; gives what was done."""
    del cache
    done: list[str] = []

    def build(say: object, made: str, staged: str, package: str | None) -> str:
        del say, staged
        done.append(package or "fetched")
        Path(made, setup.KERNEL).write_text("kernel")
        if package == "broken":
            raise HarnessError("it broke")
        return "6.1.0-1"

    monkeypatch.setattr(setup, "_require", lambda *_, **__: None)
    monkeypatch.setattr(setup, "_build", build)
    return done


def test_what_is_built_is_found_and_not_built_again(cache: Path, built: list[str]) -> None:
    said: list[str] = []
    assert setup.find() is None
    first = setup.set_up(said.append)
    assert setup.find() == first
    assert first.release == "6.1.0-1"
    assert setup.set_up(said.append) == first
    assert built == ["fetched"]
    assert said[-1].endswith("set up already, kernel 6.1.0-1")
    setup.set_up(said.append, again=True)
    setup.set_up(said.append, package="other.deb")
    assert built == ["fetched", "fetched", "other.deb"]
    assert [path.name for path in cache.iterdir()] == [Path(first.directory).name]


def test_a_set_up_that_is_cut_short_leaves_nothing_and_keeps_what_was_there(cache: Path, built: list[str]) -> None:
    with pytest.raises(HarnessError, match="it broke"):
        setup.set_up(built.append, package="broken")
    assert list(cache.iterdir()) == []
    kept = setup.set_up(built.append)
    with pytest.raises(HarnessError, match="it broke"):
        setup.set_up(built.append, package="broken")
    assert setup.find() == kept
    assert [path.name for path in cache.iterdir()] == [Path(kept.directory).name]


def test_other_sources_are_another_set_up(
    cache: Path, built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.set_up(built.append)
    monkeypatch.setattr(setup, "sources", lambda: str(tmp_path))
    (tmp_path / "new.c").write_text("int main(void) { return 0; }")
    assert setup.find() is None
    assert len(list(cache.iterdir())) == 1


def test_every_missing_package_is_named_with_the_line_that_installs_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "find", lambda name: None if name in {"lz4", "musl-gcc"} else f"/usr/bin/{name}")
    monkeypatch.setattr(guest, "lacking", lambda _: ("mkfs.erofs (Debian: erofs-utils)",))
    with pytest.raises(Unavailable) as error:
        setup.set_up([].append, install=False)
    assert str(error.value).endswith("apt-get install --no-install-recommends erofs-utils lz4 musl-tools")
    assert list(cache.iterdir()) == []
    del tmp_path


def test_root_has_them_installed_and_then_they_must_be_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(setup, "_packages", lambda: ["lz4"])
    monkeypatch.setattr(tools, "can_install", lambda: True)
    monkeypatch.setattr(tools, "install", lambda packages: asked.append(list(packages)))
    said: list[str] = []
    with pytest.raises(Unavailable, match="lz4"):
        setup.set_up(said.append)
    assert asked == [["lz4"]]
    assert said == ["0/5 packages: installing lz4"]
    assert list(cache.iterdir()) == []


def test_a_kernel_that_is_not_there_is_refused(cache: Path) -> None:
    with pytest.raises(HarnessError, match=r"--kernel /nowhere\.deb: there is no such file"):
        setup.set_up([].append, package="/nowhere.deb")
    del cache


def test_without_a_set_up_the_backend_says_how_to_get_one(cache: Path) -> None:
    with pytest.raises(Unavailable, match="nvx-harness setup qemu"):
        backends.load(Settings(backend="qemu"))
    del cache


def package(tmp_path: Path, payload: bytes, *, elf: bool = True) -> kernel.Package:
    content = (kernel.ELF if elf else b"nothing") + payload
    packed = subprocess.run(["lz4", "-l", "-c"], input=content, capture_output=True, check=True).stdout
    image = bytearray(1024 + 512)
    image[kernel.SETUP_SECTORS] = 1
    struct.pack_into("<II", image, kernel.PAYLOAD, 512, len(packed) + 4)
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "vmlinuz-1.2").write_bytes(bytes(image) + packed + struct.pack("<I", len(content)))
    return kernel.Package(str(tmp_path), "1.2")


lz4 = pytest.mark.skipif(tools.find("lz4") is None, reason="lz4 is missing (Debian: lz4)")


@lz4
def test_the_kernel_is_taken_out_of_its_wrapping(tmp_path: Path) -> None:
    kernel.extract(package(tmp_path, b"x" * 5000), str(tmp_path / "vmlinux"))
    assert (tmp_path / "vmlinux").read_bytes() == kernel.ELF + b"x" * 5000
    assert sorted(os.listdir(tmp_path)) == ["boot", "vmlinux"]


@lz4
def test_a_wrapping_without_a_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no 64-bit ELF"):
        kernel.extract(package(tmp_path, b"x", elf=False), str(tmp_path / "vmlinux"))
    (tmp_path / "boot" / "vmlinuz-1.2").write_bytes(bytes(5000))
    with pytest.raises(HarnessError, match="isn't packed by lz4"):
        kernel.extract(kernel.Package(str(tmp_path), "1.2"), str(tmp_path / "vmlinux"))


def test_modules_come_after_what_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "lib" / "modules" / "1.2" / "kernel"
    place.mkdir(parents=True)
    for name, depends in {"top": "one,two-more", "one": "two_more", "two-more": ""}.items():
        (place / f"{name}.ko").write_bytes(b"\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0")
    monkeypatch.setattr(kernel, "MODULES", ("top",))
    assert list(kernel.modules(kernel.Package(str(tmp_path), "1.2"))) == ["two_more", "one", "top"]
    monkeypatch.setattr(kernel, "MODULES", ("none",))
    with pytest.raises(HarnessError, match=r"0 modules named none\.ko"):
        kernel.modules(kernel.Package(str(tmp_path), "1.2"))


def test_the_initramfs_holds_what_the_agent_looks_for() -> None:
    made = {
        adapter: initramfs.build(b"agent", b"box", ["sh"], {"a": b"1", "b": b"2"}, adapter=adapter)
        for adapter in (False, True)
    }
    assert all(b"modules/order\0" in one and b"a.ko\nb.ko\n" in one for one in made.values())
    assert [b"nvx-adapter\0" in one for one in made.values()] == [False, True]
    assert [len(one) % 4 for one in made.values()] == [0, 0]
