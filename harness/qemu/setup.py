"""`nvx-harness setup qemu`: build what the backend boots, from source, once for each state of the sources.

It is built in a directory of its own beside the place where it goes, and moved there whole; a set-up that is cut short
leaves nothing that the next one would take for finished.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from harness import cache, python
from harness.errors import HarnessError, Unavailable
from harness.images import guest
from harness.qemu import initramfs, kernel, tools

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE = "1"
"""Counts the changes of what is built that the sources below don't show."""

AGENT, HOLDER = "agent", "holder"
FLAGS = ("-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Os", "-static", "-s")
KERNEL, MANAGED, ADAPTER, STATED = "vmlinux", "initramfs.cpio", "initramfs-adapter.cpio", "setup.json"
STEPS = 5
HINT = "run: nvx-harness setup qemu"


@dataclass(frozen=True, slots=True)
class Built:
    """A finished set-up.

    Attributes:
        directory: Where it is.
        release: The kernel's release.
    """

    directory: str
    release: str

    def path(self, name: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.directory, name)


def sources() -> str:
    """Return the directory of the agent's sources."""
    return os.path.join(python.home("fake_openvmm"), "fake_openvmm", "qemu", "agent")


def state() -> str:
    """Return a digest of everything that is built from, the kernel apart."""
    digest = hashlib.sha256(RECIPE.encode())
    here = os.path.dirname(os.path.abspath(__file__))
    for path in sorted(glob.glob(os.path.join(glob.escape(sources()), "*.[ch]"))) + [
        os.path.join(here, name) for name in ("initramfs.py", "kernel.py")
    ]:
        with open(path, "rb") as file:
            digest.update(os.path.basename(path).encode() + b"\0" + file.read())
    return digest.hexdigest()


def find() -> Built | None:
    """Return the set-up of the current sources, None if there is none."""
    place = os.path.join(cache.directory("qemu"), state()[:16])
    try:
        with open(os.path.join(place, STATED), encoding="utf-8") as file:
            stated = cast("dict[str, object]", json.load(file))
    except FileNotFoundError:
        return None
    return Built(place, str(stated.get("release")))


def set_up(
    say: Callable[[str], None], *, package: str | None = None, again: bool = False, install: bool = True
) -> Built:
    """Build everything that isn't built yet.

    Args:
        say: Takes a line of progress.
        package: A kernel package of Debian's to take; None fetches today's by apt.
        again: Whether it is built even if it is there.
        install: Whether missing Debian packages are installed, if this user can.

    Raises:
        Unavailable: Programs are missing, all of them named with the line that installs them.
        HarnessError: A step fails.
    """
    found = find()
    if found is not None and package is None and not again:
        say(f"{found.directory}: set up already, kernel {found.release}")
        return found
    _require(say, package, install=install)
    parent = cache.directory("qemu")
    place = os.path.join(parent, state()[:16])
    with tempfile.TemporaryDirectory(dir=parent, prefix=".making-") as staged:
        made = os.path.join(staged, "made")
        os.mkdir(made)
        release = _build(say, made, staged, package)
        with open(os.path.join(made, STATED), "w", encoding="utf-8") as file:
            json.dump({"release": release, "state": state()}, file)
        _put(made, place, staged)
    say(f"{place}: kernel {release}")
    return Built(place, release)


def _require(say: Callable[[str], None], package: str | None, *, install: bool) -> None:
    if package is not None and not os.path.isfile(package):
        raise HarnessError(f"--kernel {package}: there is no such file; give a linux-image package of Debian's")
    packages = _packages()
    if packages and install and tools.can_install():
        say(f"0/{STEPS} packages: installing {' '.join(packages)}")
        tools.install(packages)
        packages = _packages()
    if packages:
        raise Unavailable("setup qemu", (f"Debian packages, which this installs: {tools.apt_line(packages)}",))


def _packages() -> list[str]:
    """Return the Debian packages that are missing."""
    lacking = guest.lacking(None)
    return sorted(
        {
            *tools.missing(tools.SETUP),
            *(package for program, package in guest.TOOLS.items() if any(program in lack for lack in lacking)),
        }
    )


def _build(say: Callable[[str], None], made: str, staged: str, package: str | None) -> str:
    name = os.path.basename(package) if package else kernel.resolve()
    say(f"1/{STEPS} kernel: {'taking' if package else 'fetching'} {name}")
    unpacked = kernel.unpack(package or kernel.fetch(name, staged), os.path.join(staged, "package"))
    say(f"2/{STEPS} kernel: extracting {unpacked.name}")
    kernel.extract(unpacked, os.path.join(made, KERNEL))
    say(f"3/{STEPS} agent: compiling")
    build_agent(made)
    say(f"4/{STEPS} initramfs: two, one with each agent")
    with open(os.path.join(made, AGENT), "rb") as file:
        agent = file.read()
    with open(str(tools.find("busybox")), "rb") as file:
        busybox = file.read()
    modules = kernel.modules(unpacked)
    for name, adapter in ((MANAGED, False), (ADAPTER, True)):
        with open(os.path.join(made, name), "wb") as file:
            file.write(initramfs.build(agent, busybox, list(guest.APPLETS), modules, adapter=adapter))
    say(f"5/{STEPS} images")
    guest.make(os.path.join(made, "images"), None)
    return unpacked.name


def build_agent(directory: str, *, compiler: str = "musl-gcc") -> None:
    """Compile the agent and the holder into a directory."""
    found = sorted(glob.glob(os.path.join(glob.escape(sources()), "*.c")))
    alone = {HOLDER: [path for path in found if os.path.basename(path) == f"{HOLDER}.c"]}
    alone[AGENT] = [path for path in found if path not in alone[HOLDER]]
    for name, files in alone.items():
        command = [compiler, *FLAGS, "-o", os.path.join(directory, name), *files]
        tools.run(command, what=f"compiling the {name}")


def _put(made: str, place: str, staged: str) -> None:
    """Move what was made to its place; an older one there goes, whoever else is doing the same."""
    with suppress(FileNotFoundError):
        os.rename(place, os.path.join(staged, "old"))
    try:
        os.rename(made, place)
    except OSError:
        if not os.path.exists(os.path.join(place, STATED)):
            raise
        shutil.rmtree(made)
