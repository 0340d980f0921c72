"""Rules of contract openvmm 1.2 to 1.4: blocks, identity, lifecycle, consoles, the control endpoint."""

from __future__ import annotations

import os
import socket

from tests.support.openvmm_rows import Row, refused, usage
from tests.support.openvmm_stand import Stand

OTHER = "@/other" if os.geteuid() == 0 else "/root"
"""A directory of somebody else, which only root can make."""

RULES = {
    "1.2 roles": "distro, runtime, custom, scratch; split at the first colon",
    "1.2 disk grammar": "file:<path>[;direct][;create=<len>] or mem:<size>, then ,ro",
    "1.2 read-only": "layers must be, scratch must not",
    "1.2 order": "unique, in role order",
    "1.2 scratch last": "unless the RAM upper is asked for",
    "1.2 RAM upper": "once, ramfs, exactly one read-only distro",
    "1.2 plain disks": "no on=, lun=, pcie_port=, dvd",
    "1.2 commas end the path": "what follows is options",
    "1.2 brackets": "unbalanced ones break the splitter",
    "1.2 formats": ".vhd, .vhdx and .vmgs are other formats; an .iso can't be writable",
    "1.2 slots": "MMIO base and interrupt by role",
    "1.2 opening": "a disk that can't be opened",
    "1.3 identity": "UID:GID, decimal, 32 bits, nonzero",
    "1.3 lifecycle words": "one-shot or managed",
    "1.3 managed needs": "the identity, a live control console, auth-stdin",
    "1.4 console words": "listen, connect, console, none; other known ones are refused later",
    "1.4 console values": "listen and connect need one",
    "1.4 console TCP": "an address and a nonzero port on the loopback",
    "1.4 boot console required": "beside a control console",
    "1.4 boot console endpoint": "an existing path fails",
    "1.4 control kinds": "listen=PATH or none",
    "1.4 none refuses auth": "a disconnected control console has no authentication",
    "1.4 live needs auth": "a live one requires auth-stdin",
    "1.4 auth needs control": "status 2",
    "1.4 auth and console": "--virtio-console console keeps stdin",
    "1.4 distinct endpoints": "boot and control console",
    "1.4 auth timeout": "1..60000 once a control console is given",
    "1.4 listen is cut": "at the first comma and the second equals sign",
    "1.4 path": "absolute, parent canonical, last component no symlink",
    "1.4 identity length": "at most 4096 bytes",
    "1.4 parent": "mode exactly 0700, own user, a real directory",
    "1.4 exclusive": "an existing path fails and stays",
    "1.4 sun_path": "at most 107 bytes",
}

D = "microvm-sandbox-block=distro:file:@/distro,ro"
S = "+microvm-sandbox-block=scratch:file:@/scratch"
UPPER = "cmdline=nvx_overlay_upper=ramfs"


def block(text: str) -> str:
    return f"{D} +microvm-sandbox-block='{text}' {S}"


def make(stand: Stand) -> None:
    for name in ("runtime", "custom", "x.vhd", "x.VHDX", "x.vmgs", "x.iso", "a;b", "a[1]"):
        (stand.path / name).write_bytes(bytes(4096))


