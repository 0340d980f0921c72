"""Rules of contract openvmm 1 and 1.1: grammar of the command line, common options."""

from __future__ import annotations

from tests.support.openvmm_rows import Row, refused, unreported, usage
from tests.support.openvmm_stand import Stand

RULES = {
    "1 value after a space": "`--opt value`",
    "1 value after an equals sign": "`--opt=value`",
    "1 repeated single option": "a repeated single-valued option is a usage error",
    "1 repeated flag": "so is a repeated flag",
    "1 unknown option": "status 2",
    "1 positional": "there are none",
    "1 missing value": "status 2, also where the next word is an option",
    "1 flag with a value": "status 2",
    "1 text is UTF-8": "status 2",
    "1 removed spellings": "are unknown options",
    "1.1 machine": "standard or microvm; standard by default, which can't be reported on",
    "1.1 hypervisor": "kvm and mshv here, parameters after a colon; another known name is reported, others aren't",
    "1.1 memory size": "integer, upper-case unit, B",
    "1.1 memory keys": "size, shared, prefetch, thp, hugepages, hugepage_size, file",
    "1.1 memory hugepages": "hugepage_size needs hugepages=on, which excludes shared=off and file",
    "1.1 memory zero": "is refused (section 10)",
    "1.1 processors": "1, 2, 4 or 8",
    "1.1 kernel required": "missed at step 7",
    "1.1 kernel format": "uncompressed ELF64 x86-64",
    "1.1 initrd": "optional",
    "1.1 cmdline": "repeatable, joined with one space, empty ones skipped",
    "1.1 single-process": "optional flag",
    "1.1 cpu-profile": "a pinned name, auto with a fallback line, host",
    "1.1 conflicts of auth-stdin": "seven options, status 2; without it this stand-in refuses them",
    "1.1 foreign options": "status 1",
    "1.1 snapshots": "capture and restore are unsupported here",
    "5 guest actions": "reset, halt, exit or exit:CODE",
}


def bz_image(stand: Stand) -> None:
    (stand.path / "kernel").write_bytes(b"MZ" + bytes(510) + b"HdrS" + bytes(512))


def arm_kernel(stand: Stand) -> None:
    raw = bytearray((stand.path / "kernel").read_bytes())
    raw[18:20] = b"\xb7\x00"
    (stand.path / "kernel").write_bytes(raw)


def small_kernel(stand: Stand) -> None:
    raw = bytearray((stand.path / "kernel").read_bytes())
    raw[4] = 1
    (stand.path / "kernel").write_bytes(raw)


def backing(stand: Stand) -> None:
    (stand.path / "ram").write_bytes(bytes(4096))


GRAMMAR = [
    Row("1 value after a space", "", line="nr_cpus=1"),
    Row("1 value after an equals sign", "~processors !--processors=2", line="nr_cpus=2"),
    Row("1 value after an equals sign", "!-p=4", line="nr_cpus=4"),
    Row("1 value after an equals sign", "!-p8", line="nr_cpus=8"),
    Row("1 value after an equals sign", "!-c=quiet", line="nvx-sandbox quiet"),
    usage("1 repeated single option", "+memory=1G", "the argument '--memory <PARAMS>' cannot be used multiple times"),
    usage("1 repeated single option", "+kernel=@/kernel"),
    usage("1 repeated single option", "!-k @/kernel !-k @/kernel"),
    usage("1 repeated single option", "+microvm-report=@/other.json"),
    usage("1 repeated flag", "+single-process", "the argument '--single-process' cannot be used multiple times"),
    usage("1 repeated flag", "+microvm-control-auth-stdin"),
    usage("1 unknown option", "!--no-such-option", "unexpected argument '--no-such-option' found"),
    usage("1 unknown option", "!--no-such-option=3", "unexpected argument '--no-such-option' found"),
    usage("1 unknown option", "!--kern=@/kernel"),
    usage("1 unknown option", "!-x"),
    usage("1 unknown option", "!--MACHINE !microvm"),
    usage("1 unknown option", "!--microvm-state-control !listen=@/x", "--microvm-state-control"),
    usage("1 unknown option", "!--microvm-host-control !listen=@/x"),
    usage("1 positional", "!kernel"),
    usage("1 positional", "!-- !kernel"),
    usage("1 positional", "!-"),
    usage("1 missing value", "~kernel !--kernel", "a value is required for '--kernel <FILE>' but none was supplied"),
    usage("1 missing value", "~kernel !--kernel=", "a value is required for '--kernel <FILE>'"),
    usage("1 missing value", "~cmdline !--cmdline !--hv", "a value is required for '--cmdline <STRING>'"),
    usage("1 missing value", "~microvm-report !--microvm-report !''"),
    usage("1 flag with a value", "~single-process !--single-process=on", "unexpected value 'on'"),
    usage("1 text is UTF-8", "cmdline=quiet\udcff", "invalid UTF-8"),
    usage("1 text is UTF-8", "microvm-control-console=listen=@/c\udcff"),
    usage("1 removed spellings", "!--microvm-control-auth-handle !3", "unexpected argument"),
    usage("1 removed spellings", "!--microvm-control-protocol-version !1", "unexpected argument"),
]

