"""The real OpenVMM as a backend, with KVM, MSHV or WHP. It says nothing of itself: it is looked at from outside.

Each test starts OpenVMM by a name of its own, a link in the test's directory, so that the test's VMMs are known by
their first argument. What a guest found is asked of the guest, by programs that run in it; what can't be seen stays
None.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from typing import TYPE_CHECKING

from harness import images, witness
from harness.backends import artifacts, asking, checksums
from harness.backends.artifacts import RELEASE, SOURCE_MANIFEST
from harness.backends.contract import ENDS, EVIDENCE, GUEST, KNOB, PAUSE, SECTORS, WORKER, Artifacts
from harness.backends.probes import probe
from harness.backends.watch import Watch
from harness.errors import Unsupported
from harness.images import guest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.backends.artifacts import Found
    from harness.backends.contract import Attachment, Backend, GuestFacts, Launched, Look, Vm
    from harness.backends.watch import Run
    from harness.settings import Settings
    from harness.witness.contract import Descriptor

PHASE = 70.0
"""Seconds that one operation on a real VM may take: the 60 that an orchestrator gives it (contract nvx-host 4.1), and
some for it to say that they were too few."""

LIBRARY = ".dll"
PLACE = "vmm"
"""The directory, in a test's own, of its name for OpenVMM; on Windows its libraries are beside that."""

BOOT = 10.0
"""Seconds that a real guest may take until it is ready."""


def missing(settings: Settings) -> tuple[str, ...]:
    """See :func:`harness.backends.missing`: artifacts, images and a hypervisor that has just run something."""
    found = _found(settings)
    lacking = list(found.missing)
    if tools := guest.lacking(found.distro):
        lacking.append(f"a distro ({artifacts.DISTRO}=FILE.erofs; none can be made here without {' and '.join(tools)})")
    verdict = verdict_of(settings.backend)
    if not verdict[0]:
        lacking.append(f"a hypervisor that runs guests ({settings.backend}: {verdict[1]})")
    return tuple(lacking)


def make(settings: Settings) -> Backend:
    """See :func:`harness.backends.load`."""
    return OpenVmm(settings.backend, _found(settings))


def _found(settings: Settings) -> Found:
    # What was found is hashed, so it is found once; a test that changes the environment asks anew.
    return _find(settings, tuple(sorted(item for item in os.environ.items() if item[0].startswith("NVX_"))))


@cache
def _find(settings: Settings, environment: tuple[tuple[str, str], ...]) -> Found:
    return artifacts.find(settings, dict(environment))


@cache
def verdict_of(hypervisor: str) -> tuple[bool, str]:
    """Run a hypervisor's probe once; return whether guests can run, and why."""
    verdict = probe(hypervisor)
    return verdict.works, verdict.reason


