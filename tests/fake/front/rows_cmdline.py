"""Rules of contract openvmm 2.2: tokens that OpenVMM refuses from its caller."""

from __future__ import annotations

from tests.support.openvmm_rows import Row, refused

RULES = {
    "2.2 reserved tokens": "refused as a prefix of any token",
    "2.2 reserved beside a control console": "in any spelling; double quotes; a bare --",
    "2.2 clock tokens": "E_CMDLINE_CLOCK_TOKEN",
    "2.2 base": "with and without a boot console",
    "2.1 other tokens": "aren't OpenVMM's business",
}

RESERVED = (
    "earlycon console virtio_mmio.device virtnet_ip virtnet_mask virtnet_gw virtnet_dns virtnet_ip6 virtnet_gw6 "
    "virtfs_dir virtfs_tag virtfs_mode virtfs_aggregate nvx_snapshot_tier nr_cpus nvx_workload_uid nvx_workload_gid "
    "nvx_lifecycle"
)
BESIDE = (
    'nvx_control_tty=hvc9 nvx-control-tty=hvc9 driver_async_probe=x driver-async_probe=x virtio-mmio.device=1 a"b -- '
)
ALONE = "~microvm-control-console ~microvm-control-auth-stdin ~microvm-lifecycle"

ROWS = [
    *(refused("2.2 reserved tokens", f"+cmdline={name}=", f"reserved token {name}=") for name in RESERVED.split()),
    refused("2.2 reserved tokens", "cmdline='a\tconsole=x'", "reserved token console="),
    refused("2.2 reserved tokens", f"{ALONE} +cmdline=nr_cpus=9", "reserved token nr_cpus="),
    Row("2.2 reserved tokens", "+cmdline=myconsole=1 +cmdline=nr_cpus +cmdline=console"),
    *(refused("2.2 reserved beside a control console", f"+cmdline='a {text} b'", "") for text in BESIDE.split()),
    *(Row("2.2 reserved beside a control console", f"{ALONE} +cmdline='a {text} b'") for text in BESIDE.split()),
    Row("2.2 reserved beside a control console", "+cmdline='a ---'"),
    refused("2.2 clock tokens", "+cmdline=tsc_early_khz=1", "E_CMDLINE_CLOCK_TOKEN"),
    refused("2.2 clock tokens", "+cmdline=lapic_timer_hz=1", "E_CMDLINE_CLOCK_TOKEN"),
    Row("2.2 base", "", line="earlycon=xe9 console=hvc1 reboot=t panic=-1 nvx_sandbox=1"),
    Row("2.2 base", f"{ALONE} ~virtio-console", line="console=hvc0 nvx_sandbox=1"),
    Row("2.1 other tokens", "+cmdline='nvx_layer=nonsense nvx_maps=x nvx_sandbox=2 é'", line="nvx_sandbox=2 é nr_cpus"),
]
