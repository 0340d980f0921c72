"""What the reference keeps about one sandbox, and how a caller's request becomes it.

The store knows the configuration by its file name alone; what is in it is this module's. It holds the plan, the image
bindings and where the artifacts are: never a descriptor, never the runtime identity, which is read anew at each start.
"""

from __future__ import annotations

import shlex
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
    Budget,
    ColdPlan,
    Guest,
    Hypervisor,
    Lifecycle,
    Limits,
    Machine,
    Upper,
    Workload,
    caller_text,
    explain,
)
from nvx_ref.plan.argv import Endpoints, Files, render

if TYPE_CHECKING:
    from collections.abc import Callable

_Word = TypeVar("_Word", ImageFormat, Hypervisor)
_FAULTS = (msgspec.MsgspecError, RecursionError, ValueError)


class SandboxConfiguration(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """``config.json``: everything that a start needs to know, and nothing that dies with a process.

    Args:
        format: The shape of this record: 1.
        plan: What boots.
        artifacts: Where OpenVMM, kernel and initramfs are.
        distro: The verified distro (622.scope7).
        scratch: The scratch, where the upper is one.
    """

    format: Literal[1]
    plan: ColdPlan
    artifacts: Artifacts
    distro: DistroBinding
    scratch: ScratchBinding | None = None


class SandboxRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What a caller asks for, before anything has been looked at.

    Args:
        distro: Path of the read-only image.
        format: ``erofs`` or ``gpt``; nothing is probed.
        identity: The EROFS UUID or disk GUID that the guest must find, or None.
        scratch: Path of the ext4 image for the writable upper; exactly one of this and ``ram_upper``.
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
    """

    distro: str
    format: str
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


def split_command(text: str) -> tuple[str, ...]:
    """Split a whole command into words by the rules of this host, once, at provision.

    Raises:
        Refused: It is empty, or a quotation isn't closed.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise Refused(f"the command can't be split: {error}", subject="--openvmm", detail="openvmm") from error
    if not words:
        raise Refused("the command is empty", subject="--openvmm", detail="openvmm")
    return words


def plan_of(request: SandboxRequest) -> ColdPlan:
    """Return the plan that a request means; looks at no file.

    Raises:
        Refused: A value isn't allowed, options exclude each other, or the command line is over its budget.
        Malformed: The identity isn't a UUID.
    """
    check_entrypoint(request.entrypoint)
    if request.ram_upper == (request.scratch is not None):
        raise Refused("exactly one of --scratch and --ram-upper is needed", subject="upper", detail="upper")
    plan = ColdPlan(
        version=1,
        blocks=Blocks(
            format=_word(ImageFormat, request.format, "format"),
            identity=parse_identity(request.identity) if request.identity is not None else None,
            upper=Upper.RAMFS if request.ram_upper else Upper.EXT4,
        ),
        guest=Guest(
            entrypoint=request.entrypoint,
            arguments=request.arguments,
            hostname=request.hostname,
            extra=request.cmdline,
        ),
        workload=Workload(uid=request.workload_uid, gid=request.workload_gid),
        machine=Machine(memory_mib=request.memory_mib, hypervisor=_word(Hypervisor, request.hypervisor, "hypervisor")),
        limits=Limits(memory_max=request.memory_max, pids_max=request.pids_max),
    )
    caller_text(plan)
    return plan


def configure(request: SandboxRequest, *, progress: Callable[[int, int], None] | None = None) -> SandboxConfiguration:
    """Check a request and verify its images explicitly; this is the preflight, the only step that reads content.

    Order: options, entrypoint, plan and budget; then artifacts, distro with its manifest, scratch. Writes nothing.

    Args:
        request: What the caller asks for.
        progress: Called with the bytes hashed so far and their total.

    Returns:
        The configuration to provision.

    Raises:
        NotFound: A file is missing; each is named.
        Malformed: An image, manifest or identity isn't what it should be.
        Refused: A value isn't allowed, a file can't be used, or the policy rejects the image.
    """
    plan = plan_of(request)
    blocks = plan.blocks
    if blocks is None:
        raise Refused("a distro is needed", subject="--distro", detail="distro")
    artifacts = _artifacts(request)
    distro = verify_distro(request.distro, format=blocks.format, identity=blocks.identity, progress=progress)
    scratch = verify_scratch(request.scratch) if request.scratch is not None else None
    return SandboxConfiguration(format=1, plan=plan, artifacts=artifacts, distro=distro, scratch=scratch)


def dry_run(configuration: SandboxConfiguration) -> tuple[list[str], Budget]:
    """Return the command of a one-shot run, with the files by their own names, and its command-line budget.

    Args:
        configuration: A checked one.

    Raises:
        Refused: A path is one that OpenVMM would cut or read as a container format.
    """
    plan = msgspec.structs.replace(configuration.plan, lifecycle=Lifecycle.ONE_SHOT)
    artifacts = configuration.artifacts
    files = Files(
        kernel=artifacts.kernel,
        initramfs=artifacts.initramfs,
        distro=configuration.distro.path,
        scratch=configuration.scratch.path if configuration.scratch else None,
    )
    return render(artifacts.openvmm, plan, files, Endpoints(control="none", report="none")), explain(plan)


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
        reason, subject=subject, hint="it is kept as it is; restore it, or find out what wrote it", detail="record"
    )
