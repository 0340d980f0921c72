"""Contract openvmm 2.2 and 2.3: the worked examples and the limits."""

from __future__ import annotations

import pytest

from tests.support.openvmm_stand import Stand

BASIC = (
    "earlycon=xe9 console=hvc1 reboot=t panic=-1 nvx_sandbox=1 "
    "nvx_layer=distro,0xd0003000,erofs:11111111-1111-1111-1111-111111111111 nvx_scratch=0xd0006000,ext4 "
    "nvx_entrypoint=/bin/sh nvx_hostname=nvx-sandbox nr_cpus=1 nvx_workload_uid=65534 nvx_workload_gid=65534 "
    "nvx_lifecycle=managed{net} virtio_mmio.device=0x1000@0xd0001000:6 virtio_mmio.device=0x1000@0xd0002000:7 "
    "virtio_mmio.device=0x1000@0xd0003000:4 virtio_mmio.device=0x1000@0xd0006000:11 "
    "virtio_mmio.device=0x1000@0xd0007000:3 nvx_control_tty=hvc2{addresses}"
)
ADDRESSES = (
    " virtnet_ip=10.0.0.2 virtnet_mask=255.255.255.0 virtnet_gw=10.0.0.1 virtnet_dns=10.0.0.1 "
    "virtnet_ip6=fd00::a00:2/120 virtnet_gw6=fd00::a00:1"
)
SHARE = " virtfs_dir=/mnt/share virtfs_tag=microvm virtfs_mode=rw"
ALONE = 339  # what the VMM adds to the caller of the worked example, one joining space included


def test_the_worked_example(stand: Stand) -> None:
    assert stand.run(side={}).status == 0
    assert stand.cmdline() == BASIC.format(net="", addresses="")
    assert len(stand.cmdline()) == 499


def test_the_worked_example_with_a_network(stand: Stand) -> None:
    assert stand.run("net=10.0.0.2/24 network-profile=portable", side={}).status == 0
    assert stand.cmdline() == BASIC.format(net=" virtio_mmio.device=0x1000@0xd0000000:10", addresses=ADDRESSES)
    assert len(stand.cmdline()) == 679


def test_shares_come_after_the_network(stand: Stand) -> None:
    (stand.path / "share").mkdir()
    changes = "net=10.0.0.2/24 network-profile=portable mount=/mnt/share,@/share,rw"
    assert stand.run(changes, side={}).status == 0
    assert stand.cmdline().endswith(ADDRESSES + SHARE)


def test_the_order_of_options_does_not_matter(stand: Stand) -> None:
    argv = stand.argv()
    pairs: list[list[str]] = []
    for word in argv:
        if word.startswith("--"):
            pairs.append([word])
        else:
            pairs[-1].append(word)
    blocks = [pair for pair in pairs if pair[0] == "--microvm-sandbox-block"]
    others = [pair for pair in pairs if pair not in blocks]
    stand.start([word for pair in [*reversed(others), *blocks] for word in pair], side={})
    assert stand.finish().status == 0
    assert stand.cmdline() == BASIC.format(net="", addresses="")


@pytest.mark.case("T50")
@pytest.mark.spec("622.scope6.a", "622.scope6.d", "622.acc.19", "card.4")
@pytest.mark.parametrize("letter", ["x", "é"])
@pytest.mark.parametrize(("length", "status"), [(2046, 0), (2047, 0), (2048, 1)])
def test_the_limit_counts_bytes_after_the_last_token(stand: Stand, letter: str, length: int, status: int) -> None:
    size = length - ALONE
    text = letter * (size // len(letter.encode()))
    text += "x" * (size - len(text.encode()))
    outcome = stand.run(f"cmdline={text}", side={})
    assert outcome.status == status, outcome.log
    if status:
        assert outcome.category == "vmm-failure"
        assert "2048 bytes" in outcome.log
        assert "2047" in outcome.log
        assert not outcome.socket_left
        assert [event["role"] for event in stand.evidence("opened")] == ["distro", "scratch", "kernel", "initrd"]
    else:
        assert len(stand.cmdline().encode()) == length
        assert stand.cmdline().endswith(" nvx_control_tty=hvc2")


@pytest.mark.parametrize(("length", "status"), [(65535, 0), (65536, 1)])
def test_the_older_limit(stand: Stand, length: int, status: int) -> None:
    outcome = stand.run(f"cmdline={'x' * (length - ALONE)}", side={"knobs": {"old_limit": True}})
    assert outcome.status == status, outcome.log


@pytest.mark.spec("622.scope6.a")
def test_network_and_share_tokens_count(stand: Stand) -> None:
    (stand.path / "share").mkdir()
    extra = "mount=/mnt/share,@/share,rw"
    size = 2047 - ALONE - len(SHARE)
    assert stand.run(f"cmdline={'x' * size} {extra} ~microvm-report").status == 0
    assert stand.run(f"cmdline={'x' * (size + 1)} {extra} ~microvm-report").status == 1
