"""Groups of options that several commands share, and the request that they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, TypeVar

import click
from click.core import ParameterSource

from nvx_ref.cli.host import MountFlags, NetworkFlags, environment, network, shares
from nvx_ref.cli.types import Pair, Seconds
from nvx_ref.configuration import SandboxRequest, split_command
from nvx_ref.errors import Refused
from nvx_ref.images import check_entrypoint
from nvx_ref.nvxc import ExecRequest

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., object]")

MAX_EXEC_TIMEOUT_MS = 2**32 - 1
FORMATS = click.Choice(["erofs", "gpt"])
_VERDICT = click.Choice(["allow", "deny"])
_PIECES: tuple[Literal["openvmm", "kernel", "initrd", "manifest"], ...] = ("openvmm", "kernel", "initrd", "manifest")


class _Option(Protocol):
    def __call__(self, function: F, /) -> F: ...


class SandboxOptions(TypedDict):
    """What :func:`describes_sandbox` gives a command, by name."""

    distro: str
    format: str
    identity: str | None
    scratch: str | None
    ram_upper: bool
    artifacts: str | None
    openvmm: str | None
    kernel: str | None
    initrd: str | None
    manifest: str | None
    hostname: str
    entrypoint: str
    arguments: tuple[str, ...]
    workload_user: tuple[int, int]
    memory_mib: int
    memory_max: int | None
    pids_max: int | None
    hypervisor: str
    cmdline: str
    mount: tuple[str, ...]
    mount_deny: tuple[str, ...]
    mount_allow: tuple[str, ...]
    mount_write: tuple[str, ...]
    mount_owner: str | None
    net_net: str | None
    net_profile: str | None
    net_egress: str | None
    net_ingress: str | None
    net_allow: tuple[str, ...]
    net_deny: tuple[str, ...]
    net_policy_file: str | None
    net_loopback: str | None
    net_forwards: tuple[str, ...]
    net_proxy: str | None


class ExecOptions(TypedDict):
    """What :func:`executes` gives a command, by name."""

    cwd: str | None
    environment: tuple[str, ...]
    environment_file: str | None
    inherit_default_environment: bool
    exec_timeout_ms: int


def bound(function: F) -> F:
    """Add the bound of an operation."""
    return click.option(
        "--timeout",
        type=Seconds(),
        default=60.0,
        show_default=True,
        metavar="S",
        help="Bound of the operation, seconds.",
    )(function)


def sandbox(function: F) -> F:
    """Add what every operation on one sandbox takes: its directory and a bound in seconds."""
    place = click.option("--state-dir", required=True, metavar="D", help="The sandbox's own directory.")
    return place(bound(function))


def describes_sandbox(function: F) -> F:
    """Add the options that say what to boot, shared by `provision` and `run`."""
    for option in reversed([*_what(), *_mounts(), *_network()]):
        function = option(function)
    return function


def executes(function: F) -> F:
    """Add how `exec` runs its program."""
    for option in reversed(_execution()):
        function = option(function)
    return function


def execution(argv: tuple[str, ...], options: ExecOptions) -> ExecRequest:
    """Return the request that the options of `exec` ask for.

    Args:
        argv: The program and its arguments.
        options: The options.

    Raises:
        NotFound: The environment file is missing.
        Malformed: It isn't one, or the request is none.
        Refused: The two ways to give variables exclude each other.
    """
    entries, path = options["environment"], options["environment_file"]
    if entries and path is not None:
        raise Refused("it excludes --environment", subject="--environment-file", detail="environment")
    inherits = options["inherit_default_environment"]
    given = bool(entries) or path is not None or inherits
    return ExecRequest(
        argv=argv,
        cwd=options["cwd"],
        environment=(environment(path) if path is not None else entries) if given else None,
        inherit_environment=inherits,
        timeout_ms=options["exec_timeout_ms"],
    )


def outcome_report(function: F) -> F:
    """Add where to publish how it ended."""
    return click.option(
        "--outcome-report", "report", metavar="PATH", help="Publish how it ended there; the file must not exist yet."
    )(function)


def request(options: SandboxOptions) -> SandboxRequest:
    """Return what the options ask for.

    Raises:
        NotFound: The policy file is missing.
        Malformed, Refused: An option's value isn't one, or options need or exclude each other.
    """
    given = _chosen_artifacts(options)
    uid, gid = given["workload_user"]
    # What excludes each other comes before the entrypoint, and that before anything that is looked up or read.
    if given["ram_upper"] == (given["scratch"] is not None):
        raise Refused("exactly one of --scratch and --ram-upper is needed", subject="upper", detail="upper")
    check_entrypoint(given["entrypoint"])
    return SandboxRequest(
        distro=given["distro"],
        format=given["format"],
        identity=given["identity"],
        scratch=given["scratch"],
        ram_upper=given["ram_upper"],
        artifacts=given["artifacts"],
        openvmm=split_command(given["openvmm"]) if given["openvmm"] is not None else None,
        kernel=given["kernel"],
        initrd=given["initrd"],
        manifest=given["manifest"],
        hostname=given["hostname"],
        entrypoint=given["entrypoint"],
        arguments=given["arguments"],
        workload_uid=uid,
        workload_gid=gid,
        memory_mib=given["memory_mib"],
        memory_max=given["memory_max"],
        pids_max=given["pids_max"],
        hypervisor=given["hypervisor"],
        cmdline=given["cmdline"],
        network=network(_network_flags(given)),
        shares=shares(_mount_flags(given)),
    )


def _mount_flags(given: SandboxOptions) -> MountFlags:
    return MountFlags(
        mount=given["mount"],
        deny=given["mount_deny"],
        allow=given["mount_allow"],
        write=given["mount_write"],
        owner=given["mount_owner"],
    )


def _network_flags(given: SandboxOptions) -> NetworkFlags:
    return NetworkFlags(
        net=given["net_net"],
        profile=given["net_profile"],
        egress=given["net_egress"],
        ingress=given["net_ingress"],
        allow=given["net_allow"],
        deny=given["net_deny"],
        policy_file=given["net_policy_file"],
        loopback=given["net_loopback"],
        forwards=given["net_forwards"],
        proxy=given["net_proxy"],
    )


def _chosen_artifacts(options: SandboxOptions) -> SandboxOptions:
    """Let the command line win over the environment, and a whole set of pieces over a directory."""
    context = click.get_current_context()
    pieces = {name: options[name] for name in _PIECES}
    typed = {name for name in ("artifacts", *pieces) if _is_typed(context, name)}
    chosen = options.copy()
    if "artifacts" in typed:
        for name in _PIECES:
            if name not in typed:
                chosen[name] = None
    elif typed or all(value is not None for value in pieces.values()):
        chosen["artifacts"] = None
    return chosen


def _is_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _what() -> list[_Option]:
    return [
        click.option("--distro", required=True, metavar="PATH", help="The read-only distro image."),
        click.option("--format", "format", type=FORMATS, required=True, help="The image's format."),
        click.option("--identity", metavar="UUID", help="The identity that the guest must find in the image."),
        click.option("--scratch", metavar="PATH", help="A whole-device ext4 image for the writable upper."),
        click.option("--ram-upper", is_flag=True, help="Keep the writable upper in the guest's memory."),
        click.option("--artifacts", metavar="DIR", envvar="NVX_ARTIFACTS_DIR", help="A release or checkout layout."),
        click.option("--openvmm", metavar="CMD", envvar="NVX_OPENVMM", help="The VM monitor's whole command."),
        click.option("--kernel", metavar="K", envvar="NVX_KERNEL", help="The guest's kernel (uncompressed ELF)."),
        click.option("--initrd", metavar="I", envvar="NVX_INITRD", help="The guest's initramfs."),
        click.option("--manifest", metavar="M", envvar="NVX_MANIFEST", help="SOURCE-MANIFEST.json of the artifacts."),
        click.option("--hostname", default="nvx-sandbox", show_default=True, help="The guest's host name."),
        click.option("--entrypoint", default="/bin/sh", show_default=True, metavar="PATH", help="First program."),
        click.option("--arg", "arguments", multiple=True, help="An argument of the entrypoint (repeatable)."),
        click.option(
            "--workload-user", type=Pair(), default="65534:65534", show_default=True, help="Who workloads run as."
        ),
        click.option("--memory-mib", type=click.IntRange(min=1), default=256, show_default=True, help="Guest memory."),
        click.option("--memory-max", type=click.IntRange(min=1), metavar="BYTES", help="The workload's memory limit."),
        click.option("--pids-max", type=click.IntRange(min=1), metavar="N", help="The workload's process limit."),
        click.option(
            "--hypervisor", type=click.Choice(["auto", "kvm", "mshv", "whp"]), default="auto", show_default=True
        ),
        click.option("--cmdline", default="", metavar="TEXT", help="Text put before the kernel command line."),
    ]


def _execution() -> list[_Option]:
    return [
        click.option("--cwd", metavar="DIR", help="The program's working directory, absolute."),
        click.option("--environment", multiple=True, metavar="K=V", help="One variable of the program (repeatable)."),
        click.option("--environment-file", metavar="FILE", help="All its variables: a JSON array of K=V."),
        click.option(
            "--inherit-default-environment", is_flag=True, help="Lay the variables on top of the guest's default ones."
        ),
        click.option(
            "--exec-timeout-ms",
            type=click.IntRange(min=0, max=MAX_EXEC_TIMEOUT_MS),
            default=0,
            show_default=True,
            help="End the program after this many milliseconds; 0 means never.",
        ),
    ]


def _mounts() -> list[_Option]:
    return [
        click.option("--mount", multiple=True, metavar="GUEST,HOST[,ro|rw]", help="Share HOST at GUEST (repeatable)."),
        click.option("--mount-deny", multiple=True, metavar="PATH", help="Hide a path of a share (repeatable)."),
        click.option("--mount-allow", multiple=True, metavar="PATH", help="Show one below a hidden one (repeatable)."),
        click.option("--mount-write", multiple=True, metavar="PATH", help="Let only these be written (repeatable)."),
        click.option("--mount-owner", type=click.Choice(["vmm", "caller"]), help="Whom shared files belong to [vmm]."),
    ]


def _network() -> list[_Option]:
    return [
        click.option("--net", "net_net", metavar="IPV4/PREFIX", help="Give the guest a network with this address."),
        click.option("--network-profile", "net_profile", type=click.Choice(["portable"]), help="Needed with --net."),
        click.option("--network-egress", "net_egress", type=_VERDICT, help="What happens to what no rule names."),
        click.option("--network-ingress", "net_ingress", type=_VERDICT, help="Always denied; allow is refused."),
        click.option(
            "--network-egress-allow",
            "net_allow",
            multiple=True,
            metavar="RULE",
            help="CIDR[:tcp[:P[-P]]|:udp...|:icmp].",
        ),
        click.option("--network-egress-deny", "net_deny", multiple=True, metavar="RULE", help="The same; it wins."),
        click.option("--network-egress-policy-file", "net_policy_file", metavar="FILE", help="A whole policy as JSON."),
        click.option("--host-loopback", "net_loopback", type=_VERDICT, help="The host's loopback [deny]."),
        click.option(
            "--host-loopback-forward",
            "net_forwards",
            multiple=True,
            metavar="tcp|udp:HOST:GUEST",
            help="One port of it.",
        ),
        click.option("--network-proxy", "net_proxy", metavar="GATEWAY:PORT", help="One TCP port of the gateway."),
    ]
