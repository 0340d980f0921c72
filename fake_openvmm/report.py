"""The outcome report (contract openvmm 4): six keys, staged beside its destination, published without overwriting."""

from __future__ import annotations

import os

from fake_openvmm import host
from fake_openvmm.machine import Failure, TeardownFailure, WorkerDied, absolute
from fake_openvmm.validate import POLICY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from fake_openvmm.machine import Tools
    from fake_openvmm.options import Options

    Value: TypeAlias = "bool | int | str | dict[str, Value]"

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
BACKENDS = ("auto", "kvm", "mshv", "whp")


class Report:
    """The report of one run, planned before the run and written once after it."""

    def __init__(self, options: Options, path: str) -> None:
        """Take from the options what the report tells; it never holds paths, addresses or error texts."""
        self.path = path
        self.instance = os.urandom(16).hex()
        self.backend = "auto" if options.hypervisor is None else options.hypervisor.partition(":")[0]
        self.operation = _operation(options)
        self.requested = options.any_of((*POLICY, "net", "network-profile")) is not None
        self.mode = _mode(options, requested=self.requested)
        self.allowed = len(options.network_egress_allow) + len(options.allow_host) + len(options.allow_endpoint)
        self.denied = len(options.network_egress_deny) + len(options.block_host)
        self.loopback = (options.host_loopback or "allow") if self.requested else "none"

    def text(self, result: int | Failure) -> str:
        """Give the report of a run that returned a status or failed: pretty JSON, two spaces, one final newline."""
        category, status = _category(result)
        vm, control = True, True
        if isinstance(result, TeardownFailure):
            vm, control = result.vm_stopped, result.vm_stopped and result.control_closed
        if not self.requested:
            policy = ("not-requested", 0)
        else:
            policy = ("failed", 1) if category == "vmm-failure" else ("applied", 0)
        document: Value = {
            "schema_version": 1,
            "instance_id": self.instance,
            "backend": self.backend,
            "outcome": {"operation": self.operation, "category": category, "status_code": status},
            "network_policy": {
                "status": policy[0],
                "status_code": policy[1],
                "mode": self.mode,
                "allow_rule_count": self.allowed,
                "deny_rule_count": self.denied,
                "host_loopback": self.loopback,
            },
            "teardown": {
                "guest_workload_stopped": vm,
                "vm_stopped": vm,
                "openvmm_process_terminated": True,
                "virtiofs_released": vm,
                "network_released": vm,
                "temporary_storage_removed": True,
                "control_channels_closed": control,
            },
        }
        return _pretty(document) + "\n"

    def write(self, result: int | Failure, tools: Tools) -> None:
        """Write a staging file, flush it, publish it.

        A process that is killed in between leaves `.tmp` and six alphanumerics beside the destination, or, where the
        kernel can't rename without replacing, possibly both names.

        Raises:
            Failure: the report could not be written; the staging file is removed.
        """
        knobs = tools.knobs
        if knobs.flag("no_report"):
            return
        text = knobs.text("report_text") or self.text(result)
        staging = self._stage(text.encode(errors="surrogateescape"))
        tools.evidence.event("staged", path=staging)
        try:
            tools.pauses.at("before_publish")
            if knobs.flag("report_fails"):
                os.unlink(staging)
            if knobs.flag("leave_staging"):
                os.link(staging, self.path)
            else:
                host.publish(staging, self.path, by_link=knobs.flag("report_by_link"))
        except (OSError, Failure) as error:
            _remove(staging)
            raise Failure(f"failed to publish the microVM report: {error}") from error
        tools.evidence.event("report", path=self.path)

    def _stage(self, data: bytes) -> str:
        parent = os.path.dirname(self.path) or "."
        for _ in range(1 << 16):
            name = "".join(ALPHABET[byte % len(ALPHABET)] for byte in os.urandom(6))
            path = os.path.join(parent, f".tmp{name}")
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | host.OPEN_FLAGS, 0o600)
            except FileExistsError:
                continue
            except OSError as error:
                raise Failure(f"failed to create the microVM report staging file: {error}") from error
            try:
                while data:
                    data = data[os.write(fd, data) :]
                os.fsync(fd)
            except OSError as error:
                _remove(path)
                raise Failure(f"failed to write the microVM report: {error}") from error
            finally:
                os.close(fd)
            return path
        raise Failure("failed to create the microVM report staging file: no free name")


def plan(options: Options) -> Report | None:
    """Step 3 of section 5: check the destination. None without `--microvm-report`.

    Raises:
        Failure: the report can't be written there, or doesn't know the machine or the hypervisor; no report then.
    """
    if options.microvm_report is None:
        return None
    if options.machine != "microvm":
        raise Failure("--microvm-report requires a microVM machine")
    path = absolute(options.microvm_report, "microVM report path")
    parent = os.path.dirname(path.rstrip("/")) or "/"
    try:
        if not host.is_plain_directory(parent):
            raise Failure("microVM report parent is not a plain directory")
    except OSError as error:
        raise Failure(f"failed to inspect the microVM report parent {parent}: {error}") from error
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Failure(f"microVM report destination cannot be inspected: {error}") from error
    else:
        raise Failure("microVM report destination already exists")
    report = Report(options, path)
    if report.backend not in BACKENDS:
        raise Failure("microVM report backend category is unsupported")
    return report


def _operation(options: Options) -> str:
    if "restore-snapshot" in options.given:
        return "restore"
    if "snapshot-destination" in options.given:
        return "capture"
    return "managed" if options.microvm_lifecycle == "managed" else "run"


def _mode(options: Options, *, requested: bool) -> str:
    if options.network_egress_allow or options.network_egress_deny:
        return "rules"
    for name, mode in (("allow-host", "allow-list"), ("block-host", "block-list"), ("allow-endpoint", "endpoint")):
        if name in options.given:
            return mode
    if options.network_egress == "deny":
        return "deny-all"
    return "allow-all" if requested else "none"


def _category(result: int | Failure) -> tuple[str, int]:
    if isinstance(result, int):
        return ("guest-exit", result) if result else ("success", 0)
    if isinstance(result, TeardownFailure):
        return "teardown-failure", 1
    return ("guest-exit", 1) if isinstance(result, WorkerDied) else ("vmm-failure", 1)


def _pretty(value: Value, indent: str = "") -> str:
    """Write what the report consists of; its values are words and numbers, so nothing needs escaping."""
    if isinstance(value, dict):
        inner = indent + "  "
        return (
            "{\n"
            + ",\n".join(f'{inner}"{key}": {_pretty(item, inner)}' for key, item in value.items())
            + f"\n{indent}}}"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f'"{value}"'


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
