"""The cold plan: everything that decides what boots, typed, validated, and kept as JSON.

A plan holds values; never a descriptor, or a path that dies with a process. What is opened and handed over belongs to
:class:`nvx_ref.plan.PreparedLaunch`. Every field is written out, so that a later build's defaults change no kept plan.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nvx_ref.errors import Malformed, Refused
from nvx_ref.images import ImageFormat, check_entrypoint, parse_identity
from nvx_ref.plan.exports import ExportPlan
from nvx_ref.plan.network import NetworkPlan
from nvx_ref.plan.text import check_caller_text, check_word, in_range

MAX_UINT32 = 0xFFFFFFFF
MAX_MEMORY_MIB = 1 << 24
MAX_MEMORY = (1 << 63) - 1
MAX_PIDS = 1 << 22
MAX_AUTH_TIMEOUT_MS = 60_000
_HOSTNAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_CPU_PROFILE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"


class Upper(StrEnum):
    """Where a sandbox's writes go."""

    EXT4 = "ext4"
    RAMFS = "ramfs"


class GuestKind(StrEnum):
    """Which agent runs in the guest, and so which tokens it reads.

    ``layered`` is NVX's with a distro and shares by token; ``direct`` has no distro and takes mappings by ``MAPS``;
    ``adapter`` is an external orchestrator's own agent over a distro, with mappings over its own transport.
    """

    LAYERED = "layered"
    DIRECT = "direct"
    ADAPTER = "adapter"


class Hypervisor(StrEnum):
    """The backend; ``auto`` is WHP on Windows and KVM elsewhere."""

    AUTO = "auto"
    KVM = "kvm"
    MSHV = "mshv"
    WHP = "whp"


class Lifecycle(StrEnum):
    """Who ends the sandbox: a controller, or its own entrypoint."""

    MANAGED = "managed"
    ONE_SHOT = "one-shot"


class Blocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The block devices: one read-only distro, and what is above it (622.scope2).

    Args:
        format: The distro's; the boot token names it.
        identity: The EROFS UUID or disk GUID that the guest checks, or None. Partition GUIDs have no transport.
        upper: A whole-device ext4 scratch, or memory.
    """

    format: ImageFormat
    identity: str | None = None
    upper: Upper = Upper.EXT4

    def __post_init__(self) -> None:
        if self.identity is not None and parse_identity(self.identity) != self.identity:
            raise Malformed("a plan keeps UUIDs in lower case", subject="identity", detail="identity")


class Guest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """What the guest is told.

    Args:
        kind: Which agent runs.
        entrypoint: An absolute path without white space; layered and adapter guests only.
        arguments: The entrypoint's; nonempty, no white space. Longer texts need a managed exec.
        hostname: One lower-case label of RFC 1123.
        extra: The caller's own command-line text; reserved tokens are refused.
        create_account: Whether a direct guest creates the workload's account.
        activation: The identity of the activation configuration that the caller expects these inputs to have. It is
            kept and compared, and has no boot transport.
    """

    kind: GuestKind = GuestKind.LAYERED
    entrypoint: str = "/bin/sh"
    arguments: tuple[str, ...] = ()
    hostname: str = "nvx-sandbox"
    extra: str = ""
    create_account: bool = False
    activation: str | None = None

    def __post_init__(self) -> None:
        check_entrypoint(self.entrypoint)
        check_word(self.entrypoint, what="entrypoint")
        if not self.entrypoint.startswith("/"):
            raise Refused("an absolute path is needed", subject="entrypoint", detail="entrypoint")
        for argument in self.arguments:
            check_word(argument, what="argument")
        if not re.fullmatch(_HOSTNAME, self.hostname):
            raise Refused(f"{self.hostname!r} isn't a lower-case host name", subject="hostname", detail="hostname")
        check_caller_text(self.extra, what="cmdline", direct=self.kind is GuestKind.DIRECT)
        if self.create_account and self.kind is not GuestKind.DIRECT:
            raise Refused("only a direct guest creates the workload's account", subject="guest", detail="account")


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Whom the workload runs as. Root is not expressible: 0 is never a profile in disguise (622.scope1.j).

    Args:
        uid: 1 to 2^32-1.
        gid: The same.
    """

    uid: Annotated[int, Meta(ge=1, le=MAX_UINT32)] = 65534
    gid: Annotated[int, Meta(ge=1, le=MAX_UINT32)] = 65534

    def __post_init__(self) -> None:
        in_range(self.uid, 1, MAX_UINT32, "workload user")
        in_range(self.gid, 1, MAX_UINT32, "workload group")


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The virtual machine.

    Args:
        memory_mib: In MiB.
        processors: 1, 2, 4 or 8; 1 is OpenVMM's own default and isn't passed.
        hypervisor: The backend.
        console: The boot console: ``none``, ``listen=...`` or ``connect=...``; an adapter's choice.
        cpu_profile: A pinned profile, or None for OpenVMM's own choice.
        auth_timeout_ms: How long a host may take to authenticate, or None for OpenVMM's 5,000 ms.
    """

    memory_mib: Annotated[int, Meta(ge=1, le=MAX_MEMORY_MIB)] = 256
    processors: Literal[1, 2, 4, 8] = 1
    hypervisor: Hypervisor = Hypervisor.AUTO
    console: str = "none"
    cpu_profile: str | None = None
    auth_timeout_ms: Annotated[int, Meta(ge=1, le=MAX_AUTH_TIMEOUT_MS)] | None = None

    def __post_init__(self) -> None:
        in_range(self.memory_mib, 1, MAX_MEMORY_MIB, "memory in MiB")
        if self.processors not in {1, 2, 4, 8}:
            raise Refused(f"{self.processors} isn't 1, 2, 4 or 8", subject="processors", detail="range")
        name, _, rest = self.console.partition("=")
        if "\0" in self.console or not (self.console == "none" or (name in {"listen", "connect"} and rest)):
            raise Refused(
                f"{self.console!r} isn't none, listen=... or connect=...", subject="console", detail="console"
            )
        if self.cpu_profile is not None and not re.fullmatch(_CPU_PROFILE, self.cpu_profile):
            raise Refused(f"{self.cpu_profile!r} isn't a profile's name", subject="cpu profile", detail="cpu-profile")
        if self.auth_timeout_ms is not None:
            in_range(self.auth_timeout_ms, 1, MAX_AUTH_TIMEOUT_MS, "authentication timeout in ms")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The workload's limits.

    Args:
        memory_max: In bytes, or None.
        pids_max: How many processes the workload may have, or None. The token carries one more, for the guest's own.
    """

    memory_max: Annotated[int, Meta(ge=1, le=MAX_MEMORY)] | None = None
    pids_max: Annotated[int, Meta(ge=1, le=MAX_PIDS)] | None = None

    def __post_init__(self) -> None:
        if self.memory_max is not None:
            in_range(self.memory_max, 1, MAX_MEMORY, "memory limit")
        if self.pids_max is not None:
            in_range(self.pids_max, 1, MAX_PIDS, "process limit")


class ColdPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One cold launch, as data (622.scope1).

    Args:
        version: The shape of this record: 1.
        blocks: The distro and its upper; None for a direct guest, and for no other.
        guest: The guest's boot inputs.
        workload: The fixed identity, or None where an adapter's guest decides; a managed lifecycle needs one.
        machine: The virtual machine.
        limits: The workload's limits.
        lifecycle: Managed or one-shot.
        exports: The shared host paths and their mappings (:func:`plan_shares`, :func:`plan_mappings`), or None.
        network: The lowered policy (:func:`plan_network`), or None for no network device.
    """

    version: Literal[1]
    blocks: Blocks | None = None
    guest: Guest = Guest()
    workload: Workload | None = Workload()
    machine: Machine = Machine()
    limits: Limits = Limits()
    lifecycle: Lifecycle = Lifecycle.MANAGED
    exports: ExportPlan | None = None
    network: NetworkPlan | None = None

    def __post_init__(self) -> None:
        if (self.blocks is None) != (self.guest.kind is GuestKind.DIRECT):
            raise Refused(
                "a direct guest has no distro, and every other guest has one", subject="distro", detail="blocks"
            )
        if self.workload is None and self.lifecycle is Lifecycle.MANAGED:
            raise Refused("a managed launch needs a workload identity", subject="workload", detail="workload")
        if self.exports is not None:
            _check_exports(self.exports, layered=self.guest.kind is GuestKind.LAYERED)


def _check_exports(exports: ExportPlan, *, layered: bool) -> None:
    if layered and (exports.mappings or any(child.target is None for child in exports.children)):
        raise Refused("a layered guest takes shares, and refuses every mapping", subject="exports", detail="exports")
    if not layered and any(child.target is not None for child in exports.children):
        raise Refused("shares by token are for layered guests", subject="exports", detail="exports")


def encode_plan(plan: ColdPlan) -> bytes:
    """Return a plan's one JSON form: two-space indent, declared order, a final newline."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


def decode_plan(raw: bytes) -> ColdPlan:
    """Read a plan back.

    Raises:
        Malformed: It isn't JSON, has an unknown or a missing field, or a value of another type.
        Refused: A value isn't allowed.
    """
    try:
        return msgspec.json.decode(raw, type=ColdPlan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a cold plan: {error}", subject="plan", detail="plan") from error


def json_schema(kind: type[msgspec.Struct] = ColdPlan) -> bytes:
    """Return the JSON schema of a plan, or of another record, as a text to publish.

    Args:
        kind: The record.
    """
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(kind), order="sorted"), indent=2) + b"\n"
