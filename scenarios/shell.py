"""Typing commands on one sandbox, with everything that a user would see noted for a golden."""

from __future__ import annotations

import re

from harness.completed import Completed
from harness.sandbox import Sandbox
from harness.witness.evidence import listing
from harness.world import World

USAGE = 2


def options(box: Sandbox, world: World) -> list[str]:
    """Return what `provision` takes for a sandbox."""
    upper = ["--scratch", box.scratch] if box.scratch else ["--ram-upper"]
    artifacts = world.artifacts
    return [
        *("--distro", box.distro, "--format", box.image_format, "--identity", box.identity, *upper),
        *("--openvmm", world.command, "--kernel", artifacts.kernel, "--initrd", artifacts.initrd),
        *("--manifest", artifacts.manifest, "--hypervisor", world.backend.hypervisor),
    ]


def replaced(arguments: list[str], option: str, *value: str) -> list[str]:
    """Return the arguments with an option's value replaced; without a value the option goes."""
    place = arguments.index(option)
    return [*arguments[:place], *((option, *value) if value else ()), *arguments[place + 2 :]]


class Shell:
    """Types commands on one sandbox and notes what it shows after each.

    Attributes:
        notes: Everything that a user would see, line by line.
    """

    def __init__(self, world: World, box: Sandbox) -> None:
        self._world = world
        self._box = box
        self.notes: list[str] = []

    def type(self, op: str, *arguments: str, after: tuple[str, ...] = ()) -> Completed:
        """Run a command, and note its status, its output and the directory.

        Args:
            op: The command.
            arguments: Its options, not noted.
            after: What follows them, noted.
        """
        done = self._world.nvx_ref(op, "--state-dir", self._box.directory, *arguments, *after)
        self.notes.append(f"$ nvx-ref {' '.join([op, *after])}")
        self.note(done)
        self.list()
        return done

    def note(self, done: Completed) -> None:
        """Note how a command ended and what it printed."""
        self.notes.append(f"status {done.status}")
        self.notes += [f"stdout {line}" for line in done.stdout.splitlines()]
        if done.status == USAGE:
            # The words of a usage error are those of the option parser's version; what matters is the option.
            named = re.search(r"--[a-z-]+", done.stderr.strip().splitlines()[-1])
            self.notes.append(f"stderr (usage) {named[0] if named else done.stderr}")
            return
        self.notes += [f"stderr {line}" for line in done.stderr.splitlines()]

    def list(self) -> None:
        """Note the directory: kind, mode, links and name of each entry."""
        for line in listing(self._box.directory):
            mode, links, _, name = line.split(None, 3)
            self.notes.append(f"  {mode} {links} {name}")
