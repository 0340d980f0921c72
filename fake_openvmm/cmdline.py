"""The effective kernel command line: base, caller text and host tokens (contract openvmm 2.2 and 2.3)."""

from __future__ import annotations

from fake_openvmm.machine import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import Share
    from fake_openvmm.options import Options

WITH_CONSOLE = "earlycon=xe9 console=hvc1 reboot=t panic=-1"
WITHOUT_CONSOLE = "console=hvc0"
LIMIT = 2047
OLD_LIMIT = 65535

IRQS = {"distro": 4, "runtime": 12, "custom": 9, "scratch": 11}
UPPER_KEY = "nvx_overlay_upper"
RESERVED = (
    "earlycon=",
    "console=",
    "virtio_mmio.device=",
    "virtnet_ip=",
    "virtnet_mask=",
    "virtnet_gw=",
    "virtnet_dns=",
    "virtnet_ip6=",
    "virtnet_gw6=",
    "virtfs_dir=",
    "virtfs_tag=",
    "virtfs_mode=",
    "virtfs_aggregate=",
    "nvx_snapshot_tier=",
    "nr_cpus=",
    "nvx_workload_uid=",
    "nvx_workload_gid=",
    "nvx_lifecycle=",
)
CLOCK = ("tsc_early_khz=", "lapic_timer_hz=")
WITH_CONTROL = ("nvx_control_tty", "driver_async_probe", "virtio_mmio.device")
SPACE = " \t\n\f\r"


def caller_text(options: Options) -> str:
    """Join the values of `--cmdline` with one space each, empty ones skipped."""
    return " ".join(value for value in options.cmdline if value)


def tokens(text: str) -> list[str]:
    """Split at ASCII white space, as the VMM does."""
    for char in SPACE[1:]:
        text = text.replace(char, " ")
    return [token for token in text.split(" ") if token]


def ram_upper(text: str) -> bool:
    """Whether the text asks for the RAM upper (contract openvmm 1.2).

    Raises:
        Failure: the key is there without value, with another value, or more than once.
    """
    found = [token for token in tokens(text) if token.partition("=")[0] == UPPER_KEY]
    if not found:
        return False
    if found == [f"{UPPER_KEY}=ramfs"]:
        return True
    raise Failure(f"microVM {UPPER_KEY} must appear once and equal ramfs")


def build(options: Options) -> str:
    """Give base, caller text and the host tokens up to the lifecycle (steps 1 to 5).

    Raises:
        Failure: the caller uses a token that belongs to the host.
    """
    text = caller_text(options)
    _check(text, control=options.microvm_control_console is not None)
    parts = [WITH_CONSOLE if options.virtio_console else WITHOUT_CONSOLE]
    if text:
        parts.append(text)
    parts.append(f"nr_cpus={options.processors}")
    if options.microvm_workload_identity:
        parts.append("nvx_workload_uid={} nvx_workload_gid={}".format(*options.microvm_workload_identity))
    if options.microvm_lifecycle:
        parts.append(f"nvx_lifecycle={options.microvm_lifecycle}")
    return " ".join(parts)


def discover(text: str, options: Options, shares: list[Share], *, net_irq: int) -> str:
    """Append the discovery, network and share tokens (steps 7 to 9)."""
    parts = [text]
    if options.net:
        parts.append(_device(0xD0000000, net_irq))
    parts.append(_device(0xD0001000, 6))
    if options.virtio_console:
        parts.append(_device(0xD0002000, 7))
    parts += [_device(item.block.base, IRQS[item.block.role]) for item in options.microvm_sandbox_block]
    if options.microvm_control_console:
        parts += [_device(0xD0007000, 3), "nvx_control_tty=hvc2"]
    if options.net:
        parts.append(options.net[0].tokens(dns=gateway_is_reachable(options)))
    if shares:
        target = options.mount_aggregate or (options.mount.target if options.mount else "")
        mode = "ro" if all(share.readonly for share in shares) else "rw"
        parts.append(f"virtfs_dir={target} virtfs_tag=microvm virtfs_mode={mode}")
        if options.mount_aggregate:
            parts.append("virtfs_aggregate=1")
    return " ".join(parts)


def check_length(text: str, limit: int) -> None:
    """Refuse a line over `limit` bytes of UTF-8, counted after the last token.

    Raises:
        Failure: it is longer; the text names both lengths.
    """
    length = len(text.encode(errors="surrogateescape"))
    if length > limit:
        raise Failure(
            f"microVM kernel command line is {length} bytes long after device discovery; at most {limit} are allowed"
        )


def gateway_is_reachable(options: Options) -> bool:
    """Whether the egress policy lets the guest reach its gateway, which then serves it DNS (contract openvmm 2.2)."""
    gateway = options.net[0].gateway
    if options.network_egress_allow or options.network_egress_deny:
        return options.network_egress == "allow"
    if options.allow_host:
        return any(prefix.contains(gateway) for prefix in options.allow_host)
    if options.block_host:
        return not any(prefix.contains(gateway) for prefix in options.block_host)
    return not options.allow_endpoint and options.network_egress != "deny"


def _check(text: str, *, control: bool) -> None:
    if "\0" in text:
        raise Failure("microVM command line contains an embedded NUL")
    if control and '"' in text:
        raise Failure("microVM command line can't hold a double quote beside a control console")
    for token in tokens(text):
        if token.startswith(CLOCK):
            raise Failure(f"E_CMDLINE_CLOCK_TOKEN: microVM command line can't hold {token.partition('=')[0]}=")
        if token.startswith(RESERVED):
            raise Failure(f"microVM command line contains the reserved token {token.partition('=')[0]}=")
        name = token.partition("=")[0]
        if control and (name == "--" or name.replace("-", "_") in WITH_CONTROL):
            raise Failure(f"microVM command line contains {name}, which is reserved beside a control console")


def _device(base: int, irq: int) -> str:
    return f"virtio_mmio.device=0x1000@{base:#x}:{irq}"
