"""What a backend must do: the scenarios know nothing else of what they run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.images import Images
    from harness.witness.contract import Descriptor

UNSEEN = "not visible on this backend"
"""The reason of an assertion that is skipped because its fact can't be seen."""

PAUSE = "pause:"
"""The need of a VMM that stops at a named point until the harness lets it go: the point's name follows."""

KNOB = "knob:"
"""The need of a VMM or guest that misbehaves on request: the knob's name follows."""

GUEST = "guest:"
"""The need of another guest than the layered one: ``direct`` or ``adapter`` follows."""

EVIDENCE = "evidence:"
"""The need of a fact at the time when it happens, not only to be judged: ``requests`` follows."""

SECTORS = "sectors:"
"""The need of a disk of such sectors: the bytes of one follow."""

LINUX = "linux"
"""The need of a guest with a kernel of its own: what it does with a command line, a disk or a fault isn't modelled."""

PROGRAMS = "programs"
"""The need of a guest that runs what a distro brings, pipes and all, instead of a few commands of its own."""

ENDS = "ends"
"""The need of a guest that ends by itself where it has neither images nor somebody who manages it."""

WORKER = "worker"
"""The need of a VMM that runs its guest in a process of its own."""

SWEEP = "sweep"
"""The need of boots so short that VMMs can be started by the hundred."""

Look = Callable[..., "str | None"]
"""Runs a program, named word by word, in a guest; returns what it printed, None if it failed."""


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What a VM boots from.

    Attributes:
        directory: A release layout, as `--artifacts` takes it.
        kernel: The kernel's path.
        initrd: The initramfs's path.
        manifest: The manifest's path; `SHA256SUMS` is beside it.
        adapter: An initramfs that runs the test adapter's agent, None where there is none.
    """

    directory: str
    kernel: str
    initrd: str
    manifest: str
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """What a guest found, None where the backend can't see it.

    Attributes:
        image_format: ``erofs`` or ``gpt``: how the guest read the distro.
        upper: ``ext4`` or ``ramfs``.
        identity: The EROFS UUID or disk GUID that it found, in lower case.
        block_size: The logical block size of the distro's device, in bytes.
        scratch: Whether a scratch device exists.
        command_line: `/proc/cmdline`.
        distro_file: The device and inode that the VMM opened for the distro.
        scratch_file: The same for the scratch.
        kernel_file: The same for the kernel.
        initrd_file: The same for the initramfs.
        kernel: The release of the guest's kernel, where that is one.
        mounts: What is mounted in the guest, line by line, as its kernel says.
    """

    image_format: str | None = None
    upper: str | None = None
    identity: str | None = None
    block_size: int | None = None
    scratch: bool | None = None
    command_line: str | None = None
    distro_file: tuple[int, int] | None = None
    scratch_file: tuple[int, int] | None = None
    kernel_file: tuple[int, int] | None = None
    initrd_file: tuple[int, int] | None = None
    kernel: str | None = None
    mounts: str | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """One session that the broker of a VMM made ready."""

    instance: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Launched:
    """What a process left when it became a VMM.

    Attributes:
        output: Device and inode of what its standard output goes to.
        status: The status that it was to end with, where it failed to begin.
    """

    output: tuple[int, int]
    status: int | None = None


class Vm(Protocol):
    """One run of a VMM, as the backend sees it; the orchestrator isn't asked."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    def argv(self) -> list[str]:
        """Return its arguments, the program's name excluded."""
        ...

    def descriptors(self) -> list[Descriptor] | None:
        """Return its descriptor table before it opened anything itself, None where that can't be seen."""
        ...

    def attachments(self) -> list[Attachment] | None:
        """Return the sessions that became ready, in order, None where that can't be seen."""
        ...

    def requests(self) -> list[str] | None:
        """Return the requests that the guest took, in order, None where that can't be seen."""
        ...

    def mappings(self) -> list[tuple[str, str, bool]] | None:
        """Return the mappings that the guest made, in order: source, target, read-only; None as above."""
        ...

    def contacts(self) -> list[str] | None:
        """Return what came to its endpoint, in order: each connection, session and request; None where unseen."""
        ...

    def signals(self) -> list[int] | None:
        """Return the signals that reached it and that it could note, None where that can't be seen."""
        ...

    def status(self) -> int | None:
        """Return the status with which it ended by itself, None if it didn't or where that can't be seen."""
        ...


class TestSide(Protocol):
    """A backend's part in one test."""

    @property
    def command(self) -> list[str]:
        """The VMM's whole command, as `--openvmm` takes it."""
        ...

    @property
    def needle(self) -> str:
        """An argument that only this test's VMMs have."""
        ...

    def configure(self, *, pauses: Sequence[str] = (), knobs: Mapping[str, object] | None = None) -> None:
        """Say how VMMs started from now on behave.

        Raises:
            Unsupported: VMMs of this backend can't be told so.
        """
        ...

    def vms(self) -> list[Vm]:
        """Return the runs of this test so far, in order."""
        ...

    def launched(self) -> dict[int, Launched]:
        """Return the processes that became a VMM of this test, by their numbers, however short they lived."""
        ...

    def guest_facts(self, vm: Vm, look: Look | None = None) -> GuestFacts:
        """Return what the guest of a run found.

        Args:
            vm: The run.
            look: Runs programs in that guest, if it runs: a backend without evidence of its own asks by it.
        """
        ...

    def close(self) -> None:
        """End whatever watches the test's VMMs."""
        ...


class Backend(Protocol):
    """Something that runs VMs."""

    @property
    def name(self) -> str:
        """Its name, as `--backend` takes it."""
        ...

    @property
    def hypervisor(self) -> str:
        """The name that `--hypervisor` takes for it."""
        ...

    @property
    def phase(self) -> float:
        """Seconds that one operation may take."""
        ...

    @property
    def boot(self) -> float:
        """Seconds that a guest may take until it is ready, on a busy machine."""
        ...

    def lacks(self, need: str) -> str | None:
        """Return why it can't do something that a scenario needs, None if it can.

        Args:
            need: :data:`PAUSE`, :data:`KNOB`, :data:`GUEST`, :data:`EVIDENCE` or :data:`SECTORS` with what follows it,
                or one of the needs without more.
        """
        ...

    def images(self, directory: str) -> Images:
        """Return the images that its guests boot from.

        Args:
            directory: The worker's directory, where the backend may put them.
        """
        ...

    def artifacts(self, directory: str) -> Artifacts:
        """Return what VMs boot from.

        Args:
            directory: The session's directory, where the backend may put them.
        """
        ...

    def begin(self, directory: str, *, token: str, channel: str, evidence: str) -> TestSide:
        """Prepare one test.

        Args:
            directory: The test's directory.
            token: The test's token.
            channel: The socket that VMMs connect to, where the backend can have them do so.
            evidence: The directory for what VMMs say of themselves.
        """
        ...


def is_bundled(backend: Backend) -> bool:
    """Tell whether the VMM is the project's own, whose every word and move is known; a real one's aren't."""
    return backend.lacks(f"{EVIDENCE}requests") is None
