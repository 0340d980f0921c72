"""Unpacking a release archive, which is never trusted: nothing outside its directory, nothing but files, and bounded.

An archive ends up in the cache whole and verified, or not at all: it is unpacked beside its place, compared with its
``SHA256SUMS``, and renamed.
"""

from __future__ import annotations

import gzip
import os
import re
import secrets
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

from harness.backends import checksums
from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MAX_ENTRIES = 10_000
MAX_BYTES = 4 << 30
MAX_NAME = 1_024
MAX_HEADER = 1 << 20
"""Bytes of an extended header, which is read whole."""

CHUNK = 1 << 20
SUFFIXES = (".tar.gz", ".zip")
RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


class BadArchive(HarnessError):  # noqa: N818 - what it says, not what it is
    """An archive isn't what it should be; the text names it, the entry and the reason."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an archive may hold.

    Attributes:
        entries: Files and directories.
        size: Bytes of all files.
    """

    entries: int = MAX_ENTRIES
    size: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    is_directory: bool
    executable: bool
    size: int
    content: IO[bytes] | None


def unpacked(archive: str, cache: str, *, limits: Limits | None = None) -> str:
    """Return the root of an archive's release in the cache, unpacking and verifying it if it isn't there.

    Args:
        archive: A ``.tar.gz`` or ``.zip``. A ``SHA256SUMS`` beside it that names it is obeyed.
        cache: The directory of all unpacked archives.
        limits: How much it may hold.

    Raises:
        BadArchive: It can't be read, holds what no release holds, or differs from its ``SHA256SUMS``.
    """
    digest = _digest(archive)
    beside = os.path.join(os.path.dirname(os.path.abspath(archive)), checksums.NAME)
    if os.path.isfile(beside):
        stated = _sums(beside).get(os.path.basename(archive))
        if stated not in {None, digest}:
            raise BadArchive(f"{archive}: its SHA-256 is {digest}, and {beside} states {stated}")
    place = os.path.join(cache, digest)
    if not os.path.isdir(place):
        temporary = os.path.join(cache, f".{digest[:16]}.{secrets.token_hex(8)}.tmp")
        os.mkdir(temporary, 0o700)
        try:
            _extract(archive, temporary, limits or Limits())
            _verify(archive, _root(temporary))
            # Another process may have been first: its copy is as good.
            if not os.path.isdir(place):
                os.rename(temporary, place)
        except OSError as error:
            if not os.path.isdir(place):
                raise BadArchive(f"{archive}: it can't be unpacked into {cache}: {error.strerror}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return _root(place)


def _root(place: str) -> str:
    """Return where the release begins: an archive may hold it below one directory."""
    names = os.listdir(place)
    inside = os.path.join(place, names[0]) if len(names) == 1 else place
    return inside if os.path.isdir(inside) else place


def _verify(archive: str, root: str) -> None:
    path = os.path.join(root, checksums.NAME)
    if not os.path.isfile(path):
        raise BadArchive(f"{archive}: it holds no {checksums.NAME}")
    for name, stated in _sums(path).items():
        file = os.path.join(root, *name.split("/"))
        if not os.path.isfile(file):
            raise BadArchive(f"{archive}: its {checksums.NAME} names {name}, which it doesn't hold")
        if (found := checksums.digest(file)) != stated:
            raise BadArchive(
                f"{archive}: the SHA-256 of its {name} is {found}, and its {checksums.NAME} states {stated}"
            )


def _sums(path: str) -> dict[str, str]:
    try:
        return checksums.read(path)
    except HarnessError as error:
        raise BadArchive(str(error)) from error


def _digest(archive: str) -> str:
    try:
        return checksums.digest(archive)
    except OSError as error:
        raise BadArchive(f"{archive}: it can't be read: {error.strerror}") from error


def _extract(archive: str, directory: str, limits: Limits) -> None:
    seen: set[str] = set()
    total = 0
    for entry in _entries(archive):
        words = _checked_name(archive, entry.name)
        if not words:
            continue
        folded = "/".join(words).casefold()
        if folded in seen and not entry.is_directory:
            raise BadArchive(f"{archive}: it holds {entry.name!r} twice")
        seen.add(folded)
        total += entry.size
        if len(seen) > limits.entries:
            raise BadArchive(f"{archive}: it holds over {limits.entries} entries")
        if total > limits.size:
            raise BadArchive(f"{archive}: its files have over {limits.size} bytes")
        _place(archive, entry, os.path.join(directory, *words))


def _place(archive: str, entry: _Entry, path: str) -> None:
    try:
        if entry.is_directory:
            os.makedirs(path, mode=0o755, exist_ok=True)
            return
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if entry.executable else 0o644)
    except (FileExistsError, NotADirectoryError):
        raise BadArchive(f"{archive}: {entry.name!r} is both a file and a directory") from None
    left = entry.size
    with open(descriptor, "wb") as file:
        while left and entry.content is not None and (piece := _read(archive, entry, min(CHUNK, left))):
            file.write(piece)
            left -= len(piece)
    if left:
        raise BadArchive(f"{archive}: {entry.name!r} ends {left} bytes early")


