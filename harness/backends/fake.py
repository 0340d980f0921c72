"""The bundled fake as a backend: each test has its launcher script, side file and evidence of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, cast

from harness import images, python
from harness.backends.contract import KNOB, LINUX, PROGRAMS, WORKER, Artifacts, Attachment, GuestFacts, Launched
from harness.witness.contract import Descriptor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.backends.contract import Look, Vm
    from harness.settings import Settings

Event = dict[str, object]

NOTES = ".jsonl"
"""What the files end in that fakes write of themselves."""

_FORKING = ("helper_keeps_log", "wrong_server", "leader_exits")
_ON_WINDOWS = {
    **{f"{KNOB}{name}": "the stand-in forks for it, which Windows doesn't" for name in _FORKING},
    f"{KNOB}process_name": "a process's name is that of its program's file on Windows",
    PROGRAMS: "its guest knows a few commands on Windows, and runs no program",
}
_LACKING = {
    LINUX: "its guest is a model, no kernel",
    WORKER: "its guest's model is no process of its own",
    **(_ON_WINDOWS if sys.platform == "win32" else {}),
}
"""What it can't do here, each with the reason."""


class Fake:
    """See :class:`harness.backends.contract.Backend`."""

    name = "fake"
    hypervisor = "whp" if sys.platform == "win32" else "kvm"

    phase = 30.0
    # A process of Windows takes its time to start.
    boot = 1.0 if sys.platform == "win32" else 0.0

    def lacks(self, need: str) -> str | None:
        """It can do everything that its system can, except be a machine."""
        return _LACKING.get(need)

    def images(self, directory: str) -> images.Images:
        """Unpack the committed ones; the fake's guest runs no program of them."""
        return images.unpack(directory)

    def artifacts(self, directory: str) -> Artifacts:
        """Write a release layout once."""
        made = images.write_artifacts(directory)
        return Artifacts(
            directory=made.directory,
            kernel=made.kernel,
            initrd=made.initramfs,
            manifest=made.manifest,
            adapter=made.adapter,
        )

    def begin(self, directory: str, *, token: str, channel: str, evidence: str) -> FakeSide:
        """Write the launcher and the first side file."""
        return FakeSide(directory, token=token, channel=channel, evidence=evidence)


class FakeSide:
    """See :class:`harness.backends.contract.TestSide`."""

    def __init__(
        self,
        directory: str,
        *,
        token: str,
        channel: str,
        evidence: str,
        machine: Mapping[str, str] | None = None,
    ) -> None:
        self._side_file = os.path.join(directory, "side.json")
        self._evidence = evidence
        self._fixed: dict[str, object] = {"evidence": evidence, "channel": channel, "token": token}
        if machine is not None:
            self._fixed["machine"] = dict(machine)
        os.makedirs(evidence, mode=0o700)
        self.needle = os.path.join(directory, "vmm.py")
        traces = os.path.join(evidence, f"{token}.")
        self.command = python.write_launcher(self.needle, side_file=self._side_file, token=token, traces=traces)
        self.configure()

    def configure(self, *, pauses: Sequence[str] = (), knobs: Mapping[str, object] | None = None) -> None:
        """Write the side file that fakes started from now on read."""
        side = {**self._fixed, "pauses": list(pauses), "knobs": dict(knobs or {})}
        staged = f"{self._side_file}.new"
        with open(staged, "w", encoding="utf-8") as file:
            json.dump(side, file)
        os.replace(staged, self._side_file)

    def vms(self) -> list[Vm]:
        """Read the evidence of every fake of the test, in the order of their starts."""
        return [*self._runs()]

    def launched(self) -> dict[int, Launched]:
        """Read the traces that launchers leave before anything else."""
        found: dict[int, Launched] = {}
        for name in sorted(os.listdir(self._evidence)):
            if name.endswith(python.TRACE):
                with open(os.path.join(self._evidence, name), encoding="ascii") as file:
                    device, inode, *status = map(int, (file.read() or "0 0").split())
                found[int(name.split(".")[-2])] = Launched((device, inode), *status)
        return found

    def close(self) -> None:
        """Nothing watches: fakes speak for themselves."""

    def guest_facts(self, vm: Vm, look: Look | None = None) -> GuestFacts:
        """Collect the facts that the fake's guest noted; it needs no look."""
        del look
        return next((run.facts() for run in self._runs() if run.pid == vm.pid), GuestFacts())

    def _runs(self) -> list[FakeVm]:
        kept = [
            _events(os.path.join(self._evidence, name)) for name in os.listdir(self._evidence) if name.endswith(NOTES)
        ]
        return sorted((FakeVm(events) for events in kept if events), key=_started)


