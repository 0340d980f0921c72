"""Guest data and the needs-recovery bit in a real ext4, judged by e2fsck and dumpe2fs (contract openvmm 6)."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from fake_openvmm.blocks import Device, Unmountable
from fake_openvmm.ext4 import Ext4, NoSpace

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
LAYOUTS = {
    "default": ([], 4 << 20),
    "4 KiB blocks": (["-b", "4096"], 8 << 20),
    "no journal": (["-O", "^has_journal"], 2 << 20),
    "no checksums": (["-O", "^metadata_csum"], 4 << 20),
    "32 bit": (["-O", "^64bit"], 4 << 20),
    "seed": (["-O", "metadata_csum_seed"], 8 << 20),
    "many groups": ([], 300 << 20),
    "ext2 layout": (["-O", "^64bit,^extent,^flex_bg,^has_journal"], 4 << 20),
}


def tool(name: str, *arguments: str, check: bool = True) -> str:
    program = shutil.which(name, path=PATH)
    if program is None:
        pytest.skip(f"{name} is missing: install the Debian package e2fsprogs")
    run = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert not check or run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def features(path: str) -> str:
    return next(row for row in tool("dumpe2fs", "-h", path).splitlines() if row.startswith("Filesystem features"))


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def scratch(machines: Any, request: pytest.FixtureRequest) -> str:
    options, size = request.param
    path: str = machines.ext4("scratch.img", *options, size=size)
    return path


class Opened:
    """A mounted scratch that closes its file."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.upper = Ext4(Device(self.fd))

    def __enter__(self) -> Ext4:
        return self.upper

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def test_a_mount_shows_and_a_clean_stop_doesnt(scratch: str) -> None:
    size = os.stat(scratch).st_size
    with Opened(scratch) as upper:
        upper.mark(mounted=True)
        assert "needs_recovery" in features(scratch)
        with Opened(scratch) as again:
            assert again.recovered
        upper.mark(mounted=False)
    assert "needs_recovery" not in features(scratch)
    tool("e2fsck", "-fn", scratch)
    assert os.stat(scratch).st_size == size


@pytest.mark.parametrize("length", [0, 1, 1024, 5000, 300_000])
def test_data_survives_and_the_file_system_stays_clean(scratch: str, length: int) -> None:
    data = os.urandom(length)
    before = os.stat(scratch)
    with Opened(scratch) as upper:
        assert upper.load() == b""
        upper.save(data)
        assert upper.load() == data
    with Opened(scratch) as upper:
        assert upper.load() == data
        upper.save(data[::-1])
    with Opened(scratch) as upper:
        assert upper.load() == data[::-1]
    tool("e2fsck", "-fn", scratch)
    after = os.stat(scratch)
    assert (after.st_size, after.st_ino) == (before.st_size, before.st_ino)


def test_files_of_the_file_system_are_left_alone(machines: Any) -> None:
    path = machines.ext4(size=4 << 20)
    content = os.urandom(700_000)
    source = machines.write("source", content)
    tool("debugfs", "-w", "-R", f"write {source} file", path)
    with Opened(path) as upper:
        upper.save(b"x" * 200_000)
        upper.save(b"y" * 200_000)
    copy = machines.root / "copy"
    tool("debugfs", "-R", f"dump file {copy}", path)
    assert copy.read_bytes() == content
    tool("e2fsck", "-fn", path)


def test_more_than_is_free_is_refused_and_the_old_data_stays(machines: Any) -> None:
    path = machines.ext4(size=2 << 20)
    with Opened(path) as upper:
        upper.save(b"old")
        with pytest.raises(NoSpace):
            upper.save(bytes(4 << 20))
        assert upper.load() == b"old"


def test_more_than_half_of_what_is_free_can_be_replaced(machines: Any) -> None:
    path = machines.ext4("scratch.img", "-O", "^has_journal", size=2 << 20)
    with Opened(path) as upper:
        upper.save(b"x" * 1_200_000)
        upper.save(b"y" * 1_200_000)
        assert upper.load() == b"y" * 1_200_000
    tool("e2fsck", "-fn", path)


def test_a_new_file_system_knows_nothing_of_the_old_data(machines: Any) -> None:
    path = machines.ext4()
    with Opened(path) as upper:
        upper.save(b"secret")
    with open(path, "rb") as file:
        boot = file.read(1024)
    machines.ext4("scratch.img", "-U", "random")
    with open(path, "r+b") as file:
        file.write(boot)
    with Opened(path) as upper:
        assert upper.load() == b""


def test_data_that_something_has_overwritten_is_none(machines: Any) -> None:
    path = machines.ext4()
    with Opened(path) as upper:
        upper.save(b"A" * 4096)
    with open(path, "r+b") as file:
        where = file.read().index(b"A" * 4096)
        file.seek(where)
        file.write(b"B")
    with Opened(path) as upper:
        assert upper.load() == b""


def test_a_boot_block_of_somebody_else_is_kept(machines: Any) -> None:
    path = machines.ext4()
    with open(path, "r+b") as file:
        file.write(b"boot loader")
    with Opened(path) as upper, pytest.raises(NoSpace):
        upper.save(b"x")
    with open(path, "rb") as file:
        assert file.read(11) == b"boot loader"


def test_a_wrong_superblock_checksum_is_refused(machines: Any) -> None:
    path = machines.ext4("scratch.img", "-O", "metadata_csum")
    with open(path, "r+b") as file:
        file.seek(1024 + 0x78)
        file.write(b"label")
    with pytest.raises(Unmountable, match="checksum"):
        Opened(path)
