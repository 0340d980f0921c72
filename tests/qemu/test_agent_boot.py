"""What the agent reads at its boot, compiled for this machine: the command line and the images."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path

from agent_inputs import Ask
from fake_openvmm.blocks import Unmountable
from fake_openvmm.tokens import BootTokens
from harness import images

IDENTITY = "11111111-1111-1111-1111-111111111111"
LAYER = "nvx_layer=distro,0xd0003000"
RAM = "nvx_overlay_upper=ramfs"
DISK = "nvx_scratch=0xd0006000,ext4"
WHO = "nvx_workload_uid=65534 nvx_workload_gid=65534"
BOX = f"nvx_sandbox=1 {LAYER},erofs:{IDENTITY} {RAM} {WHO}"
LINES = [
    "",
    "quiet",
    BOX,
    f"{BOX} nvx_lifecycle=managed nvx_control_tty=hvc2",
    f"nvx_sandbox=1 {LAYER},gpt {DISK} {WHO} nvx_entrypoint=/bin/true nvx_hostname=box nvx_arg=a nvx_arg=b=c",
    f"nvx_sandbox=1 {LAYER},erofs nvx_layer=custom,0xd0005000,gpt:{IDENTITY.upper()} {RAM} {WHO}",
    f"{BOX} nvx_share=0-a,/in/0,ro nvx_share=1-b,/in/1,rw nvx_memory_max=1 nvx_pids_max=2",
    f"hostname=direct nvx_maps=3 virtfs_dir=/x {WHO}",
    f"nvx_workload_account=create {WHO}",
    "nvx_lifecycle=one-shot",
    # refused
    f"nvx_sandbox=2 {LAYER},erofs {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_sandbox=1 {LAYER},erofs {RAM} {WHO}",
    f"nvx_sandbox=1 {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs {RAM}",
    f"nvx_sandbox=1 {LAYER},{IDENTITY} {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs: {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs:{IDENTITY}x {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},ext4 {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer=distro,0xd0004000,erofs {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer=scratch,0xd0006000,erofs {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer=distro {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer {RAM} {WHO}",
    f"{BOX} {LAYER},gpt",
    f"{BOX} {DISK}",
    f"{BOX} {RAM}",
    f"nvx_sandbox=1 {LAYER},erofs {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs nvx_overlay_upper=tmpfs {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs nvx_overlay_upper {WHO}",
    f"{BOX} nvx_hostname=Box",
    f"{BOX} nvx_hostname=-a",
    f"{BOX} nvx_hostname={'a' * 64}",
    f"{BOX} nvx_entrypoint=bin/sh",
    f"{BOX} nvx_arg=",
    f"{BOX} nvx_memory_max=0",
    f"{BOX} nvx_pids_max=x",
    f"{BOX} nvx_share=a,/x",
    f"{BOX} nvx_share=a,/x,rx",
    f"{BOX} nvx_share=a,x,ro",
    f"{BOX} nvx_share=a,/x/../y,ro",
    f"{BOX} nvx_share=..,/x,ro",
    f"{BOX} nvx_share=a,/x,ro nvx_share=a,/y,ro",
    f"{BOX} nvx_share=a,/x,ro nvx_share=b,/x,ro",
    f"{BOX} nvx_lifecycle=managed",
    "nvx_lifecycle=managed nvx_control_tty=hvc2",
    "nvx_maps=3",
    "nvx_maps=0 virtfs_dir=/x",
    "nvx_maps=4097 virtfs_dir=/x",
    "nvx_maps=1 nvx_maps=1 virtfs_dir=/x",
    "nvx_workload_account=make",
    "nvx_workload_uid=x nvx_workload_gid=1",
]
UPPERS = {None: 0, "ext4": 1, "ramfs": 2}


def fake_tokens(line: bytes) -> str:
    text = line.decode()
    try:
        found = BootTokens(text)
        if (found.layered and found.identity is None) or (
            found.lifecycle == "managed" and (found.identity is None or found.control_tty is None)
        ):
            return "bad"
    except Unmountable:
        return "bad"
    uid, gid = found.identity or (0, 0)
    entry = found.entrypoint if found.layered else "/bin/sh"
    parts = [int(found.layered), int(found.lifecycle == "managed"), uid, gid, UPPERS[found.upper], found.mappings]
    parts += [len(found.shares), found.hostname, entry]
    parts += [f"{one.role},{one.format},{one.identity or '-'}" for one in found.layers] + found.arguments
    return " ".join(map(str, parts))


def test_the_command_line_is_read_as_the_fake_reads_it(ask: Ask) -> None:
    inputs = [line.encode() for line in LINES]
    found = [one.lower() if IDENTITY.upper() in one else one for one in ask("tokens", inputs)]
    assert found == [fake_tokens(one) for one in inputs]
    assert found.count("bad") == len(LINES) - 10


def hostile_lines() -> Iterator[bytes]:
    chance = random.Random(3)  # noqa: S311 - the same inputs every time
    words = sorted({word for line in LINES for word in line.split()})
    for _ in range(2000):
        yield " ".join(chance.choices(words, k=chance.randrange(1, 9))).encode() + b" " + BOX.encode()


def test_hostile_command_lines_are_read_as_the_fake_reads_them(ask: Ask) -> None:
    inputs = list(hostile_lines())
    found = [one.replace(IDENTITY.upper(), IDENTITY) for one in ask("tokens", inputs)]
    assert found == [fake_tokens(one) for one in inputs]
    assert any(one != "bad" for one in found)


def test_images_say_what_they_are(ask: Ask, tmp_path: Path) -> None:
    found = images.unpack(str(tmp_path))
    assert ask("image", [path.encode() for path in (found.erofs, found.gpt, found.gpt4k, found.scratch)]) == [
        f"gpt bad 0;gpt bad 0;erofs {found.uuid};ext4 bad",
        f"gpt {found.guid} 1;gpt bad 0;erofs bad;ext4 bad",
        f"gpt bad 0;gpt {found.guid} 1;erofs bad;ext4 bad",
        f"gpt bad 0;gpt bad 0;erofs bad;ext4 {images.SCRATCH_UUID}",
    ]


def test_a_changed_byte_of_a_gpt_is_noticed(ask: Ask, tmp_path: Path) -> None:
    whole = Path(images.unpack(str(tmp_path)).gpt).read_bytes()
    head = range(512, 512 + 92)
    places = [*head, 1024, 1024 + 60, 1024 + 16383]
    paths: list[bytes] = []
    for place in places:
        path = tmp_path / f"changed-{place}"
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 : 20_000])
        paths.append(str(path).encode())
    assert {one.split(";")[0] for one in ask("image", paths)} == {"gpt bad 0"}


def test_a_gpt_that_asks_for_too_much_is_refused(ask: Ask, tmp_path: Path) -> None:
    whole = bytearray(Path(images.unpack(str(tmp_path)).gpt).read_bytes()[:20_000])
    paths: list[bytes] = []
    for name, (at, size, value) in {
        "count": (80, 4, 2**32 - 1),
        "size": (84, 4, 2**32 - 1),
        "small": (84, 4, 64),
        "place": (72, 8, 2**64 - 1),
        "header": (12, 4, 513),
        "short": (12, 4, 91),
        "none": (80, 4, 0),
    }.items():
        made = bytearray(whole)
        made[512 + at : 512 + at + size] = value.to_bytes(size, "little")
        made[512 + 16 : 512 + 20] = bytes(4)
        length = min(int.from_bytes(made[512 + 12 : 512 + 16], "little"), 512)
        made[512 + 16 : 512 + 20] = zlib.crc32(made[512 : 512 + length]).to_bytes(4, "little")
        path = tmp_path / name
        path.write_bytes(made)
        paths.append(str(path).encode())
    assert [one.split(";")[0] for one in ask("image", paths)] == ["gpt bad 0"] * len(paths)
