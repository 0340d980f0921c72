"""Boot tokens, caller text, the budget, and the command in the contract's order."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.images import DISK_GUID, EROFS_UUID
from nvx_ref.errors import Refused
from nvx_ref.images import ImageFormat
from nvx_ref.plan import (
    CALLER_BUDGET,
    Blocks,
    ColdPlan,
    Guest,
    GuestKind,
    Hypervisor,
    Lifecycle,
    Limits,
    Machine,
    Upper,
    caller_text,
    disk_path,
    explain,
    layer_token,
)
from nvx_ref.plan.argv import MAX_PROCESS_LINE, PROCESS_LINE_RESERVE, Endpoints, Files, render

WORKED_EXAMPLE = (
    "nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs:11111111-1111-1111-1111-111111111111 "
    "nvx_scratch=0xd0006000,ext4 nvx_entrypoint=/bin/sh nvx_hostname=nvx-sandbox"
)
ENDPOINTS = Endpoints(control="/s/control.sock", report="/s/outcome.json")
DESCRIPTORS = Files(
    kernel="/proc/self/fd/5", initramfs="/proc/self/fd/6", distro="/proc/self/fd/3", scratch="/proc/self/fd/4"
)


def with_extra(text: str) -> ColdPlan:
    return ColdPlan(version=1, blocks=Blocks(format=ImageFormat.EROFS, identity=EROFS_UUID), guest=Guest(extra=text))


def test_the_worked_example_is_met_byte_for_byte(plan: ColdPlan) -> None:
    text = caller_text(plan)
    assert text == WORKED_EXAMPLE
    assert len(text.encode()) == 160


@pytest.mark.spec("622.scope2.c")
@pytest.mark.parametrize(
    ("image_format", "identity", "token"),
    [
        ("erofs", None, "nvx_layer=distro,0xd0003000,erofs"),
        ("erofs", EROFS_UUID, f"nvx_layer=distro,0xd0003000,erofs:{EROFS_UUID}"),
        ("gpt", None, "nvx_layer=distro,0xd0003000,gpt"),
        ("gpt", DISK_GUID, f"nvx_layer=distro,0xd0003000,gpt:{DISK_GUID}"),
    ],
)
def test_the_layer_token_names_format_and_identity(image_format: str, identity: str | None, token: str) -> None:
    assert layer_token(ImageFormat(image_format), identity) == token


@pytest.mark.spec("622.scope2.g")
def test_a_memory_upper_has_one_token_and_no_scratch(ram_plan: ColdPlan) -> None:
    text = caller_text(ram_plan)
    assert text.split().count("nvx_overlay_upper=ramfs") == 1
    assert "scratch" not in text
    assert text.split().index("nvx_overlay_upper=ramfs") == WORKED_EXAMPLE.split().index("nvx_scratch=0xd0006000,ext4")


def test_every_token_has_its_place() -> None:
    plan = ColdPlan(
        version=1,
        blocks=Blocks(format=ImageFormat.GPT),
        guest=Guest(extra=" quiet  loglevel=3 ", entrypoint="/sbin/init", arguments=("-c", "a=b"), hostname="h"),
        limits=Limits(memory_max=1 << 20, pids_max=99),
    )
    assert caller_text(plan) == (
        "quiet  loglevel=3 nvx_sandbox=1 nvx_layer=distro,0xd0003000,gpt nvx_scratch=0xd0006000,ext4 "
        "nvx_entrypoint=/sbin/init nvx_hostname=h nvx_arg=-c nvx_arg=a=b nvx_memory_max=1048576 nvx_pids_max=100"
    )


def test_a_direct_guest_has_its_own_tokens() -> None:
    plan = ColdPlan(version=1, guest=Guest(kind=GuestKind.DIRECT, extra="quiet", hostname="h"))
    assert caller_text(plan) == "quiet hostname=h"
    guest = Guest(kind=GuestKind.DIRECT, hostname="h", create_account=True)
    assert caller_text(ColdPlan(version=1, guest=guest)) == "hostname=h nvx_workload_account=create"


# The budget


@pytest.mark.spec("card.4")
@pytest.mark.case("T51")
@pytest.mark.spec("622.scope6.c")
@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
@pytest.mark.parametrize(("used", "fits"), [(1023, True), (1024, True), (1025, False)])
def test_the_budget_counts_bytes_with_the_nul(letter: str, used: int, fits: bool) -> None:  # noqa: FBT001
    room = used - 1 - len(WORKED_EXAMPLE) - 1
    width = len(letter.encode())
    text = letter * (room // width) + "x" * (room % width)
    plan = with_extra(text)
    assert explain(plan).used == used
    if fits:
        assert len(caller_text(plan).encode()) == used - 1
        return
    with pytest.raises(Refused) as caught:
        caller_text(plan)
    assert caught.value.detail == "budget"


@given(st.lists(st.sampled_from(["quiet", "é=1", "a.b=c"]), max_size=20).map(" ".join))
def test_the_breakdown_adds_up(extra: str) -> None:
    budget = explain(with_extra(extra))
    assert "".join(part.text for part in budget.parts) == budget.text + "\0"
    assert sum(part.size for part in budget.parts) == budget.used == len(budget.text.encode()) + 1
    assert budget.limit == CALLER_BUDGET


# Caller text


@pytest.mark.case("T51")
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a\0b", "nul"),
        ("a\nb", "control"),
        ("a\tb", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "control"),
        ("a\udcffb", "utf-8"),
        ('a="b c"', "quote"),
        ("a -- b", "dashes"),
        ("--", "dashes"),
    ],
)
def test_characters_that_would_change_the_line_are_refused(text: str, rule: str) -> None:
    with pytest.raises(Refused) as caught:
        Guest(extra=text)
    assert caught.value.detail == rule
    assert caught.value.subject == "cmdline"


@pytest.mark.case("T53")
@pytest.mark.parametrize(
    "token",
    [
        "nvx_layer=distro,0xd0003000,erofs",
        "nvx_overlay_upper=ramfs",
        "nvx_scratch=0xd0006000,ext4",
        "nvx_x",
        "nvx-layer=x",
        "virtfs_dir=/x",
        "virtnet_ip6=x",
        "virtio_mmio.device=0x1000@0:1",
        "virtio-mmio.device=0x1000@0:1",
        "earlycon=xe9",
        "console=ttyS0",
        "nr_cpus=4",
        "nr-cpus=4",
        "driver_async_probe=x",
        "tsc_early_khz=1",
        "lapic_timer_hz=1",
    ],
)
@pytest.mark.parametrize("shape", ["{}", "quiet {}", "quiet   {} x", "à{}", "x\u00a0{}"])
def test_reserved_tokens_are_refused_wherever_the_kernel_would_see_one(token: str, shape: str) -> None:
    with pytest.raises(Refused) as caught:
        Guest(extra=shape.format(token))
    assert caught.value.detail == "reserved"


@pytest.mark.parametrize("text", ["tsc=unstable", "x hostname=h"])
def test_a_direct_guests_own_tokens_are_reserved_for_it_alone(text: str) -> None:
    assert Guest(extra=text)
    with pytest.raises(Refused) as caught:
        Guest(kind=GuestKind.DIRECT, extra=text)
    assert caught.value.detail == "reserved"


@pytest.mark.parametrize("word", ["ànr_cpus=8", "àconsole=ttyS0"])
def test_a_token_hidden_in_a_word_is_refused(word: str) -> None:
    with pytest.raises(Refused) as caught:
        Guest(arguments=(word,))
    assert caught.value.detail == "reserved"


@pytest.mark.parametrize(
    "text", ["", "quiet", "__", "xnvx_layer=1", "a=nvx_b", "é", "x=à", "--foo", "rcupdate.x=1 loglevel=7"]
)
def test_other_text_passes(text: str) -> None:
    assert caller_text(with_extra(text)).startswith(text)


# The command


def test_the_command_is_in_the_contracts_order(plan: ColdPlan) -> None:
    linux = msgspec.structs.replace(plan, machine=Machine(hypervisor=Hypervisor.KVM))
    assert render(["vmm"], linux, DESCRIPTORS, ENDPOINTS) == [
        "vmm",
        "--machine",
        "microvm",
        "--microvm-sandbox-block",
        "distro:file:/proc/self/fd/3,ro",
        "--microvm-sandbox-block",
        "scratch:file:/proc/self/fd/4",
        "--microvm-workload-identity",
        "65534:65534",
        "--microvm-lifecycle",
        "managed",
        "--single-process",
        "--hypervisor",
        "kvm",
        "--memory",
        "256M",
        "--kernel",
        "/proc/self/fd/5",
        "--initrd",
        "/proc/self/fd/6",
        "--cmdline",
        WORKED_EXAMPLE,
        "--virtio-console",
        "none",
        "--microvm-control-console",
        "listen=/s/control.sock",
        "--microvm-control-auth-stdin",
        "--microvm-report",
        "/s/outcome.json",
    ]


def test_a_memory_upper_drops_the_scratch_block(ram_plan: ColdPlan) -> None:
    argv = render(["vmm"], ram_plan, msgspec.structs.replace(DESCRIPTORS, scratch=None), ENDPOINTS)
    assert argv.count("--microvm-sandbox-block") == 1


@pytest.mark.spec("622.scope1.g", "622.scope1.h")
def test_an_adapters_choices_go_behind_the_report(plan: ColdPlan) -> None:
    chosen = msgspec.structs.replace(
        plan,
        machine=Machine(
            processors=4,
            hypervisor=Hypervisor.MSHV,
            console="listen=/s/boot.sock",
            cpu_profile="intel.icelake-sp.v1",
            auth_timeout_ms=100,
        ),
    )
    argv = render(["vmm"], chosen, DESCRIPTORS, ENDPOINTS)
    assert argv[-4:] == ["--microvm-control-auth-timeout-ms", "100", "--cpu-profile", "intel.icelake-sp.v1"]
    assert argv[argv.index("--virtio-console") + 1] == "listen=/s/boot.sock"
    assert argv[argv.index("--hypervisor") + 1] == "mshv"
    assert argv[argv.index("--processors") + 1] == "4"


def test_a_one_shot_launch_has_no_control(plan: ColdPlan) -> None:
    waits = Machine(auth_timeout_ms=100)
    alone = msgspec.structs.replace(plan, lifecycle=Lifecycle.ONE_SHOT, machine=waits)
    argv = render(["vmm"], alone, DESCRIPTORS, Endpoints("none", None))
    assert argv[argv.index("--microvm-lifecycle") + 1] == "one-shot"
    assert not [word for word in argv if "control" in word or "console" in word or "report" in word]


def test_a_one_shot_launch_may_report(plan: ColdPlan) -> None:
    argv = render(["vmm"], msgspec.structs.replace(plan, lifecycle=Lifecycle.ONE_SHOT), DESCRIPTORS, ENDPOINTS)
    assert argv[argv.index("--microvm-report") + 1] == ENDPOINTS.report
    assert not [word for word in argv if "control" in word or "console" in word]


@pytest.mark.parametrize("path", ["/a,b", "/a;b", "/a[b", "/a]b", "/a.vhd", "/a.VHDX", "/a.vmgs", "/a.iso"])
def test_a_path_that_openvmm_would_read_otherwise_is_never_handed_over(plan: ColdPlan, path: str) -> None:
    with pytest.raises(Refused):
        disk_path(path)
    with pytest.raises(Refused):
        render(["vmm"], plan, msgspec.structs.replace(DESCRIPTORS, distro=path), ENDPOINTS)


@pytest.mark.parametrize("endpoint", ["/a,b/control.sock", "/a=b/control.sock"])
def test_an_endpoint_that_openvmm_would_cut_is_refused(plan: ColdPlan, endpoint: str) -> None:
    with pytest.raises(Refused) as caught:
        render(["vmm"], plan, DESCRIPTORS, Endpoints(control=endpoint, report="/r"))
    assert caught.value.detail == "endpoint"


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_the_process_line_is_counted_in_utf_16_units(plan: ColdPlan, letter: str) -> None:
    limit = 32_767 - 1_024
    assert limit == MAX_PROCESS_LINE - PROCESS_LINE_RESERVE
    rest = render(["vmm"], plan, DESCRIPTORS, ENDPOINTS)
    room = limit - 1 - len(subprocess.list2cmdline(rest)) - 1
    width = len(letter.encode("utf-16-le")) // 2
    word = letter * (room // width) + "x" * (room % width)
    render([word, "vmm"], plan, DESCRIPTORS, ENDPOINTS)
    with pytest.raises(Refused) as caught:
        render([word + "x", "vmm"], plan, DESCRIPTORS, ENDPOINTS)
    assert caught.value.detail == "process-line"


def test_uppers_are_spelled_as_the_token_says() -> None:
    assert [upper.value for upper in Upper] == ["ext4", "ramfs"]
