"""Rules of contract openvmm 1.6: host directories and their path lists."""

from __future__ import annotations

import os

from tests.support.openvmm_rows import Row, refused, usage
from tests.support.openvmm_stand import Stand

RULES = {
    "1.6 mount grammar": "TARGET,HOST[,ro|rw], at most three fields, ro by default",
    "1.6 mount once": "a second one is a usage error",
    "1.6 target": "absolute, canonical, no white space, backslash or equals sign; status 2, for an aggregate 1",
    "1.6 aggregate and mount": "status 2",
    "1.6 child needs aggregate": "status 2",
    "1.6 children": "1 to 256, names unique",
    "1.6 child name": "1..64 of [A-Za-z0-9._-], not . or ..",
    "1.6 child mode": "after the last comma; other text belongs to HOST",
    "1.6 lists need a share": "deny, allow, write and owner",
    "1.6 owner": "vmm or caller; the caller's share isn't root's",
    "1.6 host path": "an existing directory, for a child also a file, through no symlink, without ..",
    "1.6 relative host": "from the working directory",
    "1.6 overlap": "host paths of two children, also through a mount",
    "1.6 list path": "exists inside its share, without symlink, dots, white space, backslash or colon",
    "1.6 list file system": "the share's own",
    "1.6 list root": "only a denied path may be the share's root, and only with an allowed path inside it",
    "1.6 list unique": "no path twice",
    "1.6 list overlap": "no denied path in another without an allowed one between them, no writable path in another",
    "1.6 list count": "128 per kind and share",
    "1.6 list bytes": "16 KiB per list, 128 KiB in an aggregate, counted below the share",
    "1.6 list absolute": "with an aggregate",
    "1.6 allowed": "its nearest listed ancestor is a denied path",
    "1.6 writable": "needs a rw share, may not be hidden",
    "2.2 share tokens": "virtfs_dir, tag, mode, aggregate; rw if any child is",
}

M = "mount=/mnt/s,@/share"
A = "mount-aggregate=/run/nvx/shares"
ONE = f"{A} mount-child=a,@/share"
TWO = f"{ONE} +mount-child=b,@/other"


def tree(stand: Stand) -> None:
    at = stand.path
    for name in ("share/sub/deep", "share/more", "other/sub", "share/white space", "comma,rw"):
        os.makedirs(at / name)
    (at / "share/file").write_text("x")
    (at / "file").write_text("x")
    (at / "share/c:d").write_text("x")
    (at / "share/back\\slash").write_text("x")
    os.symlink("share", at / "link")
    os.symlink("sub", at / "share/link")
    if os.geteuid() == 0:  # anybody else owns them already, and isn't root
        for name in ("share", "other"):
            os.chown(at / name, 1000, 1000)
    for number in range(129):
        (at / "share/more" / f"n{number}").write_text("x")


def long_names(stand: Stand) -> None:
    tree(stand)
    for share in range(9):
        for number in range(80):
            path = stand.path / f"long{share}" / f"{number:0200d}"
            path.mkdir(parents=True)


def lists(option: str, count: int) -> str:
    return " ".join(f"+{option}=@/share/more/n{number}" for number in range(count))


def long_list(count: int, share: int = 0) -> str:
    return " ".join(f"+mount-deny=@/long{share}/{number:0200d}" for number in range(count))


def aggregate_of(shares: int, last: int) -> str:
    children = " ".join(f"+mount-child=c{share},@/long{share}" for share in range(shares + 1))
    paths = " ".join(long_list(80, share) for share in range(shares)) + " " + long_list(last, shares)
    return f"{A} {children} {paths}"


