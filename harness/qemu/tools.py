"""The programs that the set-up and the backend need, and the Debian packages that bring them."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EMULATOR = "qemu-system-x86_64"
SETUP = {
    EMULATOR: "qemu-system-x86",
    "lz4": "lz4",
    "musl-gcc": "musl-tools",
    "dpkg": "dpkg",
}
"""What the set-up runs, apart from what the images are made with."""

LONG = 600
"""Seconds that one of these programs may take."""


def find(name: str) -> str | None:
    """Return a program's path; sbin counts, as a user's PATH often lacks it."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def missing(names: Iterable[str]) -> list[str]:
    """Return the Debian packages of the programs that aren't there."""
    return sorted({SETUP[name] for name in names if find(name) is None})


def apt_line(packages: Iterable[str]) -> str:
    """Return the command that installs packages, without what they only recommend."""
    return f"sudo apt-get install --no-install-recommends {' '.join(packages)}"


def can_install() -> bool:
    """Tell whether this user can install Debian packages."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and find("apt-get") is not None


def install(packages: Iterable[str]) -> None:
    """Install packages, without what they only recommend.

    Raises:
        HarnessError: apt can't; the error holds its last words.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], what="fetching apt's package lists", environment=environment)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    run(command, what="installing packages", environment=environment)


def run(
    command: Sequence[str],
    *,
    what: str,
    cwd: str | None = None,
    limit: float = LONG,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        HarnessError: It fails or takes too long; the error holds its last words.
    """
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            cwd=cwd,
            env=environment,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{what}: {command[0]} hasn't ended within {limit:g} s") from None
    except OSError as error:
        raise HarnessError(f"{what}: {command[0]} can't be started: {error.strerror}") from error
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise HarnessError(f"{what}: {os.path.basename(command[0])} ended with {done.returncode}\n{said}")
    return done.stdout
