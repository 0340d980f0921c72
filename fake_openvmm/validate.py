"""What the microVM profile refuses once the command line is read (contract openvmm 1, status 1 with a report)."""

from __future__ import annotations

from fake_openvmm import cmdline, host
from fake_openvmm.machine import Failure
from fake_openvmm.options import FOREIGN, NOT_WITH_AUTH, SNAPSHOT, names_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_openvmm.options import Options

PROCESSORS = (1, 2, 4, 8)
RULES = 256
FORWARDS = 64
POLICY_PATHS = 128
CHILDREN = 256
AUTH_TIMEOUT_MS = 60_000
BOOT_CONSOLES = ("listen", "listen-tcp", "connect", "connect-tcp", "console", "none")
POLICY = (
    "network-egress",
    "network-ingress",
    "network-egress-allow",
    "network-egress-deny",
    "host-loopback",
    "host-loopback-forward",
    "network-proxy",
    "allow-host",
    "block-host",
    "allow-endpoint",
)


def precheck(options: Options) -> str | None:
    """Step 2 of section 5: host loopback can't be allowed without a forward. Give the fault, or None."""
    if options.machine == "microvm" and options.host_loopback == "allow" and not options.host_loopback_forward:
        return "--host-loopback allow requires --host-loopback-forward: the portable profile has no other way in"
    return None


def check(options: Options) -> None:
    """Step 4 of section 5, as far as the command line alone tells.

    Raises:
        Failure: the first fault, in the order in which the VMM looks for them.
    """
    if options.machine != "microvm":
        raise Failure("this stand-in knows the microVM machine only; pass --machine microvm")
    for part in (_general, _consoles, _lifecycle, _mounts, _blocks, _network, _rules, _needs_net):
        fault = next(part(options), None)
        if fault:
            raise Failure(fault)


def _general(o: Options) -> Iterator[str]:
    unsupported = o.any_of(names_of(SNAPSHOT))
    if unsupported:
        yield f"--{unsupported} is unsupported by this stand-in: it neither captures nor restores snapshots"
    if o.processors not in PROCESSORS:
        yield f"microVM does not support {o.processors} vCPUs"
    foreign = o.any_of(names_of(FOREIGN))
    if foreign:
        yield f"microVM does not support --{foreign}"
    other = o.any_of(NOT_WITH_AUTH)
    if other:
        yield f"--{other} is unsupported by this stand-in"
    if o.hypervisor is not None and o.hypervisor.partition(":")[0] not in host.HYPERVISORS:
        yield "microVM requires KVM or MSHV on Linux, or WHP on Windows"
    vendor, dot, _ = o.cpu_profile.partition(".")
    if o.cpu_profile not in ("auto", "host") and not (dot and vendor in ("intel", "amd")):
        yield f"E_PROFILE_UNSUPPORTED: no CPU profile is called '{o.cpu_profile}'"


def _consoles(o: Options) -> Iterator[str]:
    boot, control = o.virtio_console, o.microvm_control_console
    if boot and boot.kind not in BOOT_CONSOLES:
        yield "microVM virtio-console requires listen=..., connect=..., console, or none"
    if o.microvm_control_auth_stdin and boot and boot.kind == "console":
        yield "--microvm-control-auth-stdin reserves stdin; use a socket or none for the boot console"
    if not control:
        return
    if not boot:
        yield "--microvm-control-console requires --virtio-console for a fresh boot"
    if control.kind not in ("listen", "none"):
        yield "microVM control console requires listen=<path> or none"
    if not 1 <= o.microvm_control_auth_timeout_ms <= AUTH_TIMEOUT_MS:
        yield f"--microvm-control-auth-timeout-ms must be between 1 and {AUTH_TIMEOUT_MS}"
    if control.kind == "none" and o.microvm_control_auth_stdin:
        yield "--microvm-control-auth-stdin is not used with a disconnected control console"
    if control.kind != "none" and not o.microvm_control_auth_stdin:
        yield "live microVM control console requires --microvm-control-auth-stdin"


def _lifecycle(o: Options) -> Iterator[str]:
    if o.microvm_lifecycle != "managed":
        return
    if not o.microvm_workload_identity:
        yield "--microvm-lifecycle managed requires --microvm-workload-identity"
    if not o.microvm_control_console or o.microvm_control_console.kind == "none":
        yield "--microvm-lifecycle managed requires a live --microvm-control-console"
    if not o.microvm_control_auth_stdin:
        yield "--microvm-lifecycle managed requires --microvm-control-auth-stdin"