MACHINE = [
    unreported("1.1 machine", "~machine", "requires a microVM machine"),
    unreported("1.1 machine", "machine=standard", "requires a microVM machine"),
    unreported("1.1 machine", "~machine ~microvm-report"),
    usage("1.1 machine", "machine=microvm-v2", "[possible values: standard, microvm]"),
    usage("1.1 machine", "machine=nvx"),
    usage("1.1 machine", "machine=Microvm"),
    Row("1.1 hypervisor", "~hypervisor"),
    Row("1.1 hypervisor", "hypervisor=mshv"),
    Row("1.1 hypervisor", "hypervisor=kvm:key=value,other"),
    refused("1.1 hypervisor", "hypervisor=whp", "microVM requires KVM or MSHV on Linux"),
    unreported("1.1 hypervisor", "hypervisor=qemu"),
    unreported("1.1 hypervisor", "hypervisor=KVM"),
    unreported("1.1 hypervisor", "hypervisor=''"),
    unreported("1.1 hypervisor", "hypervisor=:key=value"),
    unreported("1.1 hypervisor", "hypervisor=qemu ~microvm-report", "microVM requires KVM or MSHV"),
    refused("1.1 hypervisor", "hypervisor=auto"),
    Row("1.1 processors", "processors=1", line=" nr_cpus=1 "),
    Row("1.1 processors", "processors=8", line=" nr_cpus=8 "),
    *(refused("1.1 processors", f"processors={n}", f"does not support {n} vCPUs") for n in (0, 3, 5, 16, 4294967295)),
    *(usage("1.1 processors", f"processors={n}") for n in ("4294967296", "two", "''", "0x2", "1.0", "²")),
    usage("1.1 processors", "!-p !-1"),
    refused("1.1 kernel required", "~kernel", "must specify a kernel"),
    refused("1.1 kernel required", "kernel=@/absent", "failed to open kernel"),
    refused("1.1 kernel format", "", "not an uncompressed x86-64 ELF64 image", bz_image),
    refused("1.1 kernel format", "", "not an uncompressed x86-64 ELF64 image", arm_kernel),
    refused("1.1 kernel format", "", "not an uncompressed x86-64 ELF64 image", small_kernel),
    refused("1.1 kernel format", "kernel=@", "failed to read kernel"),
    Row("1.1 initrd", "~initrd"),
    Row("1.1 initrd", "~initrd !-r !@/initrd"),
    refused("1.1 initrd", "initrd=@/absent", "failed to open initrd"),
    Row("1.1 cmdline", "cmdline=a +cmdline='' +cmdline=b !-c !c", line="panic=-1 a b c nr_cpus"),
    Row("1.1 cmdline", "cmdline='a  b'", line="panic=-1 a  b nr_cpus"),
    Row("1.1 cmdline", "cmdline='' +cmdline=''", line="panic=-1 nr_cpus=1"),
    Row("1.1 cmdline", "~cmdline", line="panic=-1 nr_cpus=1"),
    Row("1.1 single-process", "~single-process"),
    Row("1.1 cpu-profile", "cpu-profile=intel.icelake-sp.v1"),
    Row("1.1 cpu-profile", "cpu-profile=auto", text=": NVX-CPU-PROFILE-FALLBACK:"),
    Row("1.1 cpu-profile", "cpu-profile=host"),
    refused("1.1 cpu-profile", "cpu-profile=fast", "E_PROFILE_UNSUPPORTED"),
]

