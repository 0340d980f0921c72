"""Images that a real guest boots from: a distro that was given, or the smallest one, made of a static busybox."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile

from harness import images
from harness.errors import HarnessError, Unavailable
from harness.images import gpt
from harness.images.restamp import restamp

TOOLS = {"mkfs.erofs": "erofs-utils", "busybox": "busybox-static"}
"""What the smallest distro is made with, and the Debian package that brings it."""

FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home/nobody:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hostname": "nvx-sandbox\n",
}
PLACES = ("bin", "sbin", "usr/bin", "usr/sbin", "dev", "home/nobody", "proc", "root", "run", "sys", "tmp", "etc", "mnt")
APPLETS = (
    *("sh", "ash", "cat", "echo", "env", "printenv", "ls", "mkdir", "rm", "pwd", "sleep", "true", "false", "test", "["),
    *("id", "head", "tail", "wc", "dd", "touch", "chmod", "cp", "mv", "grep", "sed", "sync", "mount", "umount", "kill"),
    *("ps", "uname", "stat", "hostname", "readlink", "yes", "seq", "printf", "date", "df", "od", "sha256sum", "tr"),
)
DISKS = {512: "distro.gpt.img", 4096: "distro.gpt4k.img"}
"""The disks by the bytes of their sectors, called as the committed ones."""

_INTERPRETER = 3


def make(directory: str, distro: str | None) -> images.Images:
    """Make the images of a run: the distro, disks around it, and an empty scratch.

    Args:
        directory: Where they go; what is there already stays.
        distro: An EROFS image that guests can boot from; None: the smallest one is made.

    Returns:
        Their paths. Their identities are the same whatever the distro is.

    Raises:
        Unavailable: No distro was given, and a tool to make one is missing.
        HarnessError: The distro isn't EROFS, or can't be made.
    """
    os.makedirs(directory, exist_ok=True)
    erofs = os.path.join(directory, "distro.erofs")
    disks = {sector: os.path.join(directory, name) for sector, name in DISKS.items()}
    if not os.path.exists(erofs):
        staged = f"{erofs}.new"
        if distro is not None:
            restamp(distro, staged, images.EROFS_UUID)
        else:
            smallest(staged)
        for sector, disk in disks.items():
            gpt.write(disk, staged, sector=sector, guid=images.DISK_GUID)
            os.chmod(disk, 0o444)
        os.chmod(staged, 0o444)
        os.replace(staged, erofs)
    scratch = images.copy_scratch(os.path.join(directory, "scratch.ext4"))
    return images.Images(erofs=erofs, gpt=disks[512], gpt4k=disks[4096], scratch=scratch)


def lacking(distro: str | None) -> tuple[str, ...]:
    """Return what :func:`make` lacks here, each with what would bring it."""
    if distro is not None:
        return ()
    return tuple(f"{name} (Debian: {package})" for name, package in TOOLS.items() if _tool(name) is None)


def smallest(path: str) -> None:
    """Make the smallest distro: a static busybox and the files that an agent asks for.

    Args:
        path: The EROFS image to be, replaced if it exists.

    Raises:
        Unavailable: A tool is missing.
        HarnessError: It can't be made.
    """
    if missing := lacking(None):
        raise Unavailable("the smallest distro", missing)
    make_erofs, busybox = _tool("mkfs.erofs"), _tool("busybox")
    with tempfile.TemporaryDirectory(prefix="nvx-distro-") as tree:
        for name in PLACES:
            os.makedirs(os.path.join(tree, *name.split("/")), mode=0o755, exist_ok=True)
        for name, text in FILES.items():
            with open(os.path.join(tree, *name.split("/")), "w", encoding="utf-8") as file:
                file.write(text)
        # Everything belongs to root in there, and the workload must be able to write to its home.
        for name in ("tmp", "home/nobody"):
            os.chmod(os.path.join(tree, *name.split("/")), 0o1777)  # noqa: S103 - inside the guest
        program = shutil.copyfile(str(busybox), os.path.join(tree, "bin", "busybox"))
        os.chmod(program, 0o755)  # noqa: S103 - as above
        for name in APPLETS:
            os.symlink("busybox", os.path.join(tree, "bin", name))
        command = [str(make_erofs), "-T0", "--all-root", f"-U{images.EROFS_UUID}", path, tree]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise HarnessError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")


def _tool(name: str) -> str | None:
    """Return a tool's path; sbin counts, and a busybox only if no loader is needed to start it."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    return found if found is None or name != "busybox" or _is_static(found) else None


def _is_static(program: str) -> bool:
    with open(program, "rb") as file:
        head = file.read(4096)
    if head[:5] != b"\x7fELF\x02":
        return False
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    kinds = [struct.unpack_from("<I", head, at)[0] for at in range(offset, offset + size * count, size)]
    return _INTERPRETER not in kinds
