"""What the reference keeps about one sandbox, and how a caller's request becomes it.

The store knows the configuration by its file name alone; what is in it is this module's. It holds the plan, the image
bindings and where the artifacts are: never a descriptor, never the runtime identity, which is read anew at each start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from nvx_ref.errors import Malformed, Refused
from nvx_ref.images import (
    Artifacts,
    DistroBinding,
    ImageFormat,
    ScratchBinding,
    check_entrypoint,
    explicit_artifacts,
    find_artifacts,
    parse_identity,
    verify_distro,
    verify_scratch,
)
from nvx_ref.plan import (
    Blocks,
    ColdPlan,
    Guest,
    GuestKind,
    Hypervisor,
    Limits,
    Machine,
    MappingPolicy,
    NetworkPolicy,
    Owner,
    Protected,
    Share,
    Upper,
    Workload,
    caller_text,
    check_command,
    plan_mappings,
    plan_network,
    plan_shares,
    prepare,
)
from nvx_ref.platform import words as commands

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nvx_ref.plan import PreparedLaunch

_Word = TypeVar("_Word", ImageFormat, Hypervisor, GuestKind)
_FAULTS = (msgspec.MsgspecError, RecursionError, ValueError)


class SandboxConfiguration(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """``config.json``: everything that a start needs to know, and nothing that dies with a process.

    Args:
        format: The shape of this record: 1.
        plan: What boots.
        artifacts: Where OpenVMM, kernel and initramfs are.
        distro: The verified distro (622.scope7); a direct guest has none.
        scratch: The scratch, where the upper is one.
    """

    format: Literal[1]
    plan: ColdPlan
    artifacts: Artifacts
    distro: DistroBinding | None = None
    scratch: ScratchBinding | None = None

    def check_command(self, state: str) -> None:
        """Refuse what could be started nowhere or never (:func:`nvx_ref.plan.check_command`).

        Args:
            state: Its state directory, which may not be there yet.
        """
        check_command(
            self.plan,
            self.artifacts,
            state=state,
            distro=self.distro.path if self.distro else None,
            scratch=self.scratch.path if self.scratch else None,
        )

    def prepare(self, state: str) -> PreparedLaunch:
        """Check the inputs of a launch by metadata and open them (:func:`nvx_ref.plan.prepare`).

        Args:
            state: Its state directory, which no export may reach.
        """
        return prepare(
            self.plan, self.artifacts, distro=self.distro, scratch=self.scratch, protected=self.protected(state)
        )

    def protected(self, state: str) -> tuple[Protected, ...]:
        """Return what no export of the sandbox may reach (622.scope4).

        Args:
            state: Its state directory, which may not be there yet.
        """
        images = {
            "the distro": self.distro.path if self.distro else None,
            "the scratch": self.scratch.path if self.scratch else None,
        }
        return _protected(state, images, self.artifacts)


class SandboxRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What a caller asks for, before anything has been looked at.

    Args:
        guest: ``layered``, ``direct`` or ``adapter``: which agent the initramfs runs.
        distro: Path of the read-only image; None for a direct guest, and for no other.
        format: ``erofs`` or ``gpt``, with a distro; nothing is probed.
        identity: The EROFS UUID or disk GUID that the guest must find, or None.
        scratch: Path of the ext4 image for the writable upper; with a distro exactly one of this and ``ram_upper``.
        ram_upper: Keep the upper in the guest's memory.
        artifacts: A release or checkout directory; or else all of the next four.
        openvmm: The VM monitor's command, word by word: its process must be the VMM itself.
        kernel: Path of the kernel.
        initrd: Path of the initramfs.
        manifest: Path of ``SOURCE-MANIFEST.json``, with ``SHA256SUMS`` beside it.
        hostname: The guest's.
        entrypoint: The first program, absolute.
        arguments: Its arguments.
        workload_uid: Who workloads run as, never 0.
        workload_gid: Their group, never 0.
        memory_mib: The guest's memory.
        memory_max: The workload's memory limit in bytes, or None.
        pids_max: The workload's process limit, or None.
        hypervisor: ``auto``, ``kvm``, ``mshv`` or ``whp``.
        cmdline: Text put before the kernel command line.
        processors: 1, 2, 4 or 8.
        console: The boot console, an adapter's choice; ``none`` discards it.
        cpu_profile: A pinned profile, or None.
        auth_timeout_ms: How long a host may take to authenticate, or None.
        create_account: Whether a direct guest creates the workload's account.
        activation: The activation configuration's expected identity, kept with the plan.
        shares: What a layered guest sees of the host.
        mappings: What a direct or adapter guest sees of it.
        owner: Whom mapped files seem to belong to.
        network: The network policy, already authorised, or None for no network device.
    """

    guest: str = "layered"
    distro: str | None = None
    format: str | None = None
    identity: str | None = None
    scratch: str | None = None
    ram_upper: bool = False
    artifacts: str | None = None
    openvmm: tuple[str, ...] | None = None
    kernel: str | None = None
    initrd: str | None = None
    manifest: str | None = None
    hostname: str = "nvx-sandbox"
    entrypoint: str = "/bin/sh"
    arguments: tuple[str, ...] = ()
    workload_uid: int = 65534
    workload_gid: int = 65534
    memory_mib: int = 256
    memory_max: int | None = None
    pids_max: int | None = None
    hypervisor: str = "auto"
    cmdline: str = ""
    processors: Literal[1, 2, 4, 8] = 1
    console: str = "none"
    cpu_profile: str | None = None
    auth_timeout_ms: int | None = None
    create_account: bool = False
    activation: str | None = None
    shares: tuple[Share, ...] = ()
    mappings: MappingPolicy = MappingPolicy()
    owner: Owner = Owner.VMM
    network: NetworkPolicy | None = None