BLOCKS = [
    Row("1.2 roles", f"{D} +microvm-sandbox-block=runtime:file:@/runtime,ro {S}", prepare=make, line="@0xd0004000:12 "),
    usage("1.2 roles", "microvm-sandbox-block=base:file:@/distro,ro", "unknown sandbox block role 'base'"),
    usage("1.2 roles", "microvm-sandbox-block=distro", "expected ROLE:DISK"),
    usage("1.2 roles", "microvm-sandbox-block=Distro:file:@/distro,ro"),
    Row("1.2 disk grammar", block("runtime:mem:1M,ro")),
    Row("1.2 disk grammar", "microvm-sandbox-block='distro:file:@/distro;direct,ro' " + S),
    Row("1.2 disk grammar", f"{D} +microvm-sandbox-block='scratch:file:@/new;create=1M'"),
    *(
        usage("1.2 disk grammar", f"microvm-sandbox-block='distro:{disk}'")
        for disk in (
            "file:,ro",
            "mem:,ro",
            "mem:1m,ro",
            "blob:flat:http://x,ro",
            "sql:@/x,ro",
            "@/distro,ro",
            "file:@/distro;fast,ro",
            "file:@/distro;create=x,ro",
            "file:@/distro,rw",
            "file:@/distro,ro,ro",
            "file:@/distro,ro=maybe",
            "file:@/distro,",
            "",
        )
    ),
    refused("1.2 read-only", f"microvm-sandbox-block=distro:file:@/distro {S}", "must be read-only"),
    refused("1.2 read-only", f"microvm-sandbox-block=distro:file:@/distro,ro=off {S}", "must be read-only"),
    refused("1.2 read-only", f"{D} +microvm-sandbox-block=scratch:file:@/scratch,ro", "must be writable"),
    refused("1.2 order", f"{D} +microvm-sandbox-block=distro:mem:1M,ro {S}", "unique and in fixed order"),
    refused("1.2 order", block("custom:mem:1M,ro") + " +microvm-sandbox-block=runtime:mem:1M,ro"),
    refused("1.2 order", "microvm-sandbox-block=scratch:mem:1M +microvm-sandbox-block=distro:mem:1M,ro", "fixed order"),
    refused(
        "1.2 order", "".join(f"+microvm-sandbox-block={role}:mem:1M,ro " for role in ("runtime", "custom", "custom"))
    ),
    refused("1.2 scratch last", D, "requires a writable scratch device"),
    Row("1.2 scratch last", "microvm-sandbox-block=scratch:file:@/scratch"),
    Row("1.2 scratch last", "~microvm-sandbox-block"),
    Row("1.2 RAM upper", f"{D} {UPPER}", line="@0xd0003000:4 virtio_mmio.device=0x1000@0xd0007000:3"),
    refused("1.2 RAM upper", UPPER, "exactly one read-only distro block"),
    refused("1.2 RAM upper", f"~microvm-sandbox-block {UPPER}", "exactly one read-only distro block"),
    refused("1.2 RAM upper", f"microvm-sandbox-block=runtime:mem:1M,ro {UPPER}"),
    refused("1.2 RAM upper", "cmdline=nvx_overlay_upper", "must appear once and equal ramfs"),
    refused("1.2 RAM upper", "cmdline=nvx_overlay_upper=tmpfs"),
    refused("1.2 RAM upper", "cmdline=nvx_overlay_upper="),
    refused("1.2 RAM upper", f"{D} {UPPER} +cmdline=nvx_overlay_upper=ramfs", "must appear once"),
    Row("1.2 RAM upper", "cmdline=nvx_overlay_upper2=ext4"),
    *(
        refused("1.2 plain disks", f"microvm-sandbox-block=distro:file:@/distro,ro,{extra} {S}", "plain VTL0 disk")
        for extra in ("on=nvme0", "on=s,lun=3", "pcie_port=p0", "dvd", "vtl2", "uh")
    ),
    refused("1.2 plain disks", f"microvm-sandbox-block=distro:file:@/distro,dvd {S}", "plain VTL0 disk, without dvd"),
    usage("1.2 commas end the path", "microvm-sandbox-block=distro:file:@/a,b,ro", "unknown option 'b'"),
    refused("1.2 commas end the path", "microvm-sandbox-block='distro:file:@/a;direct,ro' " + S, "No such file", make),
    Row("1.2 brackets", f"microvm-sandbox-block=distro:file:@/a[1],ro {S}", prepare=make),
    usage("1.2 brackets", "microvm-sandbox-block=distro:file:@/a[1,ro", "unmatched '['"),
    usage("1.2 brackets", "microvm-sandbox-block=distro:file:@/a]1,ro", "unmatched ']'"),
    *(
        refused("1.2 formats", f"microvm-sandbox-block=distro:file:@/x.{s},ro {S}", s, make)
        for s in ("vhd", "VHDX", "vmgs")
    ),
    Row("1.2 formats", f"microvm-sandbox-block=distro:file:@/x.iso,ro {S}", prepare=make),
    refused("1.2 formats", f"{D} +microvm-sandbox-block=scratch:file:@/x.iso", "can't be writable", make),
    Row(
        "1.2 slots",
        f"{D} +microvm-sandbox-block=runtime:mem:1M,ro +microvm-sandbox-block=custom:mem:1M,ro {S}",
        line="0x1000@0xd0003000:4 virtio_mmio.device=0x1000@0xd0004000:12 virtio_mmio.device=0x1000@0xd0005000:9 "
        "virtio_mmio.device=0x1000@0xd0006000:11 ",
    ),
    refused("1.2 opening", f"microvm-sandbox-block=distro:file:@/absent,ro {S}", "absent"),
    refused("1.2 opening", f"microvm-sandbox-block=distro:file:@,ro {S}"),
]

