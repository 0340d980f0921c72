"""What QEMU is told: descriptors in place of paths, the contract's slots, the command line as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fake_openvmm.knobs import Knobs, SideFileError
from fake_openvmm.machine import Block, MachineConfig
from fake_openvmm.qemu.archive import appended
from fake_openvmm.qemu.process import arguments, logical_block
from fake_openvmm.qemu.settings import Settings, guest_lines
from harness import images

KEPT = {"kernel": 10, "initrd": 11, "distro": 12, "scratch": 13, "control": 14, "report": 15, "text": 16, "status": 17}


def settings(**more: object) -> Settings:
    return Settings({"qemu": "/usr/bin/qemu", "holder": "/holder", **more})  # type: ignore[dict-item]


@pytest.fixture
def config(tmp_path: Path) -> MachineConfig:
    found = images.unpack(str(tmp_path))
    made = MachineConfig()
    made.blocks = [
        Block("distro", found.erofs, readonly=True, base=0xD0003000),
        Block("scratch", found.scratch, readonly=False, base=0xD0006000),
    ]
    made.cmdline = "quiet é=1, x"
    made.memory = (256 << 20) + 1
    return made


@pytest.fixture
def disks(config: MachineConfig) -> dict[str, int]:
    kept = dict(KEPT)
    for block in config.blocks:
        kept[block.role] = os.open(block.path or "", os.O_RDONLY)
    return kept


def after(words: list[str], option: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == option]


def test_everything_that_was_checked_is_named_by_its_descriptor(config: MachineConfig, disks: dict[str, int]) -> None:
    words = arguments(settings(), config, disks, Knobs())
    assert after(words, "-kernel") == ["/proc/self/fd/10"]
    assert after(words, "-initrd") == ["/proc/self/fd/11"]
    assert after(words, "-append") == ["quiet é=1, x"]
    assert after(words, "-m") == ["257"]
    distro, scratch = after(words, "-drive")
    assert f"file.filename=/proc/self/fd/{disks['distro']}" in distro
    assert "read-only=on" in distro
    assert "read-only=off" in scratch
    assert not any(block.path in word for block in config.blocks if block.path for word in words)
    assert all(f"fd={disks[name]}" in " ".join(after(words, "-chardev")) for name in ("control", "report", "status"))


def test_nothing_is_on_the_bus_that_never_interrupts(config: MachineConfig, disks: dict[str, int]) -> None:
    words = arguments(settings(), config, disks, Knobs())
    assert not any("virtio-mmio-bus.0" in word for word in words)
    assert len({word.rpartition("bus.")[2].partition(",")[0] for word in words if "virtio-mmio-bus" in word}) == 3


def test_an_emulated_machine_counts_its_own_time(config: MachineConfig, disks: dict[str, int]) -> None:
    assert after(arguments(settings(), config, disks, Knobs()), "-icount") == ["shift=3"]
    fast = arguments(settings(accel="kvm"), config, disks, Knobs())
    assert after(fast, "-icount") == []
    assert after(fast, "-cpu") == ["host"]


@pytest.mark.parametrize(("name", "expected"), [("erofs", 512), ("gpt", 512), ("gpt4k", 4096)])
def test_a_disk_shows_the_sectors_that_its_table_was_written_for(tmp_path: Path, name: str, expected: int) -> None:
    path = getattr(images.unpack(str(tmp_path)), name)
    fd = os.open(path, os.O_RDONLY)
    block = Block("distro", path, readonly=True, base=0)
    assert logical_block(block, fd, Knobs()) == expected
    if name == "erofs":
        assert logical_block(block, fd, Knobs({"blockSize": 4096})) == 4096
    os.close(fd)


@pytest.mark.parametrize(
    "wrong",
    [
        {"qemu": "qemu"},
        {"holder": 7},
        {"accel": "hax"},
        {"accel": 1},
        {"more": 1},
    ],
)
def test_a_wrong_description_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SideFileError):
        settings(**wrong)


def test_the_guest_is_told_of_the_ways_to_misbehave_that_it_has() -> None:
    knobs = Knobs(
        {
            "ignore_stop": True,
            "never_attaches": False,
            "refuse_mapping": 2,
            "guest_exit_at": {"guest_boot": 125},
            "guest_dead_at": ["before_exec"],
            "guest_hangs_at": ["guest_attach"],
            "fail_at": {"before_bind": "x"},
        }
    )
    assert guest_lines(knobs) == [
        "flag ignore_stop",
        "number refuse_mapping 2",
        "exit guest_boot 125",
        "panic before_exec 1",
        "hang guest_attach 1",
    ]


@pytest.mark.parametrize(
    "knobs", [{"frames": []}, {"reboot_at": ["guest_boot"]}, {"exit_code": 3}, {"guest_exit_at": {"after_ready": 1}}]
)
def test_what_a_real_guest_can_not_do_is_refused(knobs: dict[str, object]) -> None:
    with pytest.raises(SideFileError):
        guest_lines(Knobs(knobs))  # type: ignore[arg-type]


def test_the_second_archive_is_behind_the_first_and_is_one(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_bytes(b"x" * 1000)
    fd = os.open(first, os.O_RDONLY)
    made = appended(fd, ["block 0x1 0x2", "flag ignore_stop"])
    whole = os.pread(made, 1 << 20, 0)
    assert whole[:1000] == b"x" * 1000
    assert whole[1000:1024] == bytes(24)
    second = whole[1024:]
    assert second.startswith(b"070701")
    assert b"nvx.conf\0" in second
    assert b"block 0x1 0x2\nflag ignore_stop\n" in second
    if shutil.which("cpio") is None:
        pytest.skip("cpio is missing (Debian: cpio)")
    done = subprocess.run(["cpio", "-i", "--quiet", "--to-stdout"], input=second, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"block 0x1 0x2\nflag ignore_stop\n")
    os.close(fd)
    os.close(made)
