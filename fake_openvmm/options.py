"""The options of the microVM profile, and a parser of their clap-like grammar (contract openvmm 1)."""

from __future__ import annotations

from fake_openvmm import grammar
from fake_openvmm.grammar import BadValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_openvmm.grammar import BlockOption, Console
    from fake_openvmm.netgrammar import Endpoint, Forward, Net, Prefix
    from fake_openvmm.sharegrammar import Child, Mount

FLAG, ONE, MANY = "flag", "one", "many"


class Usage(Exception):  # noqa: N818 - help and version end the program too
    """The command line ends the program: `text` goes to descriptor `stream`, `status` is 2 for an error, else 0."""

    def __init__(self, text: str, status: int = 2) -> None:
        """Hold the text and the status."""
        super().__init__(text)
        self.text = text
        self.status = status

    @property
    def stream(self) -> int:
        """Standard error for an error, else standard output."""
        return 2 if self.status else 1


class Options:
    """The parsed command line. Attributes are named after their options; absent ones hold the contract's defaults."""

    def __init__(self) -> None:
        """Start with the defaults."""
        self.machine = "standard"
        self.hypervisor: str | None = None
        self.memory = grammar.Memory()
        self.processors = 1
        self.kernel: str | None = None
        self.initrd: str | None = None
        self.cmdline: list[str] = []
        self.single_process = False
        self.cpu_profile = "auto"
        self.microvm_sandbox_block: list[BlockOption] = []
        self.microvm_workload_identity: tuple[int, int] | None = None
        self.microvm_lifecycle: str | None = None
        self.microvm_report: str | None = None
        self.virtio_console: Console | None = None
        self.microvm_control_console: Console | None = None
        self.microvm_control_auth_stdin = False
        self.microvm_control_auth_timeout_ms = 5000
        self.net: list[Net] = []
        self.network_profile: str | None = None
        self.network_egress: str | None = None
        self.network_ingress: str | None = None
        self.network_egress_allow: list[Prefix] = []
        self.network_egress_deny: list[Prefix] = []
        self.host_loopback: str | None = None
        self.host_loopback_forward: list[Forward] = []
        self.network_proxy: Endpoint | None = None
        self.allow_host: list[Prefix] = []
        self.block_host: list[Prefix] = []
        self.allow_endpoint: list[Endpoint] = []
        self.net_tap: str | None = None
        self.mount: Mount | None = None
        self.mount_aggregate: str | None = None
        self.mount_child: list[Child] = []
        self.mount_deny: list[str] = []
        self.mount_allow: list[str] = []
        self.mount_write: list[str] = []
        self.mount_owner: str | None = None
        self.given: list[str] = []  # every option name, in the order of its first use

    def any_of(self, names: tuple[str, ...] | list[str]) -> str | None:
        """Give the first of `names` that is on the command line."""
        return next((name for name in self.given if name in names), None)


# name: (kind, value name, parser). A parser is a name of `grammar`, "net.NAME", "share.NAME", "=word|word", "text"
# (UTF-8) or "path" (any bytes, not empty).
PROFILE: dict[str, tuple[str, str, str]] = {
    "machine": (ONE, "MACHINE", "=standard|microvm"),
    "hypervisor": (ONE, "HYPERVISOR", "text"),
    "memory": (ONE, "PARAMS", "memory"),
    "processors": (ONE, "COUNT", "u32"),
    "kernel": (ONE, "FILE", "path"),
    "initrd": (ONE, "FILE", "path"),
    "cmdline": (MANY, "STRING", "text"),
    "single-process": (FLAG, "", ""),
    "cpu-profile": (ONE, "ID", "text"),
    "microvm-sandbox-block": (MANY, "ROLE:DISK", "block"),
    "microvm-workload-identity": (ONE, "UID:GID", "identity"),
    "microvm-lifecycle": (ONE, "MODE", "=one-shot|managed"),
    "microvm-report": (ONE, "PATH", "path"),
    "virtio-console": (ONE, "SERIAL", "console"),
    "microvm-control-console": (ONE, "SERIAL", "console"),
    "microvm-control-auth-stdin": (FLAG, "", ""),
    "microvm-control-auth-timeout-ms": (ONE, "MILLISECONDS", "u64"),
    "net": (MANY, "IPv4/PREFIX", "net.net"),
    "network-profile": (ONE, "PROFILE", "=portable"),
    "network-egress": (ONE, "ACTION", "=allow|deny"),
    "network-ingress": (ONE, "ACTION", "=allow|deny"),
    "network-egress-allow": (MANY, "RULE", "net.rule"),
    "network-egress-deny": (MANY, "RULE", "net.rule"),
    "host-loopback": (ONE, "ACTION", "=allow|deny"),
    "host-loopback-forward": (MANY, "tcp|udp:HOST-PORT:GUEST-PORT", "net.forward"),
    "network-proxy": (ONE, "IPv4:TCP-PORT", "net.endpoint"),
    "allow-host": (MANY, "IPv4[/PREFIX]", "net.prefix4"),
    "block-host": (MANY, "IPv4[/PREFIX]", "net.prefix4"),
    "allow-endpoint": (MANY, "IPv4:TCP-PORT", "net.endpoint"),
    "net-tap": (ONE, "NAME", "text"),
    "mount": (ONE, "TARGET,HOST[,ro|rw]", "share.mount"),
    "mount-aggregate": (ONE, "TARGET", "text"),
    "mount-child": (MANY, "NAME,HOST[,ro|rw]", "share.child"),
    "mount-deny": (MANY, "HOST_PATH", "path"),
    "mount-allow": (MANY, "HOST_PATH", "path"),
    "mount-write": (MANY, "HOST_PATH", "path"),
    "mount-owner": (ONE, "OWNER", "=vmm|caller"),
    "guest-reset-action": (ONE, "ACTION", "power_action"),
    "guest-shutdown-action": (ONE, "ACTION", "power_action"),
    "guest-crash-action": (ONE, "ACTION", "power_action"),
}

