"""The guest mounts by what is in its images and refuses what its tokens don't say (contract openvmm 2.1, 6)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from gpt_image.disk import Disk
from gpt_image.partition import Partition, PartitionType

from fake_openvmm.blocks import Unmountable, open_block
from fake_openvmm.boot import Mounted, boot
from fake_openvmm.machine import Block, Failure

DISTRO = "11111111-2222-3333-4444-555555555555"
DISK = "aabbccdd-1122-3344-5566-778899aabbcc"
HOST = "nvx_workload_uid=65534 nvx_workload_gid=65534 nvx_lifecycle=managed nvx_control_tty=hvc2"
RAM = "nvx_overlay_upper=ramfs"
SCRATCH = "nvx_scratch=0xd0006000,ext4"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
Make = Callable[..., bytes]


def line(*tokens: str) -> str:
    return " ".join(("console=hvc1", "nvx_sandbox=1", *tokens, HOST))


def started(machines: Any, cmdline: str, *blocks: Block, initrd: bytes = b"x", **knobs: Any) -> Mounted:
    config = machines.config(cmdline, *blocks, initrd=initrd)
    return boot(config, machines.opened(config), machines.tools(**knobs))


@pytest.fixture
def distro(machines: Any, make_erofs: Make) -> Block:
    block: Block = machines.block("distro", machines.write("distro.erofs", make_erofs()))
    return block


@pytest.mark.parametrize("token", ["erofs", f"erofs:{DISTRO}", f"erofs:{DISTRO.upper()}"])
def test_an_erofs_is_mounted_with_and_without_an_identity(machines: Any, distro: Block, token: str) -> None:
    guest = started(machines, line(f"nvx_layer=distro,0xd0003000,{token}", RAM), distro)
    info = os.stat(distro.path or "")
    assert guest.facts["layers"] == [
        {
            "role": "distro",
            "format": "erofs",
            "filesystem": "erofs",
            "uuid": DISTRO,
            "blockSize": 512,
            "device": [info.st_dev, info.st_ino],
        }
    ]
    assert (guest.facts["upper"], guest.facts["scratch"]) == ("ramfs", False)


@pytest.mark.parametrize("block", [512, 4096])
@pytest.mark.parametrize("skip", [0, 3])
def test_a_gpt_gives_its_block_size_and_its_first_used_entry(
    machines: Any, make_erofs: Make, make_gpt: Make, block: int, skip: int
) -> None:
    path = machines.write("distro.gpt", make_gpt(make_erofs(), block=block, skip=skip))
    guest = started(machines, line(f"nvx_layer=distro,0xd0003000,gpt:{DISK}", RAM), machines.block("distro", path))
    layers: Any = guest.facts["layers"]
    assert (layers[0]["diskGuid"], layers[0]["uuid"], layers[0]["blockSize"]) == (DISK, DISTRO, block)


def test_a_raw_image_has_the_block_size_of_the_side_file(machines: Any, distro: Block) -> None:
    guest = started(machines, line("nvx_layer=distro,0xd0003000,erofs", RAM), distro, blockSize=4096)
    layers: Any = guest.facts["layers"]
    assert layers[0]["blockSize"] == 4096


def test_images_of_other_tools_are_read(machines: Any, tmp_path: Any) -> None:
    program = shutil.which("mkfs.erofs")
    if program is None:
        pytest.skip("mkfs.erofs is missing: install the Debian package erofs-utils")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("x" * 5000)
    image = tmp_path / "real.erofs"
    subprocess.run([program, "-T0", "-U", DISTRO, image, tmp_path / "tree"], check=True, capture_output=True)
    raw = machines.block("distro", str(image))
    assert started(machines, line(f"nvx_layer=distro,0xd0003000,erofs:{DISTRO}", RAM), raw)
    broken = bytearray(image.read_bytes())
    broken[1024 + 64] ^= 1
    bad = machines.block("distro", machines.write("broken.erofs", bytes(broken)))
    with pytest.raises(Unmountable, match="checksum"):
        started(machines, line("nvx_layer=distro,0xd0003000,erofs", RAM), bad)


@pytest.mark.parametrize("sector", [512, 4096])
def test_a_gpt_of_another_tool_is_read(machines: Any, make_erofs: Make, tmp_path: Any, sector: int) -> None:
    path = tmp_path / "other.gpt"
    disk = Disk(str(path), sector_size=sector)
    disk.create(2 << 20)
    part = Partition("distro", 64 << 10, PartitionType.LINUX_FILE_SYSTEM.value)
    disk.table.partitions.add(part)
    disk.commit()
    with path.open("r+b") as file:
        file.seek(part.first_lba * sector)
        file.write(make_erofs())
    guid = disk.table.primary_header.disk_guid
    guest = started(machines, line(f"nvx_layer=distro,0xd0003000,gpt:{guid}", RAM), machines.block("distro", str(path)))
    layers: Any = guest.facts["layers"]
    assert (layers[0]["blockSize"], layers[0]["uuid"]) == (sector, DISTRO)


REFUSED = {
    "another uuid": f"nvx_layer=distro,0xd0003000,erofs:{DISK} {RAM}",
    "gpt over erofs": f"nvx_layer=distro,0xd0003000,gpt {RAM}",
    "old form": f"nvx_layer=distro,0xd0003000,{DISTRO} {RAM}",
    "old form without identity": f"nvx_layer=distro,0xd0003000,- {RAM}",
    "no colon but a dash": f"nvx_layer=distro,0xd0003000,erofs-{DISTRO} {RAM}",
    "empty identity": f"nvx_layer=distro,0xd0003000,erofs: {RAM}",
    "short identity": f"nvx_layer=distro,0xd0003000,erofs:1111 {RAM}",
    "identity without dashes": f"nvx_layer=distro,0xd0003000,erofs:{DISTRO.replace('-', '')} {RAM}",
    "identity that isn't hex": f"nvx_layer=distro,0xd0003000,erofs:{DISTRO.replace('1', 'g')} {RAM}",
    "unknown format": f"nvx_layer=distro,0xd0003000,ext4 {RAM}",
    "upper-case format": f"nvx_layer=distro,0xd0003000,EROFS {RAM}",
    "another address": f"nvx_layer=distro,0xd0004000,erofs {RAM}",
    "upper-case address": f"nvx_layer=distro,0xD0003000,erofs {RAM}",
    "address without 0x": f"nvx_layer=distro,d0003000,erofs {RAM}",
    "unknown role": f"nvx_layer=base,0xd0003000,erofs {RAM}",
    "one field": f"nvx_layer=distro {RAM}",
    "no value": f"nvx_layer {RAM}",
    "a fourth field": f"nvx_layer=distro,0xd0003000,erofs,x {RAM}",
    "twice": f"nvx_layer=distro,0xd0003000,erofs nvx_layer=distro,0xd0003000,erofs {RAM}",
    "twice, differing": f"nvx_layer=distro,0xd0003000,erofs nvx_layer=distro,0xd0003000,gpt {RAM}",
    "no layer": RAM,
    "a layer without a device": (f"nvx_layer=distro,0xd0003000,erofs nvx_layer=runtime,0xd0004000,erofs {RAM}"),
    "no upper": "nvx_layer=distro,0xd0003000,erofs",
    "both uppers": f"nvx_layer=distro,0xd0003000,erofs {SCRATCH} {RAM}",
    "scratch without a device": f"nvx_layer=distro,0xd0003000,erofs {SCRATCH}",
    "another upper": "nvx_layer=distro,0xd0003000,erofs nvx_overlay_upper=tmpfs",
    "upper twice": f"nvx_layer=distro,0xd0003000,erofs {RAM} {RAM}",
    "relative entrypoint": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_entrypoint=bin/sh",
    "empty entrypoint": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_entrypoint=",
    "upper-case hostname": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_hostname=Box",
    "long hostname": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_hostname={'a' * 64}",
    "hostname with a dash in front": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_hostname=-a",
    "hostname with a dot": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_hostname=a.b",
    "empty argument": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_arg=",
    "memory limit": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_memory_max=1M",
    "no memory": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_memory_max=0",
    "process limit": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_pids_max=-1",
    "share without a child": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_share=0,/work,rw",
    "malformed share": f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_share=0,work,rw",
    "another sandbox": f"nvx_sandbox=2 nvx_layer=distro,0xd0003000,erofs {RAM}",
    "sandbox twice": f"nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs {RAM}",
}


@pytest.mark.spec("622.acc.19")
@pytest.mark.parametrize("tokens", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_token_is_refused(machines: Any, distro: Block, tokens: str) -> None:
    with pytest.raises(Unmountable):
        started(machines, line(tokens), distro)


def test_a_missing_identity_is_refused(machines: Any, distro: Block) -> None:
    cmdline = f"nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs {RAM}"
    with pytest.raises(Unmountable, match="identity"):
        started(machines, cmdline, distro)


def test_a_device_without_a_token_is_refused(machines: Any, distro: Block, make_erofs: Make) -> None:
    runtime = machines.block("runtime", machines.write("runtime", make_erofs()))
    with pytest.raises(Unmountable, match="devices"):
        started(machines, line(f"nvx_layer=distro,0xd0003000,erofs {RAM}"), distro, runtime)


def test_every_layer_is_mounted_at_its_own_address(machines: Any, distro: Block, make_erofs: Make) -> None:
    runtime = machines.block("runtime", machines.write("runtime", make_erofs(DISK)))
    tokens = f"nvx_layer=distro,0xd0003000,erofs:{DISTRO} nvx_layer=runtime,0xd0004000,erofs:{DISK} {RAM}"
    layers: Any = started(machines, line(tokens), distro, runtime).facts["layers"]
    assert [(layer["role"], layer["uuid"]) for layer in layers] == [("distro", DISTRO), ("runtime", DISK)]


BAD_IMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "erofs in place of a gpt": lambda raw, _: raw,
    "an empty file": lambda _raw, _disk: b"",
    "header checksum": lambda _, disk: disk[:568] + bytes([disk[568] ^ 1]) + disk[569:],
    "entries checksum": lambda _, disk: disk[:1100] + b"x" + disk[1101:],
    "cut before the partition's end": lambda _, disk: disk[: 66 * 512],
    "cut inside the header": lambda _, disk: disk[:900],
    "no erofs inside": lambda raw, disk: disk.replace(raw[1024:1028], bytes(4)),
}


@pytest.mark.parametrize("change", BAD_IMAGES.values(), ids=BAD_IMAGES.keys())
def test_a_broken_gpt_is_refused(
    machines: Any, make_erofs: Make, make_gpt: Make, change: Callable[[bytes, bytes], bytes]
) -> None:
    raw = make_erofs()
    block = machines.block("distro", machines.write("bad", change(raw, make_gpt(raw))))
    with pytest.raises(Unmountable):
        started(machines, line("nvx_layer=distro,0xd0003000,gpt", RAM), block)


def test_a_gpt_without_a_used_entry_is_refused(machines: Any, make_erofs: Make, make_gpt: Make) -> None:
    block = machines.block("distro", machines.write("none", make_gpt(make_erofs(), used=False)))
    with pytest.raises(Unmountable, match="used entry"):
        started(machines, line("nvx_layer=distro,0xd0003000,gpt", RAM), block)


def test_a_gpt_is_no_erofs(machines: Any, make_erofs: Make, make_gpt: Make) -> None:
    block = machines.block("distro", machines.write("disk", make_gpt(make_erofs())))
    with pytest.raises(Unmountable, match="EROFS"):
        started(machines, line("nvx_layer=distro,0xd0003000,erofs", RAM), block)


def test_another_disk_guid_is_refused(machines: Any, make_erofs: Make, make_gpt: Make) -> None:
    block = machines.block("distro", machines.write("disk", make_gpt(make_erofs())))
    with pytest.raises(Unmountable, match="found"):
        started(machines, line(f"nvx_layer=distro,0xd0003000,gpt:{DISTRO}", RAM), block)


def test_an_ext4_upper_is_found(machines: Any, distro: Block) -> None:
    scratch = machines.block("scratch", machines.ext4("s.img", "-U", DISK))
    guest = started(machines, line(f"nvx_layer=distro,0xd0003000,erofs {SCRATCH}"), distro, scratch)
    facts = guest.facts
    assert (facts["upper"], facts["scratch"], facts["scratchUuid"], facts["recovered"]) == ("ext4", True, DISK, False)


def test_a_scratch_that_is_no_ext4_is_refused(machines: Any, distro: Block) -> None:
    scratch = machines.block("scratch", machines.write("zeros", bytes(1 << 20)))
    with pytest.raises(Unmountable, match="scratch"):
        started(machines, line(f"nvx_layer=distro,0xd0003000,erofs {SCRATCH}"), distro, scratch)


def test_a_scratch_smaller_than_its_file_system_is_refused(machines: Any, distro: Block) -> None:
    path = machines.ext4()
    os.truncate(path, 2 << 20)
    with pytest.raises(Unmountable, match="larger"):
        started(machines, line(f"nvx_layer=distro,0xd0003000,erofs {SCRATCH}"), distro, machines.block("scratch", path))


@pytest.mark.parametrize(
    ("initrd", "adapter"),
    [
        (b"nvx-fake-initramfs adapter\nrest", True),
        (b"nvx-fake-initramfs adapter", True),
        (b"nvx-fake-initramfs adapters\n", False),
        (b"nvx-fake-initramfs\n", False),
        (b"", False),
    ],
)
def test_the_initramfs_chooses_the_agent(machines: Any, distro: Block, initrd: bytes, adapter: bool) -> None:  # noqa: FBT001
    guest = started(machines, line(f"nvx_layer=distro,0xd0003000,erofs {RAM}"), distro, initrd=initrd)
    assert guest.adapter is adapter


@pytest.mark.parametrize("tokens", ["nvx_maps=0", "nvx_maps=4097", "nvx_maps=x", "nvx_maps=", "nvx_maps=1 nvx_maps=1"])
def test_a_direct_guest_refuses_a_wrong_count_of_mappings(machines: Any, tokens: str) -> None:
    with pytest.raises(Unmountable):
        started(machines, f"hostname=box {tokens} {HOST} virtfs_dir=/run/nvx/hostfs/root")


def test_a_direct_guest_needs_a_share_for_mappings(machines: Any) -> None:
    with pytest.raises(Unmountable, match="share"):
        started(machines, f"hostname=box nvx_maps=1 {HOST}")
    guest = started(machines, f"hostname=box nvx_maps=1 {HOST} virtfs_dir=/x")
    assert (guest.tokens.mappings, guest.facts["layers"], guest.facts["upper"]) == (1, [], None)


def test_a_repeated_token_that_mounts_nothing_counts_once(machines: Any, distro: Block) -> None:
    tokens = f"nvx_layer=distro,0xd0003000,erofs {RAM} nvx_hostname=first nvx_hostname=second"
    assert started(machines, line(tokens), distro).facts["hostname"] == "first"


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo"])
def test_what_is_no_image_is_not_opened(machines: Any, kind: str) -> None:
    path = machines.root / kind
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(Failure, match="distro"):
        open_block(machines.block("distro", str(path)))


def test_a_disk_in_memory_is_opened() -> None:
    fd = open_block(Block("scratch", None, readonly=False, base=0, memory=8192))
    assert os.fstat(fd).st_size == 8192
    os.close(fd)
