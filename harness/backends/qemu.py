"""A real Linux guest under QEMU, behind the bundled fake's front.

What a VM monitor is asked and what it says is the fake's; what its guest finds and does is Linux's own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from harness import images
from harness.backends.contract import KNOB, PAUSE, SWEEP, Artifacts
from harness.backends.fake import FakeSide
from harness.backends.probes import probe
from harness.errors import Unsupported
from harness.images import guest
from harness.qemu import setup, tools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.qemu.setup import Built
    from harness.settings import Settings

GUEST_POINTS = frozenset({"guest_attach", "guest_trigger", "before_maps", "before_exec", "before_stopped"})
"""Points inside the guest, which is a kernel of its own that nobody holds."""

MODEL_KNOBS = frozenset({"exit_code", "reboot_at", "guest", "frames"})
"""Ways to misbehave that only a guest model has."""

ENDS = ("guest_exit_at", "guest_dead_at", "guest_hangs_at")
ENDING_POINTS = frozenset({"guest_boot", "guest_attach", "before_maps", "before_exec", "before_stopped"})
LINUX = "linux"


class Qemu:
    """See :class:`harness.backends.contract.Backend`.

    Args:
        built: What the set-up made.
        accelerator: ``kvm`` or ``tcg``.
    """

    name = "qemu"
    hypervisor = "kvm"

    def __init__(self, built: Built, accelerator: str) -> None:
        self._built = built
        self.accelerator = accelerator
        fast = accelerator == "kvm"
        self.phase = 30.0 if fast else 180.0
        self.boot = 5.0 if fast else 20.0
        self._artifacts: dict[str, Artifacts] = {}
        self._machine = {
            "qemu": str(tools.find(tools.EMULATOR)),
            "holder": built.path(setup.HOLDER),
            "accel": accelerator,
        }

    def lacks(self, need: str) -> str | None:
        """A guest of its own can't be held from outside, nor made to speak nonsense, and takes its time."""
        kind, _, name = need.partition(":")
        if need == SWEEP:
            return "guests boot for seconds: there is one crash at each step with a VMM"
        if f"{kind}:" == PAUSE and name.partition("#")[0] in GUEST_POINTS:
            return f"a real guest can't be held at {name}"
        if f"{kind}:" == KNOB and name in MODEL_KNOBS:
            return f"a real guest has no knob {name}"
        return None

    def images(self, directory: str) -> images.Images:
        """Copy the set-up's distro and disks; each worker has its own."""
        os.makedirs(directory, exist_ok=True)
        made = self._built.path("images")
        for name in sorted(os.listdir(made), key=lambda name: name.endswith(".erofs")):
            if name.startswith("distro."):
                _copy(os.path.join(made, name), os.path.join(directory, name), 0o444)
        return guest.make(directory, None)

    def artifacts(self, directory: str) -> Artifacts:
        """Write a release layout with the real kernel and the agent's initramfs; its digests are right."""
        if directory in self._artifacts:
            return self._artifacts[directory]
        made = images.write_artifacts(
            directory,
            guest={
                "guest/vmlinux": self._built.path(setup.KERNEL),
                "guest/initramfs.cpio.gz": self._built.path(setup.MANAGED),
                "guest/initramfs-adapter.cpio.gz": self._built.path(setup.ADAPTER),
            },
        )
        found = self._artifacts[directory] = Artifacts(
            directory=made.directory,
            kernel=made.kernel,
            initrd=made.initramfs,
            manifest=made.manifest,
            adapter=made.adapter,
        )
        return found

    def begin(self, directory: str, *, token: str, channel: str, evidence: str) -> QemuSide:
        """Write the launcher and the first side file."""
        return QemuSide(self, directory, token=token, channel=channel, evidence=evidence, machine=self._machine)


class QemuSide(FakeSide):
    """See :class:`harness.backends.contract.TestSide`: the fake's, with a machine, and without what that can't do."""

    def __init__(
        self, backend: Qemu, directory: str, *, token: str, channel: str, evidence: str, machine: Mapping[str, str]
    ) -> None:
        self._backend = backend
        super().__init__(directory, token=token, channel=channel, evidence=evidence, machine=machine)

    def configure(self, *, pauses: Sequence[str] = (), knobs: Mapping[str, object] | None = None) -> None:
        """Write the side file; what a real guest can't do is refused with the reason."""
        needs = [f"{PAUSE}{point}" for point in pauses] + [f"{KNOB}{name}" for name in knobs or {}]
        reasons = [reason for need in needs if (reason := self._backend.lacks(need))]
        reasons += [f"a real guest can't end at {point}" for point in _ends(knobs or {}) if point not in ENDING_POINTS]
        if reasons:
            raise Unsupported(self._backend.name, reasons[0])
        super().configure(pauses=pauses, knobs=knobs)


def missing(settings: Settings) -> tuple[str, ...]:
    """See :func:`harness.backends.missing`."""
    del settings
    if not sys.platform.startswith(LINUX):
        return ("Linux",)
    found: list[str] = []
    if tools.find(tools.EMULATOR) is None:
        found.append(f"{tools.EMULATOR} ({tools.apt_line([tools.SETUP[tools.EMULATOR]])})")
    if setup.find() is None:
        found.append(f"its kernel, agent and images ({setup.HINT})")
    return tuple(found)


def make(settings: Settings) -> Qemu:
    """See :func:`harness.backends.load`."""
    del settings
    built = setup.find()
    assert built is not None  # noqa: S101 - `missing` has been asked
    return Qemu(built, "kvm" if probe("kvm").works else "tcg")


def _ends(knobs: Mapping[str, object]) -> list[str]:
    found: list[str] = []
    for name in ENDS:
        value = json.loads(json.dumps(knobs.get(name, [])))
        found += [str(point).partition("#")[0] for point in value]
    return found


def _copy(source: str, to: str, mode: int) -> None:
    if os.path.lexists(to):
        return
    staged = f"{to}.{os.getpid()}"
    shutil.copyfile(source, staged)
    os.chmod(staged, mode)
    os.replace(staged, to)