MEMORY = [
    *(Row("1.1 memory size", f"memory={size}") for size in ("1", "1G", "256MB", "1048576K", "268435456B", "1T", "+1G")),
    *(
        usage("1.1 memory size", f"memory={size}")
        for size in ("256m", "M", "B", "''", "1.5G", "1Q", "1GiB", "0x10", "1_0")
    ),
    usage("1.1 memory size", "memory=18446744073709551616"),
    usage("1.1 memory size", "memory=16777216T", "overflows"),
    Row("1.1 memory keys", "memory=size=512M,shared=on,prefetch=off,thp,hugepages=off"),
    Row("1.1 memory keys", "memory=size=512M,file=@/ram", prepare=backing),
    refused("1.1 memory keys", "memory=size=512M,file=@/absent", "failed to open memory"),
    usage("1.1 memory keys", "memory=size=1G,color=red", "unknown option 'color'"),
    usage("1.1 memory keys", "memory=size=1G,size=2G", "duplicate option 'size'"),
    usage("1.1 memory keys", "memory=size="),
    usage("1.1 memory keys", "memory=1G,shared=on"),
    usage("1.1 memory keys", "memory=size=1G,shared=yes"),
    usage("1.1 memory keys", "memory=size=1G,"),
    usage("1.1 memory keys", "memory=size=1G,file=[x"),
    Row("1.1 memory hugepages", "memory=size=1G,hugepages=on,hugepage_size=2M"),
    usage("1.1 memory hugepages", "memory=size=1G,hugepage_size=2M", "hugepage_size requires hugepages=on"),
    usage("1.1 memory hugepages", "memory=size=1G,hugepages=off,hugepage_size=2M"),
    usage("1.1 memory hugepages", "memory=size=1G,hugepages=on,shared=off"),
    usage("1.1 memory hugepages", "memory=size=1G,hugepages,file=@/ram"),
    refused("1.1 memory zero", "memory=0", "memory size must be nonzero"),
    refused("1.1 memory zero", "memory=size=0M"),
]

CONFLICTING = [
    ("paused", ""),
    ("cpu-fingerprint", ""),
    ("rpc", " !path=@/rpc"),
    ("ttrpc", " !@/rpc"),
    ("grpc", " !@/rpc"),
    ("relay-console-path", " !@/rpc"),
    ("write-saved-state-proto", " !@/rpc"),
]
FOREIGN_FLAGS = "hv vtl2 uefi pcat vnc gfx tpm nic nested-virt serial-tx-only guest-watchdog virtio-rng secure-boot"
FOREIGN_VALUES = (
    "com1 com2 com3 com4 disk nvme virtio-blk virtio-net virtio-fs vmbus-com1-serial numa smt x2apic apic-id-offset "
    "vps-per-socket igvm vmgs pcie-root-complex vfio ide floppy mana gdb virtio-console-pcie-port"
)
RESTORE = (
    "restore-snapshot restore-processors restore-memory restore-gate-timeout-ms snapshot-destination memory-capacity "
    "snapshot-tier snapshot-block-identity snapshot-generation-id snapshot-scratch-restore-mode "
    "snapshot-quiesce-timeout-ms"
)
WITHOUT_AUTH = "microvm-control-console=none ~microvm-control-auth-stdin ~microvm-lifecycle"

OTHERS = [
    *(
        usage("1.1 conflicts of auth-stdin", f"!--{name}{value}", f"cannot be used with '--{name}")
        for name, value in CONFLICTING
    ),
    *(refused("1.1 conflicts of auth-stdin", f"{WITHOUT_AUTH} !--{name}{value}") for name, value in CONFLICTING),
    *(refused("1.1 foreign options", f"!--{name}", f"--{name}") for name in FOREIGN_FLAGS.split()),
    *(refused("1.1 foreign options", f"!--{name} !x", f"--{name}") for name in FOREIGN_VALUES.split()),
    refused("1.1 foreign options", "!--disk !a !--disk !b"),
    usage("1.1 foreign options", "!--hv !--hv"),
    usage("1.1 foreign options", "!--com1 !a !--com1 !b"),
    usage("1.1 foreign options", "!--com1"),
    *(refused("1.1 snapshots", f"!--{name} !x", "is unsupported by this stand-in") for name in RESTORE.split()),
    refused("1.1 snapshots", "!--restore-entropy", "neither captures nor restores"),
    *(Row("5 guest actions", f"!--guest-{what}-action=exit:3") for what in ("reset", "shutdown", "crash")),
    usage("5 guest actions", "!--guest-crash-action=exit:256"),
    usage("5 guest actions", "!--guest-crash-action=stop"),
]

ROWS = GRAMMAR + MACHINE + MEMORY + OTHERS