SHORT = {"p": "processors", "k": "kernel", "r": "initrd", "c": "cmdline"}

NOT_WITH_AUTH = ("paused", "rpc", "ttrpc", "grpc", "relay-console-path", "write-saved-state-proto", "cpu-fingerprint")
SNAPSHOT = (
    "restore-snapshot restore-entropy! restore-processors restore-memory restore-gate-timeout-ms snapshot-destination "
    "memory-capacity snapshot-tier snapshot-block-identity snapshot-generation-id snapshot-scratch-restore-mode "
    "snapshot-quiesce-timeout-ms"
)
FOREIGN = (
    # a `!` marks a flag, a `*` an option that may be repeated
    "hv! device-tree! vtl2! get! no-get! no-vmbus! no-alias-map! isolation vmbus-vsock-path vmbus-vtl2-vsock-path "
    "late-map-vtl0-policy disk* nvme* nvme-pci* vmbus-scsi* openhcl-controller* cxl-test* virtio-blk* vhost-user* "
    "scsi-sub-channels nic! kernel-vmnic* gfx! vtl2-gfx! vnc! vnc-port vnc-listen vnc-max-clients vnc-evict-oldest! "
    "apic-id-offset vps-per-socket smt x2apic com1 com2 com3 com4 vmbus-com1-serial vmbus-com2-serial serial-tx-only! "
    "debugcon uefi! uefi-firmware uefi-debug! uefi-enable-memory-protections! uefi-force-dma-bounce! pcat-boot-order "
    "pcat! pcat-firmware igvm igvm-vtl2-relocation-type virtio-9p* virtio-9p-debug! virtio-fs* virtio-fs-shmem* "
    "virtio-fs-bus virtio-pmem virtio-rng! virtio-rng-bus virtio-rng-pcie-port virtio-console-pcie-port "
    "virtio-vsock-path virtio-vsock-vhost-cid virtio-net* disable-frontpage! tpm! vmbus-redirect! vmbus-max-version "
    "vmgs test-gsp-by-id! vga-firmware secure-boot! secure-boot-template custom-uefi-json gdb mana* nested-virt! ide* "
    "floppy* guest-watchdog! openhcl-dump-path imc battery! uefi-console-mode efi-diagnostics-log-level "
    "default-boot-always-attempt! amd-iommu* intel-vtd* pcie-root-complex* pcie-root-port* pcie-switch* "
    "pcie-generic-initiator* pcie-remote* vfio* iommu* numa* numa-distance* device*"
)


def parse(argv: list[str]) -> Options:
    """Parse the command line, program name excluded.

    Raises:
        Usage: an error (status 2), or `--help` and `--version` (status 0), in the order of the arguments.
    """
    options = Options()
    words = iter(argv)
    for argument in words:
        if argument in ("-h", "--help", "-V", "--version"):
            from fake_openvmm import helptext  # noqa: PLC0415 - only who asks for it pays for it

            raise Usage(helptext.VERSION if argument in ("-V", "--version") else helptext.render(), 0)
        if argument.startswith("--") and len(argument) > 2:  # noqa: PLR2004 - two dashes and a name
            name, equals, value = argument[2:].partition("=")
        elif argument.startswith("-") and argument[1:2] in SHORT:
            name, equals, value = SHORT[argument[1]], argument[2:3], argument[2:].removeprefix("=")
        else:
            name, equals, value = "", "", ""
        spec = _spec(name)
        if spec is None:
            raise _error(f"unexpected argument '{argument.partition('=')[0]}' found")
        _take(options, name, spec, value if equals else _value(name, spec, words))
    _combinations(options)
    return options