def _read(archive: str, entry: _Entry, size: int) -> bytes:
    if entry.content is None:
        return b""
    with _damage(archive):
        return entry.content.read(size)


def _checked_name(archive: str, name: str) -> list[str]:
    """Return the parts of an entry's name: relative, downwards, and the same file on every system."""
    words = [word for word in name.split("/") if word not in {"", "."}]
    wrong = (
        name.startswith("/")
        or len(name) > MAX_NAME
        or ".." in words
        or any(letter in '\\:*?"<>|' or ord(letter) < ord(" ") for letter in name)
        or any(RESERVED.fullmatch(word) or word[-1] in ". " for word in words)
    )
    if wrong:
        raise BadArchive(f"{archive}: it holds the name {name[:80]!r}")
    return words


def _entries(archive: str) -> Iterator[_Entry]:
    if archive.endswith(".zip"):
        return _of_zip(archive)
    if archive.endswith(".tar.gz"):
        return _of_tar(archive)
    raise BadArchive(f"{archive}: an archive ends in {' or '.join(SUFFIXES)}")


class _Header(tarfile.TarInfo):
    """A tar header whose extended ones are bounded before they are read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read one header."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in {b"x", b"g", b"L", b"K", b"X"} and found.size > MAX_HEADER:
            raise tarfile.ReadError(f"an extended header of {found.size} bytes")
        return found


def _of_tar(archive: str) -> Iterator[_Entry]:
    with (
        _damage(archive),
        gzip.open(archive, "rb") as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as opened,
    ):
        for member in opened:
            if not (member.isfile() or member.isdir()) or member.issparse():
                raise BadArchive(f"{archive}: {member.name!r} is neither a plain file nor a directory")
            content = opened.extractfile(member) if member.isfile() else None
            executable = bool(member.mode & stat.S_IXUSR)
            yield _Entry(member.name, member.isdir(), executable, member.size if content else 0, content)


def _of_zip(archive: str) -> Iterator[_Entry]:
    with _damage(archive), zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR} or member.flag_bits & 1:
                raise BadArchive(f"{archive}: {member.filename!r} is neither a plain file nor a directory")
            if member.is_dir():
                yield _Entry(member.filename, True, False, 0, None)
                continue
            with closing(opened.open(member)) as content:
                executable = bool(member.external_attr >> 16 & stat.S_IXUSR) or member.filename.endswith(".exe")
                yield _Entry(member.filename, False, executable, member.file_size, content)


@contextmanager
def _damage(archive: str) -> Generator[None, None, None]:
    """Say what is wrong with the bytes of an archive in one line."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError) as error:
        raise BadArchive(f"{archive}: it is damaged: {error}") from error
    except gzip.BadGzipFile as error:
        raise BadArchive(f"{archive}: it is damaged: {error}") from error