def split_command(text: str) -> tuple[str, ...]:
    """Split a whole command into words by the rules of this host, once, at provision.

    Raises:
        Refused: It is empty, or a quotation isn't closed.
    """
    try:
        words = tuple(commands.split_command(text))
    except ValueError as error:
        raise Refused(f"the command can't be split: {error}", subject="--openvmm", detail="openvmm") from error
    if not words:
        raise Refused("the command is empty", subject="--openvmm", detail="openvmm")
    return words


def configure(
    request: SandboxRequest, *, state: str | None = None, progress: Callable[[int, int], None] | None = None
) -> SandboxConfiguration:
    """Check a request and verify its images explicitly; this is the preflight, the only step that reads content.

    Order: options, entrypoint, every value and the budget; artifacts; shares or mappings; the command; then distro with
    its manifest, scratch. Writes nothing.

    Args:
        request: What the caller asks for.
        state: The directory that the sandbox shall have, which no share may reach; it needn't be there yet.
        progress: Called with the bytes hashed so far and their total.

    Returns:
        The configuration to provision.

    Raises:
        NotFound: A file is missing; each is named.
        Malformed: An image, manifest or identity isn't what it should be.
        Refused: A value isn't allowed, a file can't be used, or the policy rejects the image.
    """
    plan = _values(request)
    caller_text(plan)
    artifacts = _artifacts(request)
    images = {"the distro": request.distro, "the scratch": request.scratch}
    plan = _with_exports(plan, request, _protected(state, images, artifacts))
    if state is not None:
        # Before the images, which may take minutes.
        check_command(plan, artifacts, state=state, distro=request.distro, scratch=request.scratch)
    distro = None
    if plan.blocks is not None and request.distro is not None:
        blocks = plan.blocks
        distro = verify_distro(request.distro, format=blocks.format, identity=blocks.identity, progress=progress)
    scratch = verify_scratch(request.scratch) if request.scratch is not None else None
    return SandboxConfiguration(format=1, plan=plan, artifacts=artifacts, distro=distro, scratch=scratch)


def encode(configuration: SandboxConfiguration) -> bytes:
    """Return the file text: two-space indent, declared order, a final newline."""
    return msgspec.json.format(msgspec.json.encode(configuration), indent=2) + b"\n"


def decode(raw: bytes, subject: str) -> SandboxConfiguration:
    """Read ``config.json``.

    Args:
        raw: The file's bytes.
        subject: The file, for the error.

    Raises:
        Malformed: It isn't a configuration of this format in its one form; the file is left as it is.
    """
    try:
        configuration = msgspec.json.decode(raw, type=SandboxConfiguration)
        canonical = msgspec.json.format(raw, indent=-1) == msgspec.json.encode(configuration)
    except _FAULTS as error:
        raise _malformed(f"not a valid configuration: {str(error)[:200]}", subject) from None
    except (Refused, Malformed) as error:
        raise _malformed(f"not a valid configuration: {error}", subject) from error
    if not canonical:
        raise _malformed("a field is duplicated, out of order, null or needlessly escaped", subject)
    return configuration