class OpenVmm:
    """See :class:`harness.backends.contract.Backend`.

    Args:
        name: ``kvm``, ``mshv`` or ``whp``.
        found: Its artifacts, with nothing missing.
    """

    phase = PHASE
    boot = BOOT

    def __init__(self, name: str, found: Found) -> None:
        self.name = name
        self.hypervisor = name
        self._found = found

    def lacks(self, need: str) -> str | None:
        """It can't be told to misbehave, and takes files for disks of 512 bytes a sector."""
        kind = need.partition(":")[0] + ":"
        if kind == KNOB:
            return "a real VMM and guest can't be told to misbehave"
        if kind == PAUSE:
            return "a real VMM can't be held at a point"
        if kind == EVIDENCE:
            return "nobody sees when a real guest takes a request"
        if need == ENDS:
            return "a guest without images opens a shell on its console, which nobody leaves (contract openvmm 6)"
        if need == WORKER:
            return "OpenVMM runs its guest in its one process (--single-process)"
        if need == f"{SECTORS}4096":
            return "OpenVMM shows a file in sectors of 512 bytes; 4,096 take a block device (contract openvmm 1.2)"
        if need == f"{GUEST}adapter" and self._found.adapter is None:
            return "no initramfs here runs the test adapter's agent"
        return None

    def artifacts(self, directory: str) -> Artifacts:
        """Stage a release: the same names and statements for whatever layout the pieces came in.

        They are the same files where they can be, as what is shared with a guest is judged by its path.
        """
        root = os.path.join(directory, RELEASE.name)
        found = self._found
        pieces = {RELEASE.kernel: found.kernel, RELEASE.initrd: found.initrd}
        if found.adapter is not None:
            pieces[RELEASE.adapter] = found.adapter
        if not os.path.isfile(os.path.join(root, checksums.NAME)):
            for name, path in {**pieces, "bin/openvmm": _file(found.command)}.items():
                _place(path, os.path.join(root, *name.split("/")))
            shutil.copyfile(found.manifest, os.path.join(root, SOURCE_MANIFEST))
            # A digest's name is the same on every system, whatever the program's.
            digests = {name.removesuffix(".exe"): digest for name, digest in found.digests.items()}
            with open(os.path.join(root, checksums.NAME), "w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
        return Artifacts(
            directory=root,
            kernel=os.path.join(root, *RELEASE.kernel.split("/")),
            initrd=os.path.join(root, *RELEASE.initrd.split("/")),
            manifest=os.path.join(root, SOURCE_MANIFEST),
            adapter=os.path.join(root, *RELEASE.adapter.split("/")) if found.adapter else None,
        )

    def images(self, directory: str) -> images.Images:
        """Make the images of real guests, beside the release."""
        return guest.make(os.path.join(directory, RELEASE.name), self._found.distro)

    def begin(self, directory: str, *, token: str, channel: str, evidence: str) -> OpenVmmSide:
        """Give the test a name for OpenVMM that is its own."""
        del token, channel, evidence
        return OpenVmmSide(self, directory, self._found.command)


class OpenVmmSide:
    """See :class:`harness.backends.contract.TestSide`."""

    def __init__(self, backend: OpenVmm, directory: str, command: Sequence[str]) -> None:
        self._backend = backend
        self.needle = os.path.join(directory, PLACE, f"openvmm{artifacts.EXECUTABLE}")
        file = _file(command)
        _link(file, self.needle, os.path.dirname(directory))
        self.command = [self.needle if word == file else word for word in command]
        self._watch = Watch(witness.host(), self.needle)
        self._told: dict[int, GuestFacts] = {}

    def configure(self, *, pauses: Sequence[str] = (), knobs: Mapping[str, object] | None = None) -> None:
        """Refuse everything but the plain way to be."""
        for need in (*(f"{PAUSE}{name}" for name in pauses), *(f"{KNOB}{name}" for name in knobs or ())):
            raise Unsupported(self._backend.name, str(self._backend.lacks(need)))

    def vms(self) -> list[Vm]:
        """Return what was seen of the test's processes."""
        return [OpenVmmVm(run) for run in self._watch.runs()]

    def launched(self) -> dict[int, Launched]:
        """None by a trace of its own: OpenVMM says no hello that could be missing."""
        return {}

    def guest_facts(self, vm: Vm, look: Look | None = None) -> GuestFacts:
        """Ask the guest, and look at the VMM's own descriptors."""
        run = next((run for run in self._watch.runs() if run.pid == vm.pid), None)
        table = self._watch.descriptors(run) if run is not None else None
        found = asking.facts(look, asking.opened(run, table) if run is not None and table else {})
        if look is None:
            # What a guest has told is what it found, for the report too, when there is nobody to be asked any more.
            return self._told.get(vm.pid, found)
        self._told[vm.pid] = found
        return found

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()


class OpenVmmVm:
    """See :class:`harness.backends.contract.Vm`: only its process can be seen.

    Args:
        run: What was seen of it.
    """

    def __init__(self, run: Run) -> None:
        self.pid = run.pid
        self._arguments = run.arguments[1:]
        self._given = run.given

    def argv(self) -> list[str]:
        """Return the arguments after its own name."""
        return list(self._arguments)

    def descriptors(self) -> list[Descriptor] | None:
        """Return what it was given, where handles tell that; else that is gone when it is first seen."""
        return self._given

    def attachments(self) -> list[Attachment] | None:
        """Its broker keeps them to itself."""
        return None

    def requests(self) -> list[str] | None:
        """Its guest keeps them to itself."""
        return None

    def mappings(self) -> list[tuple[str, str, bool]] | None:
        """Its guest keeps them to itself."""
        return None

    def contacts(self) -> list[str] | None:
        """Its broker keeps them to itself."""
        return None

    def signals(self) -> list[int] | None:
        """It handles none, and notes none."""
        return None

    def status(self) -> int | None:
        """It is the orchestrator's child, whose status only its parent gets."""
        return None


def _file(command: Sequence[str]) -> str:
    """Return the word of a command that names OpenVMM's own file: its last one that names any."""
    return [word for word in command if os.path.isfile(word)][-1]


def _link(source: str, target: str, session: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if sys.platform != "win32":
        os.symlink(os.path.abspath(source), target)
        return
    # A symbolic link takes a privilege there, and a program's libraries are looked for where its name is. None of a
    # file's names can be removed while it runs by another one, so what each worker runs is a file of its own.
    own = os.path.join(session, f"p{os.getpid()}")
    place, program = os.path.split(os.path.abspath(source))
    if not os.path.isdir(own):
        os.mkdir(own)
        shutil.copy2(source, os.path.join(own, program))
        for name in os.listdir(place):
            if name.lower().endswith(LIBRARY):
                shutil.copy2(os.path.join(place, name), own)
    for name in os.listdir(own):
        linked = target if name == program else os.path.join(os.path.dirname(target), name)
        if not os.path.exists(linked):
            _place(os.path.join(own, name), linked)


def _place(source: str, target: str) -> None:
    """Have a file under another name; a hard link takes the same volume, and the right to make one."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