def _mounts(o: Options) -> Iterator[str]:
    aggregate = o.mount_aggregate
    if not o.mount and aggregate is None and (o.mount_deny or o.mount_allow or o.mount_write or o.mount_owner):
        yield "--mount-deny, --mount-allow, --mount-write, and --mount-owner require --mount or --mount-aggregate"
    if aggregate is None:
        for kind, paths in (("denied", o.mount_deny), ("allowed", o.mount_allow), ("writable", o.mount_write)):
            if len(paths) > POLICY_PATHS:
                yield f"microVM filesystem permits at most {POLICY_PATHS} {kind} paths"
    else:
        from fake_openvmm.sharegrammar import target_fault  # noqa: PLC0415 - only with shares

        fault = target_fault(aggregate)
        if fault:
            yield f"invalid --mount-aggregate: {fault}"
        if not 1 <= len(o.mount_child) <= CHILDREN:
            yield f"microVM aggregate filesystem requires 1 to {CHILDREN} children"
        names = [child.name for child in o.mount_child]
        if len(set(names)) != len(names):
            yield "microVM aggregate child names must be unique"
    if o.mount_owner == "caller" and not host.CALLER_OWNED_SHARES:
        yield "--mount-owner caller requires a Linux host"


def _blocks(o: Options) -> Iterator[str]:
    blocks = [item.block for item in o.microvm_sandbox_block]
    upper = cmdline.ram_upper(cmdline.caller_text(o))
    if len(blocks) > len(cmdline.IRQS):
        yield "microVM permits at most three read-only layers and one writable scratch device"
    order = list(cmdline.IRQS)
    previous = -1
    for item in o.microvm_sandbox_block:
        role = item.block.role
        if item.extra:
            yield f"microVM sandbox block {role} must be a plain VTL0 disk, without {item.extra}"
        if item.block.readonly != (role != "scratch"):
            yield f"microVM sandbox block role {role} must be {'writable' if role == 'scratch' else 'read-only'}"
        if order.index(role) <= previous:
            yield "microVM sandbox block roles must be unique and in fixed order"
        previous = order.index(role)
    if upper and [block.role for block in blocks] != ["distro"]:
        yield "microVM RAM-backed overlay requires exactly one read-only distro block"
    if not upper and blocks and blocks[-1].role != "scratch":
        yield "microVM sandbox block topology requires a writable scratch device"


def _network(o: Options) -> Iterator[str]:
    if len(o.net) > 1:
        yield "microVM permits at most one virtio-net device"
    if o.net and o.network_profile is None:
        yield "microVM --net requires --network-profile portable"
    if o.network_profile is not None and not o.net:
        yield "--network-profile portable requires --net"
    if o.net and o.network_proxy and o.network_proxy.address != o.net[0].gateway:
        yield "network proxy address must match the guest gateway"
    if o.net_tap is not None:
        yield "--net-tap is incompatible with the portable microVM network profile"
    if o.network_ingress == "allow":
        yield "--network-ingress allow is unsupported by the portable microVM network profile"


def _rules(o: Options) -> Iterator[str]:
    rules = bool(o.network_egress_allow or o.network_egress_deny)
    if len(o.network_egress_allow) > RULES or len(o.network_egress_deny) > RULES:
        yield f"microVM egress policy permits at most {RULES} allow rules and {RULES} deny rules"
    if len(o.host_loopback_forward) > FORWARDS:
        yield f"microVM host loopback permits at most {FORWARDS} explicit port forwards"
    if o.host_loopback_forward and o.host_loopback != "allow":
        yield "--host-loopback-forward requires explicit --host-loopback allow"
    ports = [(forward.protocol, forward.host) for forward in o.host_loopback_forward]
    if len(set(ports)) != len(ports):
        yield "microVM host-loopback forwards cannot bind one protocol and host port more than once"
    if rules and o.network_egress is None:
        yield "--network-egress is required with --network-egress-allow or --network-egress-deny"
    if rules and (o.allow_host or o.block_host or o.allow_endpoint):
        yield "egress rules cannot be combined with --allow-host, --block-host, or --allow-endpoint"
    if o.network_egress == "allow" and (o.allow_host or o.allow_endpoint):
        yield "--network-egress allow conflicts with default-deny egress allow rules"
    if o.network_egress == "deny" and o.block_host:
        yield "--network-egress deny conflicts with default-allow egress block rules"


def _needs_net(o: Options) -> Iterator[str]:
    option = o.any_of(POLICY)
    if option and not o.net:
        yield f"microVM network policy requires --net: --{option}"
