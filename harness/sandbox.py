"""A sandbox as a scenario sees it: what to provision it from, and the requests on it."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

from harness import images
from harness.backends.contract import GUEST, SECTORS
from harness.errors import Finding, Unavailable, Unmet, is_finding
from harness.sut.needs import STORE
from harness.sut.protocol import mapping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.backends.contract import Look
    from harness.deadline import Deadline
    from harness.sut.program import Program
    from harness.sut.protocol import Answer, Args
    from harness.world import World

__tracebackhide__ = is_finding

EROFS, GPT = "erofs", "gpt"
EXT4, RAMFS = "ext4", "ramfs"
LAYERED, DIRECT, ADAPTER = "layered", "direct", "adapter"
SECTOR = 512


class Sandbox:
    """One sandbox of a test.

    Args:
        world: The test's world.
        name: The sandbox's name.
        image_format: ``erofs`` or ``gpt``.
        upper: ``ext4`` or ``ramfs``.
        sectors: Bytes of a sector of a GPT image, 512 or 4,096.
        guest: ``layered``, ``direct`` (without images) or ``adapter``: which agent it runs.

    Attributes:
        extra: Arguments of `provision` that go before its own; None takes one away.
        world: The test's world.
        directory: Its state directory.
        distro: Its distro image, shared and read-only.
        gpt: The GPT image, whether it is this sandbox's or not.
        scratch: Its scratch, its own, or None.
    """

    def __init__(
        self,
        world: World,
        name: str = "box",
        *,
        image_format: str = EROFS,
        upper: str = EXT4,
        sectors: int = SECTOR,
        guest: str = LAYERED,
    ) -> None:
        self.world = world
        self.name = name
        self.image_format = image_format
        self.upper = upper
        self.guest = guest
        self.extra: Args = {}
        self.directory = world.sandbox(name)
        place = os.path.join(world.root, "images")
        os.makedirs(place, mode=0o700, exist_ok=True)
        if self.guest != LAYERED:
            world.need(f"{GUEST}{guest}")
        if image_format == GPT:
            world.need(f"{SECTORS}{sectors}")
        found = world.images
        self.gpt = found.gpt
        self.distro = found.erofs if image_format == EROFS else found.gpt if sectors == SECTOR else found.gpt4k
        self.identity = found.uuid if image_format == EROFS else found.guid
        self.scratch = images.copy_scratch(os.path.join(place, f"{name}.ext4")) if upper == EXT4 else None

    def request(self) -> Args:
        """Return the arguments of `provision`."""
        artifacts = self.world.artifacts
        if self.guest == ADAPTER and artifacts.adapter is None:
            raise Unavailable("the test adapter", ("an initramfs that runs its agent",))
        upper: Args = {"scratch": self.scratch} if self.scratch else {"ramUpper": True}
        images: Args = {**upper, "distro": self.distro, "format": self.image_format, "identity": self.identity}
        request = {
            **self.named(),
            **({} if self.guest == DIRECT else images),
            "guest": self.guest,
            "openvmm": self.world.vmm.command,
            "kernel": artifacts.kernel,
            "initrd": artifacts.adapter if self.guest == ADAPTER else artifacts.initrd,
            "manifest": artifacts.manifest,
            "hypervisor": self.world.backend.hypervisor,
            **self.extra,
        }
        return {name: value for name, value in request.items() if value is not None}

    def named(self) -> Args:
        """Return the arguments of every other operation."""
        return {"root": self.world.state, "name": self.name}

    def path(self, name: str) -> str:
        """Return the path of one of its files.

        Raises:
            Unmet: What the orchestrator under test keeps there is its own business.
        """
        if not self.world.declares(STORE):
            raise Unmet(STORE)
        return os.path.join(self.directory, name)

    def read(self, name: str) -> str:
        """Return the text of one of its files."""
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def object(self, path: str) -> tuple[int, int]:
        """Return which object a path names: device and inode."""
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def names(self) -> list[str]:
        """Return the entries of its directory, none if there is no directory."""
        try:
            return sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return []

    def expect_names(self, where: str, expected: Sequence[str]) -> None:
        """Judge the entries of its directory, where the orchestrator keeps the reference's.

        Args:
            where: The step or operation.
            expected: The entries, sorted.

        Raises:
            Finding: There are others.
        """
        if self.world.declares(STORE):
            self.world.expect(where, expected=[*expected], found=self.names())

    def expect_kept(self, where: str, name: str, *, there: bool) -> None:
        """Judge whether one of its files is there, where the orchestrator keeps the reference's.

        Raises:
            Finding: It isn't, or is.
        """
        if self.world.declares(STORE):
            self.world.expect(f"{where}: {name}", expected=there, found=name in self.names())

    def can(self, op: str, what: str) -> bool:
        """Tell whether the orchestrator under test has an operation; what isn't judged without it goes to the table.

        For what a scenario ends with: one that is about the operation asks for it, and is skipped.

        Args:
            op: The operation.
            what: What it shows, in words.
        """
        hello = self.world.hello
        return self.world.saw(what, True if hello is None or op in hello.operations else None)

    def provision(self, program: Program) -> None:
        """Provision it, which must succeed."""
        self.succeed(program, "provision", self.request())

    def succeed(self, program: Program, op: str, args: Args | None = None, deadline: Deadline | None = None) -> Answer:
        """Run an operation that must succeed.

        Raises:
            Finding: It fails.
        """
        answer = program.call(op, args or self.named(), deadline or self.world.soon())
        if not answer.ok:
            raise Finding(self._where(op), expected="success", found=str(answer))
        self.world.evidence.learn()
        return answer

    def fail(self, program: Program, op: str, code: str, args: Args | None = None) -> Answer:
        """Run an operation that must fail with a code.

        Raises:
            Finding: It succeeds, or fails with another code.
        """
        answer = program.call(op, args or self.named(), self.world.soon())
        if answer.ok or answer.code != code:
            raise Finding(self._where(op), expected=code, found=str(answer))
        return answer

    def _where(self, op: str) -> str:
        crashes = self.world.crashes()
        return f"{op} of {self.name}{f' after the crash {crashes[-1]}' if crashes else ''}"

    def output(self, program: Program, *argv: str) -> str:
        """Run a program in the guest that must exit with 0, and return what it printed."""
        answer = self.succeed(program, "exec", {**self.named(), "argv": list(argv)})
        if (answer.result.get("category"), answer.result.get("status")) != ("exit", 0):
            raise Finding(f"exec {' '.join(argv)}", expected="exit 0", found=str(answer.result))
        return base64.b64decode(str(answer.result["stdout"])).decode()

    def look(self, program: Program) -> Look:
        """Return what runs a program in the guest and gives what it printed, None if that can't be had."""

        def run(*argv: str) -> str | None:
            answer = program.call("exec", {**self.named(), "argv": list(argv)}, self.world.soon())
            if not answer.ok or (answer.result.get("category"), answer.result.get("status")) != ("exit", 0):
                return None
            return base64.b64decode(str(answer.result["stdout"])).decode(errors="backslashreplace")

        return run

    def verdict(self, program: Program, op: str = "reattach") -> str:
        """Return the verdict of `reattach` or `status`, with its reason."""
        result = mapping(self.succeed(program, op).result)
        reason = result.get("reason")
        return f"{result['verdict']}: {reason}" if reason else str(result["verdict"])
