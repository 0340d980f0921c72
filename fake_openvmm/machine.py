"""The seam between the program (options, checks, report) and the machine (broker, guest, images).

The program fills in a `MachineConfig` and a `Tools` and calls `fake_openvmm.guest.run(config, opened, tools)`. Nothing
here knows the operating system, and nothing here is imported that a bare interpreter doesn't hold already.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # what type checkers read as true; importing typing would cost a third of an interpreter start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from fake_openvmm.knobs import Knobs
    from fake_openvmm.pauses import Pauses
    from fake_openvmm.transport import Server

    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Failure(Exception):  # noqa: N818 - the report calls it a failure
    """An error of the VMM itself: `fatal error:` in the log, status 1, category `vmm-failure`.

    `blocks.open_block` and `guest.run` raise it too. The text names what failed, never a capability.
    """


class TeardownFailure(Failure):
    """Workers did not stop cleanly: status 1, category `teardown-failure` (contract openvmm 4)."""

    def __init__(self, message: str, *, vm_stopped: bool, control_closed: bool) -> None:
        """Carry what the teardown flags of the report follow."""
        super().__init__(message)
        self.vm_stopped = vm_stopped
        self.control_closed = control_closed


class WorkerDied(Failure):
    """The VM worker is gone, teardown is complete: status 1, category `guest-exit` (contract openvmm 4)."""


class Block:
    """One `--microvm-sandbox-block` (contract openvmm 1.2).

    Attributes:
        role: `distro`, `runtime`, `custom` or `scratch`.
        path: the file as given, None for `mem:`.
        memory: bytes of a `mem:` disk, None for a file.
        readonly: whether `,ro` was given.
        direct: whether `;direct` was given.
        create: bytes of `;create=`, None without.
        base: MMIO base of the role's slot.
    """

    __slots__ = ("base", "create", "direct", "memory", "path", "readonly", "role")

    def __init__(
        self,
        role: str,
        path: str | None,
        *,
        readonly: bool,
        base: int,
        memory: int | None = None,
        direct: bool = False,
        create: int | None = None,
    ) -> None:
        """Hold the fields."""
        self.role = role
        self.path = path
        self.readonly = readonly
        self.base = base
        self.memory = memory
        self.direct = direct
        self.create = create


class Share:
    """One shared host directory: `--mount`, or one `--mount-child` of an aggregate (contract openvmm 1.6).

    Attributes:
        name: the child's name below the aggregate, None for `--mount`.
        host: the host path, absolute and without symlinks.
        readonly: whether the share's mode is `ro`.
        denied, allowed, writable: host paths of the share's policy, absolute.
    """

    __slots__ = ("allowed", "denied", "host", "name", "readonly", "writable")

    def __init__(self, name: str | None, host: str, *, readonly: bool) -> None:
        """Hold the fields; the policy lists are filled in later."""
        self.name = name
        self.host = host
        self.readonly = readonly
        self.denied: list[str] = []
        self.allowed: list[str] = []
        self.writable: list[str] = []


class MachineConfig:
    """What the machine is built from once every check of the program has passed.

    Attributes:
        blocks: in role order.
        kernel, initrd: the paths as given (initrd None if absent); `opened` holds the descriptors.
        cmdline: the effective command line, host tokens included.
        identity: (UID, GID) of `--microvm-workload-identity`, or None.
        lifecycle: `managed`, `one-shot` or None.
        capability: the 32 bytes from standard input, None without a control console.
        auth_timeout_ms: from accepting a host connection to a valid HOST_ATTACH.
        listener: the listening control endpoint, non-blocking, or None. The program made it and removes it.
        shares: in the order given; more than one only of an aggregate.
        aggregate: whether `--mount-aggregate` was used.
        owner: `vmm` or `caller` (`--mount-owner`).
        processors: virtual processors.
        memory: bytes of guest memory.
    """

    __slots__ = (
        "aggregate",
        "auth_timeout_ms",
        "blocks",
        "capability",
        "cmdline",
        "identity",
        "initrd",
        "kernel",
        "lifecycle",
        "listener",
        "memory",
        "owner",
        "processors",
        "shares",
    )

    def __init__(self) -> None:
        """Start with what an empty command line means."""
        self.blocks: list[Block] = []
        self.kernel = ""
        self.initrd: str | None = None
        self.cmdline = ""
        self.identity: tuple[int, int] | None = None
        self.lifecycle: str | None = None
        self.capability: bytes | None = None
        self.auth_timeout_ms = 5000
        self.listener: Server | None = None
        self.shares: list[Share] = []
        self.aggregate = False
        self.owner = "vmm"
        self.processors = 1
        self.memory = 1 << 30


class Log:
    """The log lines of the VMM (contract openvmm 5): tracing on stderr, raw portb bytes, the final fatal line."""

    __slots__ = ("_portb", "_start", "level")

    LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR")

    def __init__(self) -> None:
        """Start the uptime; INFO and above are written, unless `OPENVMM_LOG` names another level."""
        self._start = time.monotonic_ns()
        self._portb = 1
        words = os.environ.get("OPENVMM_LOG", "").upper().split(",")
        self.level = next((self.LEVELS.index(word) for word in words if word in self.LEVELS), 2)
        if "OFF" in words:
            self.level = len(self.LEVELS)

    def portb_to(self, fd: int) -> None:
        """Send raw portb output to descriptor `fd` from now on (stderr once the REPL is off)."""
        self._portb = fd

    def line(self, level: str, target: str, message: str, **fields: str | float | bool) -> None:
        """Write one tracing line; unsigned integers are shown in hex."""
        if self.LEVELS.index(level) < self.level:
            return
        seconds, nanos = divmod(time.monotonic_ns() - self._start, 1_000_000_000)
        tail = "".join(f" {key}={_shown(value)}" for key, value in fields.items())
        write_all(2, f"{seconds:4}.{nanos:09}s {level:>5} {target}: {message}{tail}\n".encode(errors="surrogateescape"))

    def info(self, target: str, message: str, **fields: str | float | bool) -> None:
        """Write an INFO line."""
        self.line("INFO", target, message, **fields)

    def warn(self, target: str, message: str, **fields: str | float | bool) -> None:
        """Write a WARN line, for example for a peer that the broker turned away."""
        self.line("WARN", target, message, **fields)

    def portb(self, data: bytes) -> None:
        """Write raw bytes of port 0xe9, for example `NVX-MANAGED-ERROR: stage=tty status=2` and a newline."""
        write_all(self._portb, data)

    def fatal(self, message: str) -> None:
        """Write the last line of a run that ends in an error."""
        write_all(2, f"fatal error: {message}\n".encode(errors="surrogateescape"))


class Evidence:
    """What the program did, as JSON lines for the harness; without a side file every call costs one comparison.

    A line is one write to a file opened for appending, so threads and signal handlers may write at any time.
    """

    __slots__ = ("_encode", "_fd", "_secret")

    def __init__(self, fd: int | None = None, encode: Callable[[dict[str, object]], str] | None = None) -> None:
        """Write to `fd` with `encode`, or nowhere."""
        self._fd = fd
        self._encode = encode
        self._secret = ""

    def __bool__(self) -> bool:
        return self._fd is not None

    def protect(self, capability: bytes) -> None:
        """Never let the capability (in hex) into a line."""
        self._secret = capability.hex()

    def event(self, kind: str, **fields: object) -> None:
        """Append `{"time": nanoseconds, "kind": kind, ...}`; fields are JSON values. The clock is monotonic.

        Kinds of the program: `start`, `descriptors`, `capability`, `listening`, `cmdline`, `opened`, `manifest`, `at`,
        `resumed`, `report`, `removed`, `signal`, `exit`. Kinds of the machine: whatever it documents.
        """
        if self._fd is None or self._encode is None:
            return
        line = self._encode({"time": time.monotonic_ns(), "kind": kind, **fields})
        if self._secret and self._secret in line.lower():
            line = self._encode({"time": time.monotonic_ns(), "kind": kind, "redacted": True})
        write_all(self._fd, line.encode() + b"\n")


class Tools:
    """Everything that the machine may use of the program.

    Attributes:
        evidence: see `Evidence`.
        knobs: the misbehaviour that the side file asks for.
        pauses: `pauses.at(point)` at each point of `fake_openvmm.knobs.POINTS`.
        log: see `Log`.
        console: takes bytes that the guest writes to its boot console (hvc1); dropped with `--virtio-console none`.
        machine: what the side file says of a real machine behind the front, None for the guest model.
        opened: called once every file that the command line names has been opened.
    """

    __slots__ = ("console", "evidence", "knobs", "log", "machine", "opened", "pauses")

    def __init__(self, evidence: Evidence, knobs: Knobs, pauses: Pauses, log: Log) -> None:
        """Hold them; the console drops what it is given until the program connects it."""
        self.evidence = evidence
        self.knobs = knobs
        self.pauses = pauses
        self.log = log
        self.console: Callable[[bytes], None] = _dropped
        self.opened: Callable[[], None] = _nothing
        self.machine: dict[str, Json] | None = None


def absolute(path: str, what: str) -> str:
    """Take a relative path from the working directory, which an absolute one doesn't need.

    Raises:
        Failure: the working directory is gone.
    """
    if os.path.isabs(path):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except OSError as error:
        raise Failure(f"failed to resolve the {what} {path}: {error.strerror}") from error


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; a reader that is gone or a full disk is nobody's error here."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return


def _nothing() -> None:
    return


def _dropped(data: bytes) -> None:
    del data


def _shown(value: str | float | bool) -> str:  # noqa: FBT001 - a field's value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value >= 0:
        return hex(value)
    return f'"{value}"' if isinstance(value, str) and (" " in value or not value) else str(value)