GRAMMAR = [
    Row("1.6 mount grammar", M, prepare=tree, line="virtfs_dir=/mnt/s virtfs_tag=microvm virtfs_mode=ro"),
    Row("1.6 mount grammar", f"{M},rw", prepare=tree, line="virtfs_mode=rw"),
    *(
        usage("1.6 mount grammar", f"mount={text}")
        for text in ("/mnt/s", "/mnt/s,", ",@/share", "/mnt/s,@/share,write", "''")
    ),
    usage("1.6 mount grammar", "mount=/mnt/s,@/comma,rw,ro", "invalid microVM mount mode 'rw,ro'"),
    usage("1.6 mount once", f"{M} +mount=/mnt/t,@/other", "multiple times"),
    *(
        usage("1.6 target", f"mount='{target},@/share'")
        for target in ("mnt", "/", "/mnt/", "//mnt", "/mnt/../x", "/mnt/./x", "/a b", "/a=b", "/a\\b", "/" + "x" * 4096)
    ),
    Row("1.6 target", f"mount=/{'x' * 200},@/share", prepare=tree),
    refused("1.6 target", "mount-aggregate=/ mount-child=a,@/share", "invalid --mount-aggregate", tree),
    refused("1.6 target", "mount-aggregate='/a b' mount-child=a,@/share", "invalid --mount-aggregate", tree),
    usage("1.6 aggregate and mount", f"{A} {M}", "cannot be used with"),
    usage("1.6 child needs aggregate", "mount-child=a,@/share", "--mount-aggregate <TARGET>"),
    usage("1.6 child needs aggregate", f"{M} mount-child=a,@/share"),
    refused("1.6 children", A, "requires 1 to 256 children"),
    refused("1.6 children", f"{A} {' '.join(f'+mount-child=c{n},@/share' for n in range(257))}", "1 to 256", tree),
    refused("1.6 children", f"{ONE} +mount-child=a,@/other", "unique", tree),
    Row("1.6 child name", f"{A} mount-child={'A.z_9-' + 'x' * 58},@/share", prepare=tree),
    *(usage("1.6 child name", f"{A} mount-child={n},@/share") for n in ("''", ".", "..", "a/b", "x" * 65, "a:b", "é")),
    usage("1.6 child name", f"{A} mount-child=a", "expected <name>,<host-path>"),
    usage("1.6 child mode", f"{A} mount-child=a,,rw", "expected <name>,<host-path>"),
    Row("1.6 child mode", f"{A} mount-child=a,@/comma,rw,rw", prepare=tree, line="virtfs_mode=rw virtfs_aggregate=1"),
    refused("1.6 child mode", f"{A} mount-child=a,@/share,wr", "share,wr", tree),
    *(
        refused("1.6 lists need a share", option, "require --mount or --mount-aggregate")
        for option in ("mount-deny=@/x", "mount-allow=@/x", "mount-write=@/x", "mount-owner=vmm")
    ),
    usage("1.6 owner", f"{M} mount-owner=root", "[possible values: vmm, caller]"),
    Row("1.6 owner", f"{M} mount-owner=caller", prepare=tree),
    refused("1.6 owner", "mount=/mnt/s,@/comma\\,rw mount-owner=caller", "", tree),
    refused("1.6 owner", "mount=/mnt/s,/usr mount-owner=caller", "must not be owned by UID 0 or GID 0"),
]

HOSTS = [
    refused("1.6 host path", "mount=/mnt/s,@/absent", "failed to inspect", tree),
    refused("1.6 host path", "mount=/mnt/s,@/file", "not a plain directory", tree),
    refused("1.6 host path", "mount=/mnt/s,@/link", "symbolic link", tree),
    refused("1.6 host path", "mount=/mnt/s,@/link/sub", "symbolic link", tree),
    refused("1.6 host path", "mount=/mnt/s,@/share/../other", "parent component", tree),
    Row("1.6 host path", "mount=/mnt/s,@/./share//", prepare=tree),
    Row("1.6 host path", f"{A} mount-child=a,@/file", prepare=tree),
    refused("1.6 host path", f"{A} mount-child=a,/dev/null", "not a plain directory"),
    Row("1.6 relative host", "mount=/mnt/s,share", prepare=tree),
    refused("1.6 relative host", "mount=/mnt/s,absent", "failed to inspect", tree),
    Row("1.6 overlap", TWO, prepare=tree),
    refused("1.6 overlap", f"{ONE} +mount-child=b,@/share", "must not overlap", tree),
    refused("1.6 overlap", f"{ONE} +mount-child=b,@/share/sub", "must not overlap", tree),
    refused("1.6 overlap", f"{A} mount-child=a,@/share/file +mount-child=b,@/share", "must not overlap", tree),
]