IDENTITY = [
    Row(
        "1.3 identity", "microvm-workload-identity=1:4294967295", line="nvx_workload_uid=1 nvx_workload_gid=4294967295"
    ),
    Row("1.3 identity", "~microvm-workload-identity ~microvm-lifecycle", line="nr_cpus=1 virtio_mmio"),
    *(
        usage("1.3 identity", f"microvm-workload-identity={value}")
        for value in ("0:1", "1:0", "0:0", "1", "1:2:3", ":1", "1:", "a:b", "-1:1", "4294967296:1", "0x1:1", "''")
    ),
    Row("1.3 lifecycle words", "microvm-lifecycle=one-shot", line="nvx_lifecycle=one-shot"),
    Row("1.3 lifecycle words", "~microvm-lifecycle", line="nvx_workload_gid=65534 virtio_mmio"),
    usage("1.3 lifecycle words", "microvm-lifecycle=oneshot", "[possible values: one-shot, managed]"),
    refused("1.3 managed needs", "~microvm-workload-identity", "requires --microvm-workload-identity"),
    refused(
        "1.3 managed needs", "~microvm-control-console ~microvm-control-auth-stdin", "live --microvm-control-console"
    ),
    refused("1.3 managed needs", "microvm-control-console=none ~microvm-control-auth-stdin"),
    refused("1.3 managed needs", "~microvm-control-auth-stdin", "requires --microvm-control-auth-stdin"),
]


def long_parent(stand: Stand) -> None:
    os.makedirs(stand.path / ("p" * 100), 0o700)


def occupied(stand: Stand) -> None:
    (stand.path / "control.txt").write_text("mine")
    (stand.path / "boot.txt").write_text("mine")


def links(stand: Stand) -> None:
    os.symlink(stand.path / "nowhere", stand.path / "link")
    os.mkdir(stand.path / "real", 0o700)
    os.symlink("real", stand.path / "by-link")
    os.mkdir(stand.path / "open", 0o755)
    os.mkdir(stand.path / "sticky", 0o700)
    os.chmod(stand.path / "sticky", 0o1700)
    os.mkdir(stand.path / "other", 0o700)
    if os.geteuid() == 0:
        os.chown(stand.path / "other", 65534, 65534)


def server(stand: Stand) -> None:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(stand.path / "reader"))
    made.listen(1)
    KEPT.append(made)


KEPT: list[socket.socket] = []

