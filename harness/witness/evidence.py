"""Evidence: one directory per test, written through one function, which knows no capability.

Listings, records, logs, transcripts and explanations of processes all pass :meth:`Evidence.keep`, so there is one
place where a secret could get out, and one test for it.
"""

from __future__ import annotations

import base64
import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from harness.witness import host

if TYPE_CHECKING:
    from collections.abc import Iterable

CAPABILITY = "control.capability"
CAPABILITY_BYTES = 32
LIMIT = 64 * 1024
REDACTED = b"<capability>"


class Evidence:
    """What is kept of one test.

    Args:
        directory: Where; made at the first thing kept.
        root: The state root whose sandboxes' capabilities must never be kept.

    Attributes:
        lost: Why a part of it could not be written; empty: it is whole.
    """

    def __init__(self, directory: str, *, root: str) -> None:
        self.directory = directory
        self._root = root
        self._secrets: set[bytes] = set()
        self.lost = ""

    def learn(self) -> None:
        """Read the capabilities that exist now, to know them later when they are gone."""
        for path in sandbox_files(self._root, CAPABILITY):
            try:
                with open(path, "rb") as file:
                    self.protect(file.read(CAPABILITY_BYTES))
            except OSError:
                continue

    def protect(self, secret: bytes) -> None:
        """Never let this value into anything kept, in any of the forms that it is written in."""
        if len(secret) == CAPABILITY_BYTES:
            hexadecimal = secret.hex().encode()
            self._secrets |= {secret, hexadecimal, hexadecimal.upper()}
            self._secrets.add(base64.b64encode(secret).rstrip(b"="))
            self._secrets.add(ascii(secret)[2:-1].encode())

    def redact(self, data: bytes) -> bytes:
        """Return the data without any capability that is known."""
        for secret in self._secrets:
            data = data.replace(secret, REDACTED)
        return data

    def without_secrets(self, text: str) -> str:
        """Return a text without any capability that is known."""
        return self.redact(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    def keep(self, name: str, text: str | bytes) -> str:
        """Write one piece of evidence, the last 64 KiB of it, and return its path.

        One that can't be written, for the disk is full, keeps nobody from what comes next: processes have to be ended,
        and a failure has to be told.
        """
        self.learn()
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        path = os.path.join(self.directory, name)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "wb") as file:
                file.write(self.redact(data)[-LIMIT:])
        except OSError as error:
            self.lost = self.lost or error.strerror or str(error)
        return path

    def remove(self) -> None:
        """Remove all that was kept, which nobody needs. What is around it is the run's: others may be at it."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def keep_files(self, label: str, directories: Iterable[str]) -> None:
        """Keep the listings of directories and the content of their small regular files, secrets aside."""
        for directory in directories:
            base = os.path.join(label, os.path.basename(directory.rstrip("/")))
            self.keep(f"{base}.listing", "\n".join(listing(directory)) + "\n")
            for path in sorted(_regular(directory)):
                if os.path.basename(path) != CAPABILITY:
                    self.keep(os.path.join(base, os.path.relpath(path, directory)), _content(path))


def _content(path: str) -> bytes:
    """Return the end of a file, or why it can't be read: a lock that somebody holds forbids it on Windows."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * LIMIT))
            return file.read()
    except OSError as error:
        return f"<it can't be read: {error.strerror}>\n".encode()


def listing(directory: str) -> list[str]:
    """Return the entries below a directory, one line each: kind, mode, links, size of files, name."""
    found: list[str] = []
    system = host()
    for place, names, files in os.walk(directory):
        names.sort()
        for name in sorted([*names, *files]):
            path = os.path.join(place, name)
            try:
                status = os.lstat(path)
                mode = system.mode(path, status)
                target = f" -> {os.readlink(path)}" if stat.S_ISLNK(status.st_mode) else ""
            except FileNotFoundError:
                continue
            shown = os.path.relpath(path, directory)
            found.append(f"{stat.filemode(mode)} {status.st_nlink} {status.st_size:8} {shown}{target}")
    return found


def sandbox_files(root: str, name: str) -> list[str]:
    """Return the files of that name in the sandboxes of a state root."""
    try:
        with os.scandir(root) as entries:
            return [os.path.join(entry.path, name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _regular(directory: str) -> Iterable[str]:
    for place, _, files in os.walk(directory):
        for name in files:
            path = os.path.join(place, name)
            with suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield path
