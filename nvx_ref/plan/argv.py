"""The VMM's arguments, in the launcher's order (contract openvmm 1.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import Refused
from nvx_ref.plan.exports import export_options
from nvx_ref.plan.model import Hypervisor, Lifecycle
from nvx_ref.plan.network import network_options
from nvx_ref.plan.tokens import caller_text
from nvx_ref.platform import DEFAULT_HYPERVISOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvx_ref.plan.model import ColdPlan, Machine

MAX_PROCESS_LINE = 32_767
PROCESS_LINE_RESERVE = 1_024
_CUT = frozenset(",;[]")
_FORMATS = (".vhd", ".vhdx", ".vmgs", ".iso")


class Files(msgspec.Struct, frozen=True):
    """The files of a launch, each by the name that the VMM opens it by.

    Args:
        kernel: The kernel.
        initramfs: The initramfs.
        distro: The distro, or None for a direct guest.
        scratch: The scratch, or None.
    """

    kernel: str
    initramfs: str
    distro: str | None = None
    scratch: str | None = None


class Endpoints(msgspec.Struct, frozen=True):
    """What a launch listens on and reports to.

    Args:
        control: The control endpoint of a managed launch.
        report: The outcome report's path; a one-shot launch may go without.
    """

    control: str
    report: str | None


def disk_path(path: str) -> str:
    """Return a path that OpenVMM's disk grammar takes whole.

    A descriptor's name always is one; a file's own name must be looked at where it is handed over itself.

    Raises:
        Refused: It holds ``,`` ``;`` ``[`` or ``]``, where OpenVMM would cut it, or an ending that it reads as a
            container format (contract openvmm 1.2).
    """
    if found := _CUT.intersection(path):
        raise Refused(f"OpenVMM would cut its path at {min(found)!r}", subject=path, hint="rename it", detail="path")
    for ending in _FORMATS:
        if path.lower().endswith(ending):
            raise Refused(
                f"OpenVMM would read it as {ending}", subject=path, hint="stage a raw file, named so", detail="path"
            )
    return path


def render(openvmm: Sequence[str], plan: ColdPlan, files: Files, endpoints: Endpoints) -> list[str]:
    """Return the whole command.

    Args:
        openvmm: The command that becomes the VMM.
        plan: The plan.
        files: What the VMM opens.
        endpoints: Where it listens and reports.

    Raises:
        Refused: The caller text is over its budget, a path can't be handed over, or the command is longer than a
            Windows process line (32,767 UTF-16 units less a reserve of 1,024; the limit holds on every host).
    """
    argv = [*openvmm, "--machine", "microvm"]
    if files.distro is not None:
        argv += ["--microvm-sandbox-block", f"distro:file:{disk_path(files.distro)},ro"]
    if files.scratch is not None:
        argv += ["--microvm-sandbox-block", f"scratch:file:{disk_path(files.scratch)}"]
    if plan.workload is not None:
        argv += ["--microvm-workload-identity", f"{plan.workload.uid}:{plan.workload.gid}"]
    if plan.exports is not None:
        argv += export_options(plan.exports)
    argv += ["--microvm-lifecycle", plan.lifecycle.value, "--single-process"]
    argv += _machine(plan.machine)
    argv += ["--kernel", files.kernel, "--initrd", files.initramfs, "--cmdline", caller_text(plan)]
    if plan.lifecycle is Lifecycle.MANAGED:
        argv += ["--virtio-console", plan.machine.console, "--microvm-control-console"]
        argv += [f"listen={_endpoint(endpoints.control)}", "--microvm-control-auth-stdin"]
    if endpoints.report is not None:
        argv += ["--microvm-report", endpoints.report]
    if plan.lifecycle is Lifecycle.MANAGED and plan.machine.auth_timeout_ms is not None:
        argv += ["--microvm-control-auth-timeout-ms", str(plan.machine.auth_timeout_ms)]
    if plan.machine.cpu_profile is not None:
        argv += ["--cpu-profile", plan.machine.cpu_profile]
    if plan.network is not None:
        argv += network_options(plan.network)
    _check_length(argv)
    return argv


def _machine(machine: Machine) -> list[str]:
    hypervisor = DEFAULT_HYPERVISOR if machine.hypervisor is Hypervisor.AUTO else machine.hypervisor.value
    argv = ["--hypervisor", hypervisor, "--memory", f"{machine.memory_mib}M"]
    return argv if machine.processors == 1 else [*argv, "--processors", str(machine.processors)]


def _endpoint(endpoint: str) -> str:
    if found := {",", "="}.intersection(endpoint):
        raise Refused(f"OpenVMM would cut it at {min(found)!r}", subject=endpoint, detail="endpoint")
    return endpoint


def _check_length(argv: Sequence[str]) -> None:
    from subprocess import list2cmdline  # noqa: PLC0415 - loaded by whoever spawns, not by whoever imports a plan

    line = list2cmdline(argv)
    units = len(line.encode("utf-16-le", "surrogatepass")) // 2 + 1
    if units > MAX_PROCESS_LINE - PROCESS_LINE_RESERVE:
        raise Refused(
            f"the command is {units} UTF-16 units, over {MAX_PROCESS_LINE - PROCESS_LINE_RESERVE}",
            subject="openvmm",
            hint="shorten paths or shares",
            detail="process-line",
        )