def missing(settings: Settings) -> tuple[str, ...]:
    """See :func:`harness.backends.missing`."""
    del settings
    there = importlib.util.find_spec("fake_openvmm") is not None
    return () if there else ("the package fake_openvmm (install this project)",)


def make(settings: Settings) -> Fake:
    """See :func:`harness.backends.load`."""
    del settings
    return Fake()


class FakeVm:
    """See :class:`harness.backends.contract.Vm`.

    Args:
        events: What one fake noted, in order.
    """

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        start = self._first("start")
        self.started = _number(start.get("time"))
        self.pid = _number(start.get("pid"))

    def moments(self) -> list[tuple[int, str]]:
        """See :class:`harness.stories.Storyteller`."""
        return [(_number(event.get("time")), _words(event)) for event in self.events]

    def argv(self) -> list[str]:
        """Return the arguments of its start."""
        return _strings(self._first("start").get("argv"))

    def descriptors(self) -> list[Descriptor] | None:
        """Return the table that it took before it opened anything."""
        rows = cast("list[list[object]]", self._first("descriptors").get("table") or [])
        # Where descriptors are handles, the standard ones are told by their values.
        standard = cast("list[object]", self._first("start").get("standard") or [])
        found: list[Descriptor] = []
        for row in rows:
            numbers = [number for number, handle in enumerate(standard) if handle == row[0]] or [_number(row[0])]
            found += [Descriptor(number, _number(row[1]), _number(row[2]), "") for number in numbers]
        return found

    def attachments(self) -> list[Attachment] | None:
        """Return what its broker made ready."""
        instance = str(self._first("instance").get("instance", ""))
        ready = [event for event in self._all("session") if event.get("what") == "ready"]
        return [Attachment(instance, int(str(event.get("detail")).rpartition(" ")[2])) for event in ready]

    def requests(self) -> list[str] | None:
        """Return the requests that its guest took."""
        return [str(event.get("name")) for event in self._all("request")]

    def mappings(self) -> list[tuple[str, str, bool]] | None:
        """Return what its guest mapped."""
        return [(str(one["source"]), str(one["target"]), one["readOnly"] is True) for one in self._all("map")]

    def contacts(self) -> list[str] | None:
        """Return what came to its endpoint, a connection that says nothing included."""
        shown = {"host": "connection", "session": "what", "request": "name"}
        return [
            str(event.get(shown[kind], shown[kind])) for event in self.events if (kind := str(event["kind"])) in shown
        ]

    def signals(self) -> list[int] | None:
        """Return the signals that it noted."""
        return [_number(event.get("number")) for event in self._all("signal")]

    def status(self) -> int | None:
        """Return the status that it noted last."""
        status = self._first("exit").get("status")
        return status if isinstance(status, int) else None

    def facts(self) -> GuestFacts:
        """Return what its guest found; nothing if it didn't come that far."""
        guest = self._first("guest")
        if not guest:
            return GuestFacts()
        layers = cast("list[Event]", guest.get("layers") or [{}])
        distro = layers[0]
        identity = distro.get("diskGuid") if distro.get("format") == "gpt" else distro.get("uuid")
        opened = {str(event.get("role")): _object(event) for event in self._all("opened")}
        return GuestFacts(
            image_format=str(distro.get("format")),
            upper=str(guest.get("upper")),
            identity=str(identity),
            block_size=_number(distro.get("blockSize")),
            scratch=guest.get("scratch") is True,
            command_line=str(guest.get("cmdline")),
            distro_file=opened.get("distro"),
            scratch_file=opened.get("scratch"),
            kernel_file=opened.get("kernel"),
            initrd_file=opened.get("initrd"),
            kernel=_text(guest, "kernel"),
            mounts=_text(guest, "mounts"),
        )

    def _all(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.get("kind") == kind]

    def _first(self, kind: str) -> Event:
        found = self._all(kind)
        return found[0] if found else {}


def _started(run: FakeVm) -> int:
    return run.started


def _events(path: str) -> list[Event]:
    with open(path, encoding="utf-8") as file:
        # A line that is being written has no end yet; a fake that was killed may have left one.
        return [cast("Event", json.loads(line)) for line in file if line.endswith("\n")]


def _object(event: Event) -> tuple[int, int]:
    return _number(event.get("device")), _number(event.get("inode"))


def _words(event: Event) -> str:
    """Return an event in a few words: its kind and whatever is short."""
    told = {name: value for name, value in event.items() if name not in {"time", "kind", "pid"}}
    short = [f"{name} {value}" for name, value in told.items() if isinstance(value, str | int) and value != ""]
    return " ".join([str(event.get("kind")), *short])


def _text(event: Event, name: str) -> str | None:
    value = event.get(name)
    return value if isinstance(value, str) else None


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _strings(value: object) -> list[str]:
    return [str(entry) for entry in cast("list[object]", value)] if isinstance(value, list) else []