CONSOLES = [
    *(Row("1.4 console words", f"virtio-console={value}") for value in ("none", "none,name=x", "listen=@/boot.sock")),
    *(
        refused("1.4 console words", f"virtio-console={value}")
        for value in ("stderr", "file=@/x", "term", "term=xterm")
    ),
    Row("1.4 console words", "virtio-console=connect=@/reader", prepare=server),
    refused("1.4 console words", "virtio-console=connect=@/nobody", "failed to open the boot console"),
    *(usage("1.4 console words", f"virtio-console={value}") for value in ("nothing", "''", "None", "=x", "pipe=@/x")),
    usage("1.4 console words", "microvm-control-console=pipe=@/control.sock", "'pipe' is not a known option"),
    *(usage("1.4 console values", f"virtio-console={value}") for value in ("listen", "connect", "file", "listen,x=y")),
    refused("1.4 console values", "virtio-console=listen=", "failed to bind"),
    refused("1.4 console TCP", "virtio-console=listen=tcp:127.0.0.1:0", "nonzero stable port"),
    refused("1.4 console TCP", "virtio-console=listen=tcp:10.0.0.1:4000", "loopback"),
    refused("1.4 console TCP", "virtio-console=connect=tcp:[::1]:1", "failed to open the boot console"),
    *(
        usage("1.4 console TCP", f"virtio-console=listen=tcp:{value}")
        for value in ("127.0.0.1", "localhost:80", "127.0.0.1:65536", "127.1:80", "::1:80", "[::1:80", "")
    ),
    refused("1.4 boot console required", "~virtio-console", "requires --virtio-console"),
    refused(
        "1.4 boot console required", f"~virtio-console {'microvm-control-console=none'} ~microvm-control-auth-stdin"
    ),
    Row(
        "1.4 boot console required",
        "~virtio-console ~microvm-control-console ~microvm-control-auth-stdin ~microvm-lifecycle",
        line="console=hvc0 nvx_sandbox=1",
    ),
    refused("1.4 boot console endpoint", "virtio-console=listen=@/boot.txt", "failed to bind", occupied),
    Row("1.4 boot console endpoint", "virtio-console=listen=@/open/boot.sock", prepare=links),
    *(
        refused("1.4 control kinds", f"microvm-control-console={value}", "requires listen=<path> or none")
        for value in ("listen=tcp:127.0.0.1:9", "connect=@/reader", "connect=tcp:127.0.0.1:9", "console", "stderr")
    ),
    refused("1.4 none refuses auth", "microvm-control-console=none ~microvm-lifecycle", "is not used with"),
    Row("1.4 none refuses auth", "microvm-control-console=none ~microvm-lifecycle ~microvm-control-auth-stdin"),
    refused(
        "1.4 live needs auth", "~microvm-control-auth-stdin ~microvm-lifecycle", "requires --microvm-control-auth-stdin"
    ),
    usage("1.4 auth needs control", "~microvm-control-console", "--microvm-control-console <SERIAL>"),
    refused("1.4 auth and console", "virtio-console=console", "reserves stdin"),
    refused("1.4 distinct endpoints", "virtio-console=listen=@/control.sock", "must differ"),
    refused("1.4 distinct endpoints", "virtio-console=connect=@/./control.sock", "must differ"),
    *(Row("1.4 auth timeout", f"microvm-control-auth-timeout-ms={value}") for value in (1, 60000)),
    *(refused("1.4 auth timeout", f"microvm-control-auth-timeout-ms={value}", "between 1 and") for value in (0, 60001)),
    *(
        usage("1.4 auth timeout", f"microvm-control-auth-timeout-ms={value}")
        for value in ("5s", "", "18446744073709551616")
    ),
    Row(
        "1.4 auth timeout",
        "microvm-control-auth-timeout-ms=0 ~microvm-control-console ~microvm-control-auth-stdin ~microvm-lifecycle",
    ),
    refused("1.4 path", "microvm-control-console=listen=@/link", "must not be a symbolic link", links),
    Row("1.4 path", "microvm-control-console=listen=@/by-link/c.sock", prepare=links),
    Row("1.4 path", "microvm-control-console=listen=relative.sock"),
    refused("1.4 path", "microvm-control-console=listen=@/absent/c.sock", "failed to canonicalize"),
    refused("1.4 path", "microvm-control-console=listen=@/distro/c.sock", ""),
    refused("1.4 path", "microvm-control-console=listen=@/..", "must name a socket"),
    refused("1.4 identity length", f"microvm-control-console=listen=@/{'x' * 4096}", ""),
    refused("1.4 parent", "microvm-control-console=listen=@/open/c.sock", "mode 0700", links),
    refused("1.4 parent", "microvm-control-console=listen=@/sticky/c.sock", "mode 0700", links),
    refused("1.4 parent", f"microvm-control-console=listen={OTHER}/c.sock", "own user", links),
    refused("1.4 exclusive", "microvm-control-console=listen=@/control.txt", "failed to bind", occupied),
    refused(
        "1.4 sun_path",
        f"microvm-control-console=listen=@/{'p' * 100}/control.sock",
        "shorter than 108 bytes",
        long_parent,
    ),
    Row("1.4 listen is cut", "microvm-control-console=listen=@/cut.sock,and=more"),
    Row("1.4 listen is cut", "microvm-control-console=listen=@/cut.sock=and=more"),
]

ROWS = BLOCKS + IDENTITY + CONSOLES
