"""What a guest and a VMM show to somebody who only looks: mounts, devices, the command line, open files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.backends.contract import GuestFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.backends.contract import Look
    from harness.backends.watch import Run
    from harness.witness.contract import Descriptor

OUTPUT = 1
"""The descriptor of a VMM's log."""

STANDARD = 2
"""The last of the standard descriptors."""

NO_IMAGES = ("/dev/", "/memfd:", "/proc/", "/sys/")
"""Where files that are no images are."""

DEVICE = re.compile(r"vd[a-z]\d*")
"""A virtio disk in a guest, or a partition of one."""

DISK = re.compile(r"vd[a-z]")

Found = dict[str, tuple[int, int]]


def facts(look: Look | None, files: Found) -> GuestFacts:
    """Collect what a guest and its VMM show.

    Args:
        look: Runs programs in the guest, None if it doesn't run.
        files: What the VMM opened, by role.
    """
    if look is None:
        return GuestFacts(distro_file=files.get("distro"), scratch_file=files.get("scratch"))
    mounts = look("/bin/cat", "/proc/mounts") or ""
    names = devices(look("/bin/cat", "/proc/partitions") or "")
    disks = [name for name in names if DISK.fullmatch(name)]
    line, release = look("/bin/cat", "/proc/cmdline"), look("/bin/cat", "/proc/sys/kernel/osrelease")
    return GuestFacts(
        image_format=image_format(names, mounts),
        upper=upper(mounts, disks),
        block_size=_block_size(look, disks),
        scratch=len(disks) > 1 if disks else None,
        command_line=line.removesuffix("\n") if line else None,
        distro_file=files.get("distro"),
        scratch_file=files.get("scratch"),
        kernel=release.strip() if release else None,
    )


def devices(partitions: str) -> list[str]:
    """Return the names of the virtio disks and their partitions in `/proc/partitions`."""
    words = [line.split() for line in partitions.splitlines()]
    return [row[-1] for row in words if row and DEVICE.fullmatch(row[-1])]


def image_format(names: list[str], mounts: str) -> str | None:
    """Tell whether the guest found a partition on a disk, or mounted a whole one; None if neither is in sight.

    A disk without partitions tells nothing by itself: a guest may read the table of one without its kernel's help.
    """
    if any(not DISK.fullmatch(name) for name in names):
        return "gpt"
    whole = any(kind == "erofs" and DISK.fullmatch(source.removeprefix("/dev/")) for source, kind in _mounted(mounts))
    return "erofs" if whole else None


def upper(mounts: str, disks: list[str]) -> str | None:
    """Tell what a guest writes to; None if it can't be told from what its workload sees."""
    kinds = {kind for _, kind in _mounted(mounts)}
    if "overlay" not in kinds:
        return None
    if len(disks) == 1:
        # The one disk is the distro, which nobody can write to.
        return "ramfs"
    return "ext4" if {"erofs", "ext4"} <= kinds else None


def _block_size(look: Look, disks: list[str]) -> int | None:
    """Return the bytes of a logical block of the one disk that is read-only: the names say nothing of the roles."""
    distros = [disk for disk in disks if (look("/bin/cat", f"/sys/block/{disk}/ro") or "").strip() == "1"]
    size = look("/bin/cat", f"/sys/block/{distros[0]}/queue/logical_block_size") if len(distros) == 1 else None
    return int(size) if size and size.strip().isdecimal() else None


def _mounted(mounts: str) -> list[tuple[str, str]]:
    """Return source and type of each line of /proc/mounts."""
    return [(source, kind) for line in mounts.splitlines() for source, _, kind, *_ in [line.split()]]


def opened(run: Run, table: Iterable[Descriptor]) -> Found:
    """Tell which files a VMM opened for its disks.

    What it was given stays in its table under the numbers that its arguments name; what it opened by them is beyond.

    Args:
        run: The VMM.
        table: Its descriptors.

    Returns:
        Device and inode by role: those of the file that was handed over for it where that is open, else those of the
        next file that nobody handed over. Nothing unless there are as many files as roles, or kernel and initramfs
        besides.
    """
    words = " ".join(run.arguments)
    given = {int(number) for number in re.findall(r"/proc/self/fd/(\d+)", words)}
    roles: dict[str, str] = dict(re.findall(r"\b(distro|runtime|custom|scratch):file:([^, ]*)", words))
    rows = sorted(table)
    objects = {f"/proc/self/fd/{one.number}": (one.device, one.inode) for one in rows}
    log = {(one.device, one.inode) for one in rows if one.number == OUTPUT}
    own = [one for one in rows if one.number > STANDARD and one.number not in given and one.target.startswith("/")]
    files = [(one.device, one.inode) for one in own if not one.target.startswith(NO_IMAGES)]
    images = [file for file in dict.fromkeys(files) if file not in log]
    # Blocks are opened before the kernel and the initramfs (contract openvmm 5).
    if len(images) - len(roles) not in {0, 2}:
        return {}
    # Numbers are given out anew, so their order isn't that of the opens: what was checked is known, the rest is left.
    known = {role: objects[place] for role, place in roles.items() if objects.get(place) in images}
    handed = {(one.device, one.inode) for one in rows if one.number in given}
    others = iter([file for file in images if file not in handed])
    return {role: file for role in roles if (file := known.get(role) or next(others, None)) is not None}