def _check_options(request: SandboxRequest, kind: GuestKind) -> None:
    """Refuse options that exclude each other; looks at no value and no file."""
    if kind is GuestKind.DIRECT:
        if request.distro is not None or request.scratch is not None or request.ram_upper:
            raise Refused("a direct guest has neither a distro nor an upper", subject="guest", detail="blocks")
    elif request.distro is None or request.format is None:
        raise Refused("a distro and its format are needed", subject="--distro", detail="distro")
    elif request.ram_upper == (request.scratch is not None):
        raise Refused("exactly one of --scratch and --ram-upper is needed", subject="upper", detail="upper")
    if request.shares and kind is not GuestKind.LAYERED:
        raise Refused("shares by token are for layered guests", subject="shares", detail="exports")
    if request.mappings != MappingPolicy() and kind is GuestKind.LAYERED:
        raise Refused("a layered guest takes shares, and refuses every mapping", subject="mappings", detail="exports")


def _blocks(request: SandboxRequest) -> Blocks | None:
    if request.format is None:
        return None
    return Blocks(
        format=_word(ImageFormat, request.format, "format"),
        identity=parse_identity(request.identity) if request.identity is not None else None,
        upper=Upper.RAMFS if request.ram_upper else Upper.EXT4,
    )


def _values(request: SandboxRequest) -> ColdPlan:
    """Return the plan without its exports, which alone need a look at the host."""
    kind = _word(GuestKind, request.guest, "guest")
    _check_options(request, kind)
    check_entrypoint(request.entrypoint)
    return ColdPlan(
        version=1,
        blocks=_blocks(request),
        guest=Guest(
            kind=kind,
            entrypoint=request.entrypoint,
            arguments=request.arguments,
            hostname=request.hostname,
            extra=request.cmdline,
            create_account=request.create_account,
            activation=request.activation,
        ),
        workload=Workload(uid=request.workload_uid, gid=request.workload_gid),
        machine=Machine(
            memory_mib=request.memory_mib,
            processors=request.processors,
            hypervisor=_word(Hypervisor, request.hypervisor, "hypervisor"),
            console=request.console,
            cpu_profile=request.cpu_profile,
            auth_timeout_ms=request.auth_timeout_ms,
        ),
        limits=Limits(memory_max=request.memory_max, pids_max=request.pids_max),
        network=plan_network(request.network),
    )


def _with_exports(plan: ColdPlan, request: SandboxRequest, protected: Sequence[Protected]) -> ColdPlan:
    if plan.guest.kind is GuestKind.LAYERED:
        exports = plan_shares(request.shares, protected=protected)
    else:
        exports = plan_mappings(request.mappings, protected=protected, owner=request.owner)
    plan = msgspec.structs.replace(plan, exports=exports)
    caller_text(plan)
    return plan


def _protected(state: str | None, images: Mapping[str, str | None], artifacts: Artifacts) -> tuple[Protected, ...]:
    found = [Protected(state, "the state directory", planned=True)] if state is not None else []
    found += [Protected(path, what) for what, path in images.items() if path is not None]
    bundle = {"the kernel": artifacts.kernel, "the initramfs": artifacts.initramfs}
    bundle["the artifacts' manifest"] = artifacts.manifest
    found += [Protected(path, what) for what, path in bundle.items()]
    if len(artifacts.openvmm) == 1 and os.path.isabs(artifacts.openvmm[0]):
        found.append(Protected(artifacts.openvmm[0], "OpenVMM", planned=True))
    return tuple(found)


def _artifacts(request: SandboxRequest) -> Artifacts:
    named = {
        "--openvmm": request.openvmm,
        "--kernel": request.kernel,
        "--initrd": request.initrd,
        "--manifest": request.manifest,
    }
    given = [option for option, value in named.items() if value is not None]
    if request.artifacts is not None:
        if given:
            raise Refused(f"it excludes {', '.join(given)}", subject="--artifacts", detail="artifacts")
        return find_artifacts(request.artifacts)
    if request.openvmm is None or request.kernel is None or request.initrd is None or request.manifest is None:
        missing = ", ".join(option for option in named if option not in given)
        raise Refused(
            f"{missing} missing",
            subject="artifacts",
            hint="pass --artifacts DIR, or all of --openvmm, --kernel, --initrd and --manifest",
            detail="artifacts",
        )
    return explicit_artifacts(
        request.openvmm, kernel=request.kernel, initramfs=request.initrd, manifest=request.manifest
    )


def _word(kind: type[_Word], value: str, what: str) -> _Word:
    try:
        return kind(value)
    except ValueError:
        raise Refused(
            f"{value!r} is none of {', '.join(word.value for word in kind)}", subject=what, detail=what
        ) from None


def _malformed(reason: str, subject: str) -> Malformed:
    return Malformed(
        reason,
        subject=subject,
        hint="it is kept as it is; restore it, or deprovision and provision again",
        detail="record",
    )
