"""A directory tree as bytes: what the guest's upper keeps of `$HOME`."""

from __future__ import annotations

import os
import stat
import struct

DIRECTORY, FILE, LINK = 1, 2, 3
_ENTRY = struct.Struct("<BIQII")
_OWNER = 0o700


def pack(root: bytes) -> bytes:
    """The directories, regular files and symlinks below `root`; anything else isn't kept."""
    parts: list[bytes] = []
    _pack(root, b"", parts)
    return b"".join(parts)


def _pack(root: bytes, inside: bytes, parts: list[bytes]) -> None:
    here = os.path.join(root, inside) if inside else root
    for name in sorted(os.listdir(here)):
        path = os.path.join(here, name)
        relative = os.path.join(inside, name)
        info = os.lstat(path)
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode):
            os.chmod(path, mode | _OWNER)
            _add(parts, DIRECTORY, mode, info.st_mtime_ns, relative, b"")
            _pack(root, relative, parts)
        elif stat.S_ISREG(info.st_mode):
            os.chmod(path, mode | _OWNER)
            with open(path, "rb") as file:
                _add(parts, FILE, mode, info.st_mtime_ns, relative, file.read())
        elif stat.S_ISLNK(info.st_mode):
            _add(parts, LINK, 0, 0, relative, os.readlink(path))


def _add(parts: list[bytes], kind: int, mode: int, modified: int, name: bytes, content: bytes) -> None:
    parts.extend((_ENTRY.pack(kind, mode, modified, len(name), len(content)), name, content))


def unpack(root: bytes, data: bytes) -> None:
    """Make the tree that `pack` gave as `data` below the directory `root`."""
    offset = 0
    directories: list[tuple[bytes, int, int]] = []
    while offset < len(data):
        kind, mode, modified, length, size = _ENTRY.unpack_from(data, offset)
        offset += _ENTRY.size
        path = os.path.join(root, data[offset : offset + length])
        content = data[offset + length : offset + length + size]
        offset += length + size
        if kind == DIRECTORY:
            os.mkdir(path, _OWNER)
            directories.append((path, mode, modified))
        elif kind == FILE:
            with open(path, "xb") as file:
                file.write(content)
            os.chmod(path, mode)
            os.utime(path, ns=(modified, modified))
        else:
            os.symlink(content, path)
    for path, mode, modified in reversed(directories):
        os.chmod(path, mode)
        os.utime(path, ns=(modified, modified))


def remove(root: bytes) -> None:
    """Remove `root` and everything below it, whatever modes a workload left there."""
    os.chmod(root, _OWNER)
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            remove(path)
        else:
            os.unlink(path)
    os.rmdir(root)
