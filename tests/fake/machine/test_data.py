"""What a workload leaves in `$HOME`, over stop and start; and a guest that runs once (contract openvmm 6)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fake_openvmm import archive
from fake_openvmm.blocks import Device
from fake_openvmm.ext4 import Ext4
from tests.fake.machine.client import STOP, STOPPED, Host

HOST = "nvx_workload_uid=65534 nvx_workload_gid=65534"
MANAGED = f"{HOST} nvx_lifecycle=managed nvx_control_tty=hvc2"
LAYER = "nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs"
SCRATCH = "nvx_scratch=0xd0006000,ext4"
RAM = "nvx_overlay_upper=ramfs"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
Make = Callable[..., bytes]


@pytest.fixture
def start(machines: Any, make_erofs: Make) -> Callable[..., Any]:
    """Start a layered guest with a scratch, again on the same one, or with an upper in memory."""
    distro = machines.block("distro", machines.write("distro", make_erofs()))

    def begin(scratch: str | None = None, **knobs: Any) -> Any:
        if scratch is None:
            return machines.start(machines.config(f"{LAYER} {RAM} {MANAGED}", distro), **knobs)
        config = machines.config(f"{LAYER} {SCRATCH} {MANAGED}", distro, machines.block("scratch", scratch))
        return machines.start(config, **knobs)

    return begin


def stop(vm: Any, host: Host) -> None:
    assert host.call(STOP) == (STOPPED, 0, b"")
    assert vm.wait() == 0


def needs_recovery(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return Ext4(Device(fd)).recovered
    finally:
        os.close(fd)


def fsck(path: str) -> None:
    program = shutil.which("e2fsck", path=PATH)
    if program is None:
        pytest.skip("e2fsck is missing: install the Debian package e2fsprogs")
    run = subprocess.run([program, "-fn", path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


MAKE = """cd && mkdir -p d/e && echo text > d/e/f && ln -s e/f d/link && printf '\\377\\0x' > bytes && chmod 500 d/e
head -c 200000 /dev/urandom > big && sha256sum big > sums && mkfifo pipe && touch -d @1000000000 d/e/f"""
CHECK = """cd && cat d/e/f d/link && od -An -tx1 bytes && sha256sum -c sums && ls && stat -c '%a %Y' d/e d/e/f"""


def test_data_on_an_ext4_upper_survives_stop_and_start(machines: Any, start: Callable[..., Any]) -> None:
    path = machines.ext4()
    before = os.stat(path)
    first = start(path)
    host = first.host().attach()
    assert host.run("/bin/sh", "-c", MAKE)[3:] == (0, "exit")
    assert needs_recovery(path)
    stop(first, host)
    assert not needs_recovery(path)
    fsck(path)
    for _ in range(2):
        again = start(path)
        host = again.host().attach()
        lines = host.run("/bin/sh", "-c", CHECK).stdout.decode().splitlines()
        assert lines[:2] == ["text", "text"]
        assert lines[2:5] == [" ff 00 78", "big: OK", "big"]
        assert lines[5:8] == ["bytes", "d", "sums"]
        assert lines[8].split()[0] == "500"
        assert lines[9].split()[1] == "1000000000"
        stop(again, host)
        fsck(path)
    after = os.stat(path)
    assert (before.st_dev, before.st_ino, before.st_size) == (after.st_dev, after.st_ino, after.st_size)


def test_what_was_deleted_stays_deleted(machines: Any, start: Callable[..., Any]) -> None:
    path = machines.ext4()
    for script, expected in (("touch ~/a ~/b", b""), ("rm ~/a", b""), ("ls ~", b"b\n")):
        vm = start(path)
        host = vm.host().attach()
        assert host.run("/bin/sh", "-c", script).stdout == expected
        stop(vm, host)


def test_a_run_without_a_workload_changes_no_data(machines: Any, start: Callable[..., Any]) -> None:
    path = machines.ext4()
    for script in ("echo kept > ~/f", None, "cat ~/f"):
        vm = start(path)
        host = vm.host().attach()
        if script:
            ended = host.run("/bin/sh", "-c", script)
            assert ended.stdout == (b"kept\n" if script.startswith("cat") else b"")
        stop(vm, host)


def test_data_in_an_upper_in_memory_is_gone(start: Callable[..., Any]) -> None:
    for script, expected in (("echo x > ~/f; cat ~/f", b"x\n"), ("ls ~", b"")):
        vm = start()
        host = vm.host().attach()
        assert host.run("/bin/sh", "-c", script).stdout == expected
        stop(vm, host)


def test_the_home_of_a_guest_is_gone_with_it(start: Callable[..., Any]) -> None:
    vm = start()
    host = vm.host().attach()
    script = "echo $HOME; mkdir ~/d; touch ~/d/f; chmod 0 ~/d; chmod 0 ~"
    home = host.run("/bin/sh", "-c", script).stdout.decode().strip()
    assert os.path.isdir(home)
    stop(vm, host)
    assert not os.path.exists(home)


def test_a_bit_left_by_a_crash_stops_no_boot(machines: Any, start: Callable[..., Any]) -> None:
    path = machines.ext4()
    fd = os.open(path, os.O_RDWR)
    Ext4(Device(fd)).mark(mounted=True)
    os.close(fd)
    vm = start(path)
    host = vm.host().attach()
    assert vm.witness.of("guest")[0]["recovered"] is True
    stop(vm, host)
    assert not needs_recovery(path)


def test_more_data_than_fits_is_lost_and_said(machines: Any, start: Callable[..., Any]) -> None:
    path = machines.ext4("small.img", "-O", "^has_journal", size=1 << 20)
    vm = start(path)
    host = vm.host().attach()
    assert host.run("/bin/sh", "-c", "head -c 2000000 /dev/zero > ~/f").category == "exit"
    stop(vm, host)
    fsck(path)


def test_an_archive_gives_what_it_took(tmp_path: Any) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "dir").mkdir()
    (source / "dir" / os.fsdecode(b"na\xffme")).write_bytes(b"\0" * 100)
    (source / "dangling").symlink_to("nowhere")
    packed = archive.pack(os.fsencode(source))
    target = tmp_path / "target"
    target.mkdir()
    archive.unpack(os.fsencode(target), packed)
    assert archive.pack(os.fsencode(target)) == packed
    archive.remove(os.fsencode(target))
    assert not target.exists()


# One-shot guests


def once(machines: Any, make_erofs: Make, tokens: str, *, lifecycle: str = "one-shot") -> Any:
    distro = machines.block("distro", machines.write("distro", make_erofs()))
    life = f"nvx_lifecycle={lifecycle}" if lifecycle else ""
    return machines.start(machines.config(f"{LAYER} {RAM} {tokens} {HOST} {life}", distro))


@pytest.mark.parametrize("lifecycle", ["one-shot", ""])
@pytest.mark.parametrize(
    ("tokens", "status"),
    [
        ("nvx_entrypoint=/bin/true", 0),
        ("nvx_entrypoint=/bin/false", 1),
        ("nvx_entrypoint=/bin/sh nvx_arg=-c nvx_arg=exit${IFS}7", 7),
        ("nvx_entrypoint=/bin/sh nvx_arg=-c nvx_arg=kill${IFS}-9${IFS}$$", 137),
        ("nvx_entrypoint=/nonexistent", 125),
    ],
)
def test_an_entrypoint_ends_the_guest_with_its_status(
    machines: Any, make_erofs: Make, tokens: str, status: int, lifecycle: str
) -> None:
    assert once(machines, make_erofs, tokens, lifecycle=lifecycle).wait() == status


def test_a_direct_guest_without_an_agent_powers_off(machines: Any) -> None:
    assert machines.start(machines.config(f"hostname=box {HOST}")).wait() == 0


def test_a_guest_that_refuses_to_boot_ends_with_125(machines: Any, make_erofs: Make) -> None:
    vm = once(machines, make_erofs, "nvx_entrypoint=relative")
    assert vm.wait() == 125
    assert "nvx_entrypoint" in str(vm.witness.of("refused")[0]["reason"])