def _value(name: str, spec: tuple[str, str, str], words: Iterator[str]) -> str | None:
    if spec[0] == FLAG:
        return None
    value = next(words, None)
    if value is None or (value.startswith("-") and value != "-"):
        raise _error(f"a value is required for '{_shown(name, spec)}' but none was supplied")
    return value


def _take(options: Options, name: str, spec: tuple[str, str, str], value: str | None) -> None:
    kind, _, parser = spec
    if kind != MANY and name in options.given:
        raise _error(f"the argument '{_shown(name, spec)}' cannot be used multiple times")
    if name not in options.given:
        options.given.append(name)
    attribute = name.replace("-", "_")
    if kind == FLAG:
        if value is not None:
            raise _error(f"unexpected value '{value}' for '--{name}' found; no more were expected")
        setattr(options, attribute, True)
        return
    text = value or ""
    if parser == "path" and not text:
        raise _error(f"a value is required for '{_shown(name, spec)}' but none was supplied")
    if parser != "path" and not _is_utf8(text):
        raise _error("invalid UTF-8 was detected in one or more arguments")
    try:
        found = _parse(parser, text)
    except BadValue as bad:
        joint = "\n  " if str(bad).startswith("[") else ": "
        raise _error(f"invalid value '{text}' for '{_shown(name, spec)}'{joint}{bad}") from None
    if kind == MANY and name in PROFILE:
        getattr(options, attribute).append(found)
    else:
        setattr(options, attribute, found)


def _parse(parser: str, text: str) -> object:
    if parser in ("path", "text"):
        return text
    if parser in ("u32", "u64"):
        return grammar.unsigned(text, int(parser[1:]))
    if parser.startswith("="):
        return grammar.word(text, *parser[1:].split("|"))
    module, dot, name = parser.partition(".")
    if not dot:
        return _function(grammar, parser)(text)
    if module == "net":
        from fake_openvmm import netgrammar  # noqa: PLC0415 - a launch without a network doesn't pay for it

        return _function(netgrammar, name)(text)
    from fake_openvmm import sharegrammar  # noqa: PLC0415 - nor without shares

    return _function(sharegrammar, name)(text)


def _function(module: object, name: str) -> Callable[[str], object]:
    found: Callable[[str], object] = getattr(module, name)
    return found


def _combinations(options: Options) -> None:
    """What clap itself refuses between options, once all of them are read (section 1, status 2)."""
    legacy = [name for name in options.given if name in ("allow-host", "block-host", "allow-endpoint")]
    if len(legacy) > 1:
        raise _conflict(legacy[0], legacy[1])
    if options.mount and options.mount_aggregate is not None:
        raise _conflict("mount", "mount-aggregate")
    if options.microvm_control_auth_stdin:
        other = options.any_of(NOT_WITH_AUTH)
        if other:
            raise _conflict("microvm-control-auth-stdin", other)
        if options.microvm_control_console is None:
            raise _missing("microvm-control-console")
    if options.mount_child and options.mount_aggregate is None:
        raise _missing("mount-aggregate")


def _spec(name: str) -> tuple[str, str, str] | None:
    if name in PROFILE:
        return PROFILE[name]
    if name in NOT_WITH_AUTH:
        return (FLAG, "", "") if name in ("paused", "cpu-fingerprint") else (ONE, "VALUE", "path")
    if not name.replace("-", "").isalnum():
        return None
    for word in f"{SNAPSHOT} {FOREIGN}".split():
        if word.rstrip("!*") == name:
            return {"!": (FLAG, "", ""), "*": (MANY, "VALUE", "path")}.get(word[-1], (ONE, "VALUE", "path"))
    return None


def names_of(words: str) -> list[str]:
    """Give the bare names of a list such as `FOREIGN`."""
    return [word.rstrip("!*") for word in words.split()]


def _shown(name: str, spec: tuple[str, str, str]) -> str:
    return f"--{name} <{spec[1]}>" if spec[1] else f"--{name}"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _error(text: str) -> Usage:
    return Usage(f"error: {text}\n\nUsage: openvmm [OPTIONS]\n\nFor more information, try '--help'.\n")


def _conflict(first: str, second: str) -> Usage:
    shown = [_shown(name, _spec(name) or (FLAG, "", "")) for name in (first, second)]
    return _error(f"the argument '{shown[0]}' cannot be used with '{shown[1]}'")


def _missing(name: str) -> Usage:
    return _error(f"the following required arguments were not provided:\n  {_shown(name, PROFILE[name])}")
