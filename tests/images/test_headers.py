"""Header readers against real images, made by other tools where they are there, and against hostile ones."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.images import DISK_GUID, EROFS_UUID, SCRATCH_UUID, Images
from nvx_ref.errors import Malformed, Refused
from nvx_ref.images import reading as reading_module
from nvx_ref.images.erofs import read_erofs
from nvx_ref.images.ext4 import read_ext4
from nvx_ref.images.gpt import read_gpt
from resealing import put, resealed

SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
Reader = Callable[[int, int], object]
READERS: dict[str, Reader] = {
    "erofs": lambda fd, length: read_erofs(fd, length=length),
    "ext4": lambda fd, length: read_ext4(fd, length=length),
    "gpt": lambda fd, length: read_gpt(fd, length=length),
    "gpt4k": lambda fd, length: read_gpt(fd, length=length),
}


def tool(name: str, package: str) -> str:
    found = shutil.which(name, path=SBIN)
    if found is None:
        pytest.skip(f"{name} is missing: install the Debian package {package}")
    return found


@contextmanager
def opened(path: str | Path) -> Iterator[tuple[int, int]]:
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)


@contextmanager
def in_memory(data: bytes) -> Iterator[tuple[int, int]]:
    if sys.platform == "win32":
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(data)
            yield file.fileno(), len(data)
        return
    fd = os.memfd_create("image", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield fd, len(data)
    finally:
        os.close(fd)


def read(kind: str, data: bytes) -> object:
    with in_memory(data) as (fd, length):
        return READERS[kind](fd, length)


def detail(kind: str, data: bytes) -> str | None:
    with pytest.raises(Malformed) as caught:
        read(kind, data)
    return caught.value.detail


@pytest.fixture(scope="module")
def raw(images: Images) -> dict[str, bytes]:
    return {
        "erofs": Path(images.erofs).read_bytes(),
        "ext4": Path(images.scratch).read_bytes(),
        "gpt": Path(images.gpt).read_bytes(),
        "gpt4k": Path(images.gpt4k).read_bytes(),
    }


def test_an_erofs_says_what_it_is(images: Images) -> None:
    with opened(images.erofs) as (fd, length):
        found = read_erofs(fd, length=length)
    assert (found.uuid, found.block_size, found.blocks, found.checksummed) == (EROFS_UUID, 4096, 1, True)


@pytest.mark.parametrize(("name", "sector"), [("gpt", 512), ("gpt4k", 4096)])
def test_a_gpt_says_what_it_is(images: Images, name: str, sector: int) -> None:
    with opened(getattr(images, name)) as (fd, length):
        found = read_gpt(fd, length=length)
        inner = read_erofs(fd, offset=found.entries[0].offset, length=found.entries[0].length)
    assert (found.disk, found.sector_size, found.backup) == (DISK_GUID, sector, True)
    assert [entry.name for entry in found.entries] == ["distro"]
    assert inner.uuid == EROFS_UUID


def test_an_ext4_says_what_it_is(images: Images) -> None:
    with opened(images.scratch) as (fd, length):
        found = read_ext4(fd, length=length)
    assert (found.uuid, found.block_size, found.blocks, found.needs_recovery) == (SCRATCH_UUID, 1024, 8192, False)


@pytest.mark.parametrize("options", [[], ["-zlz4hc"], ["-zlz4hc", "-C65536"], ["-Efragments"], ["-Eztailpacking"]])
def test_what_mkfs_erofs_makes_is_read(tmp_path: Path, options: list[str]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "text").write_text("compressible " * 20_000)
    image = tmp_path / "image"
    made = subprocess.run(
        [tool("mkfs.erofs", "erofs-utils"), *options, "-U", EROFS_UUID, image, source], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip(f"this mkfs.erofs has no {options}")
    with opened(image) as (fd, length):
        assert read_erofs(fd, length=length).uuid == EROFS_UUID


def gpt_by(maker: str, path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 20)
    if maker == "sgdisk":
        command = [tool("sgdisk", "gdisk"), "-n1:2048:4095", "-n3:4096:6000", "-U", DISK_GUID, path]
        subprocess.run(command, check=True, capture_output=True)
    else:
        script = f"label: gpt\nlabel-id: {DISK_GUID}\nstart=2048, size=2048\nstart=4096, size=1905\n"
        command = [tool("sfdisk", "fdisk"), "-q", path]
        subprocess.run(command, check=True, capture_output=True, input=script.encode())


@pytest.mark.parametrize("maker", ["sgdisk", "sfdisk"])
def test_what_other_gpt_writers_make_is_read(tmp_path: Path, maker: str) -> None:
    gpt_by(maker, tmp_path / "disk")
    with opened(tmp_path / "disk") as (fd, length):
        found = read_gpt(fd, length=length)
    assert (found.disk, found.backup) == (DISK_GUID, True)
    assert [(entry.offset, entry.length) for entry in found.entries] == [(1 << 20, 1 << 20), (2 << 20, 1905 * 512)]


@pytest.mark.parametrize("maker", ["sgdisk", "sfdisk"])
def test_disks_of_other_tools_that_were_grown_or_cut(tmp_path: Path, maker: str) -> None:
    disk = tmp_path / "disk"
    gpt_by(maker, disk)
    whole = disk.stat().st_size
    os.truncate(disk, 2 * whole)
    with opened(disk) as (fd, length):
        assert read_gpt(fd, length=length).backup is True, "it is where the primary says"
    subprocess.run(
        [tool("dd", "coreutils"), f"if={disk}", f"of={disk}.cut", "bs=1M", "count=3"], check=True, capture_output=True
    )
    with opened(f"{disk}.cut") as (fd, length), pytest.raises(Malformed) as caught:
        read_gpt(fd, length=length)
    assert caught.value.detail == "usable"


def test_a_hybrid_mbr_changes_nothing(tmp_path: Path) -> None:
    gpt_by("sgdisk", tmp_path / "disk")
    subprocess.run([tool("sgdisk", "gdisk"), "-h1", tmp_path / "disk"], check=True, capture_output=True)
    with opened(tmp_path / "disk") as (fd, length):
        assert read_gpt(fd, length=length).disk == DISK_GUID


@pytest.mark.parametrize("name", ["gpt", "gpt4k"])
def test_a_grown_disk_is_read_and_a_cut_one_refused(raw: dict[str, bytes], name: str) -> None:
    assert read(name, raw[name] + bytes(1 << 20))
    # A VHD footer after the raw image is neither read nor an error (622.scope2.b).
    assert read(name, raw[name] + b"conectix".ljust(512, b"\0"))
    assert detail(name, raw[name][: 512 << 10]) == "usable"


def test_a_lost_backup_is_reported_and_not_used(raw: dict[str, bytes]) -> None:
    without = put(raw["gpt"], len(raw["gpt"]) - 512, bytes(512))
    with in_memory(without) as (fd, length):
        assert read_gpt(fd, length=length).backup is False
    assert detail("gpt", put(raw["gpt"], 512 + 56, b"\xff")) == "header-checksum"


@pytest.mark.parametrize(
    ("offset", "new", "expected"),
    [
        (512, bytes(8), "magic"),
        (512 + 8, b"\2", "revision"),
        (512 + 12, struct.pack("<I", 91), "header-size"),
        (512 + 12, struct.pack("<I", 513), "header-size"),
        (512 + 24, struct.pack("<Q", 2), "header-checksum"),
        (1024, b"\xff", "entries-checksum"),
    ],
)
def test_a_damaged_gpt_is_refused(raw: dict[str, bytes], offset: int, new: bytes, expected: str) -> None:
    assert detail("gpt", put(raw["gpt"], offset, new)) == expected


ENTRY = 1024
HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("offset", "new", "expected"),
    [
        (512 + 20, struct.pack("<I", 1), "reserved"),
        (512 + 24, struct.pack("<Q", 2), "my-lba"),
        (512 + 40, struct.pack("<Q", HUGE), "usable"),
        (512 + 48, struct.pack("<Q", HUGE), "usable"),
        (512 + 72, struct.pack("<Q", 1), "entries-at"),
        (512 + 72, struct.pack("<Q", HUGE), "entries-at"),
        (512 + 80, struct.pack("<I", 0), "entry-count"),
        (512 + 80, struct.pack("<I", 0xFFFFFFFF), "entry-count"),
        (512 + 84, struct.pack("<I", 256), "entry-size"),
        (512 + 84, struct.pack("<I", 0), "entry-size"),
        (ENTRY, bytes(16), "empty"),
        (ENTRY + 32, struct.pack("<Q", 1), "entry-range"),
        (ENTRY + 40, struct.pack("<Q", HUGE), "entry-range"),
        (ENTRY + 40, struct.pack("<Q", 0), "entry-range"),
    ],
)
def test_a_hostile_gpt_with_right_checksums_is_refused(
    raw: dict[str, bytes], offset: int, new: bytes, expected: str
) -> None:
    assert detail("gpt", resealed(put(raw["gpt"], offset, new))) == expected


def test_overlapping_partitions_are_refused(raw: dict[str, bytes]) -> None:
    entry = raw["gpt"][ENTRY : ENTRY + 128]
    assert detail("gpt", resealed(put(raw["gpt"], ENTRY + 5 * 128, entry))) == "overlap"


def test_the_first_used_entry_counts_not_the_first(raw: dict[str, bytes]) -> None:
    entry = raw["gpt"][ENTRY : ENTRY + 128]
    moved = put(put(raw["gpt"], ENTRY, bytes(128)), ENTRY + 7 * 128, entry)
    with in_memory(resealed(moved)) as (fd, length):
        assert read_gpt(fd, length=length).entries[0].index == 8


def test_a_512_byte_header_wins_and_a_broken_one_is_no_reason_to_look_further(raw: dict[str, bytes]) -> None:
    both = put(raw["gpt"], 4096, raw["gpt4k"][4096 : 4096 + 92])
    assert detail("gpt", put(both, 512 + 56, b"\xff")) == "header-checksum"


@pytest.mark.parametrize(
    ("offset", "new", "expected"),
    [
        (1024, b"\0", "magic"),
        (1024 + 4, b"\0\0\0\0", "checksum"),
        (1024 + 12, b"\x08", "block-size"),
        (1024 + 12, b"\x0d", "block-size"),
        (1024 + 12, b"\xff", "block-size"),
        (1024 + 36, struct.pack("<I", 2), "truncated"),
        (1024 + 36, struct.pack("<I", 0), "truncated"),
        (1024 + 48, b"\0", "checksum"),
        (1024 + 80, struct.pack("<I", 1 << 31), "features"),
        (1024 + 80, struct.pack("<IHH", 8, 0, 1), "devices"),
    ],
)
def test_a_hostile_erofs_is_refused(raw: dict[str, bytes], offset: int, new: bytes, expected: str) -> None:
    assert detail("erofs", put(raw["erofs"], offset, new)) == expected


def test_an_erofs_without_a_checksum_is_taken(raw: dict[str, bytes]) -> None:
    with in_memory(put(raw["erofs"], 1024 + 4, bytes(5))) as (fd, length):
        assert read_erofs(fd, length=length).checksummed is False


@pytest.mark.parametrize(
    ("offset", "new", "expected"),
    [
        (0x438, b"\0\0", "magic"),
        (0x418, struct.pack("<I", 7), "block-size"),
        (0x404, struct.pack("<I", 8193), "truncated"),
        (0x404, struct.pack("<I", 0), "truncated"),
        (0x468, b"\0", "checksum"),
    ],
)
def test_a_hostile_ext4_is_refused(raw: dict[str, bytes], offset: int, new: bytes, expected: str) -> None:
    assert detail("ext4", put(raw["ext4"], offset, new)) == expected


def test_a_cut_scratch_is_refused(raw: dict[str, bytes]) -> None:
    assert detail("ext4", raw["ext4"][: 4 << 20]) == "truncated"


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("length", [0, 1, 511, 512, 1023, 1024, 1151, 1152, 2047, 4096])
def test_short_files_are_refused(kind: str, length: int) -> None:
    with pytest.raises(Malformed):
        read(kind, bytes(length))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(READERS)),
    changes=st.lists(st.tuples(st.integers(0, 12_000), st.binary(min_size=1, max_size=24)), max_size=6),
    cut=st.one_of(st.none(), st.integers(0, 20_000)),
    reseal=st.booleans(),
)
def test_changed_images_give_typed_errors_and_bounded_reads(
    *, raw: dict[str, bytes], kind: str, changes: list[tuple[int, bytes]], cut: int | None, reseal: bool
) -> None:
    data = raw[kind][: 1 << 20]
    for offset, new in changes:
        data = put(data, offset, new)[: len(data)]
    if kind.startswith("gpt") and reseal:
        data = resealed(data, 4096 if kind == "gpt4k" else 512)
    if cut is not None:
        data = data[:cut]
    total = 0
    original = os.read

    def counted(fd: int, size: int) -> bytes:
        nonlocal total
        total += size
        return original(fd, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module.os, "read", counted)
        with suppress(Malformed, Refused):
            read(kind, data)
    assert total <= 1 << 20


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(READERS)), data=st.binary(max_size=8192))
def test_arbitrary_bytes_give_typed_errors(kind: str, data: bytes) -> None:
    with suppress(Malformed, Refused):
        read(kind, data)
