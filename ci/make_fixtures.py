"""Make the committed images of ``harness/images`` anew: ``python ci/make_fixtures.py [DIRECTORY]``.

Needs mkfs.erofs (Debian: erofs-utils), mke2fs (e2fsprogs) and the Python package gpt-image. Times, UUIDs and contents
are fixed, so that two runs of the same tools give the same headers.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
EROFS_UUID = "11111111-1111-1111-1111-111111111111"
DISK_GUID = "01234567-89ab-cdef-8123-456789abcdef"
PARTITION_GUID = "fedcba98-7654-3210-8edc-ba9876543210"
LINUX_DATA = "0fc63daf-8483-4772-8e79-3d69d8477de4"
SCRATCH_UUID = "33333333-3333-3333-3333-333333333333"
TIME = "1700000000"
SCRATCH_SIZE = 8 << 20
DISK_SIZE = 1 << 20
TREE: Mapping[str, str] = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home/nobody:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hostname": "nvx-sandbox\n",
    "bin/sh": "a stand-in: the fake guest runs no program of its image\n",
}
DIRECTORIES = ("dev", "home/nobody", "proc", "root", "run", "sys", "tmp")
TOOLS: Mapping[str, str] = {"mkfs.erofs": "erofs-utils", "mke2fs": "e2fsprogs"}


class MissingToolError(Exception):
    """A program or package that the images need isn't installed; the text says what to install."""


def tool(name: str) -> str:
    """Return a program's path; sbin counts, as a user's PATH often lacks it."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise MissingToolError(f"{name} is missing: install the Debian package {TOOLS[name]}")
    return found


def run(command: Sequence[str], **environment: str) -> None:
    """Run a program; its output is shown only if it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def make_erofs(path: Path) -> None:
    """Make the EROFS distro."""
    with tempfile.TemporaryDirectory() as directory:
        for name in DIRECTORIES:
            Path(directory, name).mkdir(parents=True)
        for name, text in TREE.items():
            file = Path(directory, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        run([tool("mkfs.erofs"), f"-T{TIME}", "--all-root", f"-U{EROFS_UUID}", str(path), directory])


def make_gpt(path: Path, erofs: bytes, sector: int) -> None:
    """Make a GPT disk whose first partition holds the EROFS."""
    try:
        from gpt_image.disk import Disk  # noqa: PLC0415 - the one optional package
        from gpt_image.partition import Partition  # noqa: PLC0415
    except ImportError as error:
        raise MissingToolError("gpt-image is missing: pip install gpt-image") from error
    disk = Disk(str(path), sector_size=sector)
    disk.create(DISK_SIZE)
    disk.table.primary_header.disk_guid = disk.table.secondary_header.disk_guid = DISK_GUID
    size = -(-len(erofs) // sector) * sector
    partition = Partition("distro", size, LINUX_DATA, PARTITION_GUID)
    disk.table.partitions.add(partition)
    disk.commit()
    partition.write_data(disk, erofs)


def make_scratch(path: Path) -> None:
    """Make the empty ext4 scratch."""
    with path.open("wb") as file:
        file.truncate(SCRATCH_SIZE)
    options = ["-q", "-F", "-t", "ext4", "-b", "1024", "-U", SCRATCH_UUID, "-m", "0", "-I", "256"]
    extended = ["-E", f"hash_seed={SCRATCH_UUID},lazy_itable_init=0,lazy_journal_init=0"]
    run([tool("mke2fs"), *options, *extended, str(path)], E2FSPROGS_FAKE_TIME=TIME)


def make(directory: Path) -> list[Path]:
    """Make all the images, unpacked.

    Args:
        directory: Where they go; it must exist and hold none of them.

    Returns:
        Their paths.
    """
    erofs, scratch = directory / "distro.erofs", directory / "scratch.ext4"
    disks = {directory / "distro.gpt.img": 512, directory / "distro.gpt4k.img": 4096}
    print("1/4 distro.erofs", flush=True)
    make_erofs(erofs)
    for number, (disk, sector) in enumerate(disks.items(), 2):
        print(f"{number}/4 {disk.name}", flush=True)
        make_gpt(disk, erofs.read_bytes(), sector)
    print("4/4 scratch.ext4", flush=True)
    make_scratch(scratch)
    return [erofs, *disks, scratch]


def main(arguments: Sequence[str]) -> int:
    """Make the images and put them, packed, where they are committed."""
    target = Path(arguments[0]) if arguments else ROOT / "harness" / "images"
    try:
        with tempfile.TemporaryDirectory() as directory:
            for path in make(Path(directory)):
                data = path.read_bytes()
                name = path.name if path.suffix == ".erofs" else f"{path.name}.xz"
                (target / name).write_bytes(data if path.suffix == ".erofs" else lzma.compress(data, preset=9))
                print(f"    {name}: {(target / name).stat().st_size} bytes", flush=True)
    except MissingToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
