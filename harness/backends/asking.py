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

DISTRO, SCRATCH = "vda", "vdb"
"""The names of the disks in a guest: in the order of their roles, as their addresses are."""

Found = dict[str, tuple[int, int]]


def facts(look: Look | None, files: Found) -> GuestFacts:
    """Collect what a guest and its VMM show.

    Args:
        look: Runs programs in the guest, None if it doesn't run.
        files: What the VMM opened, by role.
    """
    mounts = (look("/bin/cat", "/proc/mounts") or "") if look else ""
    disks = (look("/bin/ls", "/sys/block") or "").split() if look else []
    size = look("/bin/cat", f"/sys/block/{DISTRO}/queue/logical_block_size") if look else None
    line = look("/bin/cat", "/proc/cmdline") if look else None
    return GuestFacts(
        image_format=image_format(mounts),
        upper=upper(mounts),
        block_size=int(size) if size and size.strip().isdecimal() else None,
        scratch=SCRATCH in disks if DISTRO in disks else None,
        command_line=line.removesuffix("\n") if line else None,
        distro_file=files.get("distro"),
        scratch_file=files.get("scratch"),
    )


def image_format(mounts: str) -> str | None:
    """Tell how a guest read its distro: an EROFS of a whole disk, or of a partition; None if no EROFS is in sight."""
    sources = {source for source, kind in _mounted(mounts) if kind == "erofs"}
    if f"/dev/{DISTRO}" in sources:
        return "erofs"
    return "gpt" if f"/dev/{DISTRO}1" in sources else None


def upper(mounts: str) -> str | None:
    """Tell what a guest writes to; None if its own mounts aren't in sight, but only those of its workload."""
    kinds = {kind for _, kind in _mounted(mounts)}
    if not {"erofs", "overlay"} <= kinds:
        return None
    return "ext4" if "ext4" in kinds else "ramfs"


def _mounted(mounts: str) -> list[tuple[str, str]]:
    """Return source and type of each line of /proc/mounts."""
    return [(source, kind) for line in mounts.splitlines() for source, _, kind, *_ in [line.split()]]


def opened(run: Run, table: Iterable[Descriptor]) -> Found:
    """Tell which files a VMM opened for its disks, in the order of their roles.

    What it was given stays in its table under the numbers that its arguments name; what it opened by them is beyond.

    Args:
        run: The VMM.
        table: Its descriptors.

    Returns:
        Device and inode by role; nothing unless there are as many files as roles, or kernel and initramfs besides.
    """
    words = " ".join(run.arguments)
    given = {int(number) for number in re.findall(r"/proc/self/fd/(\d+)", words)}
    roles = re.findall(r"\b(distro|runtime|custom|scratch):file:", words)
    rows = sorted(table)
    log = {(one.device, one.inode) for one in rows if one.number == OUTPUT}
    own = [one for one in rows if one.number > STANDARD and one.number not in given and one.target.startswith("/")]
    files = [(one.device, one.inode) for one in own if not one.target.startswith(NO_IMAGES)]
    images = [file for file in dict.fromkeys(files) if file not in log]
    # Blocks are opened before the kernel and the initramfs (contract openvmm 5).
    return dict(zip(roles, images, strict=False)) if len(images) - len(roles) in {0, 2} else {}