PATHS = [
    Row("1.6 list path", f"{M} mount-deny=@/share/sub", prepare=tree),
    Row("1.6 list path", f"{M} mount-deny=sub/deep", prepare=tree),
    refused("1.6 list path", f"{M} mount-deny=@/share/absent", "failed to inspect", tree),
    refused("1.6 list path", f"{M} mount-deny=@/other", "outside every shared directory", tree),
    refused("1.6 list path", f"{M} mount-deny=link/deep", "symbolic link", tree),
    refused("1.6 list path", f"{M} mount-deny=@/link/sub", "symbolic link", tree),
    refused("1.6 list path", f"{M} mount-deny=./sub", "dot or parent", tree),
    refused("1.6 list path", f"{M} mount-deny=sub/../sub", "dot or parent", tree),
    refused("1.6 list path", f"{M} mount-deny='white space'", "invalid denied path", tree),
    refused("1.6 list path", f"{M} mount-deny=c:d", "invalid denied path", tree),
    refused("1.6 list path", f"{M} mount-deny='back\\slash'", "invalid denied path", tree),
    refused("1.6 list path", f"{TWO} mount-deny=@/comma", "", tree),
    usage("1.6 list path", f"{M} mount-deny=''"),
    refused("1.6 list root", f"{M},rw mount-write=@/share", "complete filesystem export", tree),
    refused("1.6 list root", f"{M} mount-allow=@/share", "complete filesystem export", tree),
    Row("1.6 list root", f"{M} mount-deny=@/share mount-allow=sub", prepare=tree),
    refused("1.6 list root", f"{M} mount-deny=@/share", "hide its root only to expose", tree),
    refused("1.6 list unique", f"{M} mount-deny=sub +mount-deny=@/share/sub", "must be unique", tree),
    Row("1.6 list count", f"{M} {lists('mount-deny', 128)}", prepare=tree),
    refused("1.6 list count", f"{M} {lists('mount-deny', 129)}", "at most 128 denied", tree),
    refused("1.6 list count", f"{M} mount-deny=more {lists('mount-allow', 129)}", "at most 128 allowed", tree),
    refused("1.6 list count", f"{M},rw {lists('mount-write', 129)}", "at most 128 writable", tree),
    refused("1.6 list count", f"{TWO} {lists('mount-deny', 129)}", "at most 128 denied", tree),
    Row("1.6 list count", f"{TWO} {lists('mount-deny', 128)} +mount-deny=@/other/sub", prepare=tree),
    Row("1.6 list bytes", f"mount=/mnt/s,@/long0 {long_list(80)}", prepare=long_names),
    refused("1.6 list bytes", f"mount=/mnt/s,@ {long_list(80)}", "16-KiB", long_names),
    Row("1.6 list bytes", aggregate_of(8, 15), prepare=long_names),
    refused("1.6 list bytes", aggregate_of(8, 16), "131072-byte aggregate limit", long_names),
    refused("1.6 list absolute", f"{TWO} mount-deny=sub", "must be absolute", tree),
    refused("1.6 list absolute", f"{ONE} mount-deny=sub", "must be absolute", tree),
    Row("1.6 list absolute", f"{TWO} mount-deny=@/other/sub", prepare=tree),
    refused("1.6 list overlap", f"{M} mount-deny=sub +mount-deny=sub/deep", "denied paths overlap", tree),
    refused("1.6 list overlap", f"{M},rw mount-write=sub +mount-write=sub/deep", "writable paths overlap", tree),
    Row("1.6 allowed", f"{M} mount-deny=sub mount-allow=sub/deep", prepare=tree),
    refused("1.6 allowed", f"{M} mount-allow=sub/deep", "must be inside a denied path", tree),
    refused("1.6 allowed", f"{M} mount-deny=sub mount-allow=sub", "must be inside a denied path", tree),
    refused("1.6 allowed", f"{M} mount-deny=@/share mount-allow=sub +mount-allow=sub/deep", "inside a denied", tree),
    Row("1.6 writable", f"{M},rw mount-write=sub +mount-write=file", prepare=tree),
    refused("1.6 writable", f"{M} mount-write=sub", "read-only microVM filesystem", tree),
    refused("1.6 writable", f"{M},rw mount-deny=sub mount-write=sub/deep", "hidden by a denied path", tree),
    Row("1.6 writable", f"{M},rw mount-deny=sub mount-allow=sub/deep mount-write=sub/deep", prepare=tree),
    Row(
        "2.2 share tokens",
        TWO,
        prepare=tree,
        line="virtfs_dir=/run/nvx/shares virtfs_tag=microvm virtfs_mode=ro virtfs_aggregate=1",
    ),
    Row("2.2 share tokens", f"{TWO},rw", prepare=tree, line="virtfs_mode=rw virtfs_aggregate=1"),
]

ROWS = (
    GRAMMAR
    + HOSTS
    + PATHS
    + [
        refused("1.6 list file system", "mount=/mnt/s,/ mount-deny=proc", "crosses a nested mount"),
    ]
)
