"""What a committed launch costs over the fake's own start-up, how often it syncs, and what an image's size adds."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from harness import python
from harness.images import EROFS_UUID, copy_scratch, unpack, write_artifacts
from nvx_ref.configuration import SandboxConfiguration, SandboxRequest, configure
from nvx_ref.control import NvxcGuest
from nvx_ref.deadline import Deadline
from nvx_ref.images import ImageFormat, check_binding, verify_distro, verify_scratch
from nvx_ref.orchestrator import Orchestrator
from nvx_ref.plan import Blocks, ColdPlan, prepare
from nvx_ref.platform import endpoint as endpoints
from nvx_ref.platform import spawn
from nvx_ref.session import SessionDriver
from tests.bench.measure import Row, in_unit, low, seconds, side_by_side

CAPABILITY = bytes(range(1, 33))
SIZES = {"1 MiB": 1 << 20, "10 GiB": 10 << 30}
SPIN = 0.0002
NAME = "box"


def rows(scale: float = 1) -> list[Row]:
    """Measure a whole launch on the fake, without a boot delay."""
    rounds = max(3, round(15 * scale))
    with _sandbox() as (orchestrator, configuration, place):
        syncing: list[float] = []
        with _timed_syncs(syncing):
            started = {
                "nvx_ref start, without its fsyncs": lambda: _start(orchestrator, syncing),
                "the fake alone": lambda: _alone(configuration, place),
            }
            found = side_by_side(started, rounds, of=low)
            each = low(syncing)
            syncing.clear()
            _start(orchestrator, [])
            syncs = len(syncing)
    over = (found["nvx_ref start, without its fsyncs"] - found["the fake alone"]) * 1e3
    figures = {**found, "one fsync": each}
    return [
        Row(
            id="launch",
            what="a committed launch, to authenticated Ready and its record, over the fake's own start-up",
            measured=over,
            unit="ms",
            target=10,
            bound="most",
            figures=in_unit(figures, 1e3),
            figure_unit="ms",
            rounds=rounds,
            note="the fake alone: plain Popen of its command in a session of its own, tried every 0.2 ms, attached",
        ),
        Row(
            id="launch-fsyncs",
            what="calls of fsync in one launch",
            measured=syncs,
            unit="calls",
            target=3,
            bound="most",
            figures={},
            figure_unit="calls",
            rounds=1,
        ),
    ]


def staged_rows(scale: float = 1) -> list[Row]:
    """Measure the checks of a launch for a small image and for a huge sparse one."""
    rounds = max(3, round(400 * scale))
    with tempfile.TemporaryDirectory(prefix="nb") as directory:
        place = Path(directory)
        images = unpack(str(place / "images"))
        artifacts = _artifacts(str(place))
        scratch = verify_scratch(copy_scratch(str(place / "scratch")))
        plan = ColdPlan(version=1, blocks=Blocks(format=ImageFormat.EROFS, identity=EROFS_UUID))
        ways: dict[str, Callable[[], float]] = {}
        for name, size in SIZES.items():
            path = shutil.copy(images.erofs, place / f"{size}.erofs")
            path.chmod(0o644)
            os.truncate(path, size)
            binding = verify_distro(str(path), format=ImageFormat.EROFS, identity=EROFS_UUID)

            def check(binding: object = binding) -> float:
                return seconds(lambda: prepare(plan, artifacts, distro=binding, scratch=scratch).close())  # type: ignore[arg-type]

            ways[f"nvx_ref, {name}"] = check
        small = str(place / f"{SIZES['1 MiB']}.erofs")
        ways["a hash at launch, 1 MiB"] = lambda: seconds(lambda: sha256(Path(small).read_bytes()).digest())
        found = side_by_side(ways, rounds, of=low)
        check_binding(binding).close()
    return [
        Row(
            id="staged-launch",
            what="the checks of a staged launch of a 10 GiB image over those of a 1 MiB one",
            measured=found["nvx_ref, 10 GiB"] / found["nvx_ref, 1 MiB"],
            unit="x",
            target=1.05,
            bound="most",
            figures=in_unit(found, 1e6),
            figure_unit="us",
            rounds=rounds,
        )
    ]


def _artifacts(place: str) -> object:
    from nvx_ref.images import find_artifacts  # noqa: PLC0415

    return find_artifacts(write_artifacts(os.path.join(place, "release")).directory)


@contextmanager
def _sandbox() -> Generator[tuple[Orchestrator, SandboxConfiguration, str]]:
    with tempfile.TemporaryDirectory(prefix="nb") as place:
        release = write_artifacts(os.path.join(place, "release"))
        body = "from fake_openvmm import main\n\nsys.exit(main())\n"
        command = python.write_script(os.path.join(place, "openvmm.py"), packages=("fake_openvmm",), body=body)
        request = SandboxRequest(
            distro=unpack(os.path.join(place, "images")).erofs,
            format="erofs",
            ram_upper=True,
            openvmm=tuple(command),
            kernel=release.kernel,
            initrd=release.initramfs,
            manifest=release.manifest,
        )
        orchestrator = Orchestrator(os.path.join(place, "s"))
        configuration = configure(request)
        orchestrator.provision(NAME, configuration, deadline=_soon())
        yield orchestrator, configuration, place
        orchestrator.deprovision(NAME, deadline=_soon())


def _start(orchestrator: Orchestrator, syncing: list[float]) -> float:
    before = len(syncing)
    taken = seconds(lambda: orchestrator.start(NAME, deadline=_soon()))
    taken -= sum(syncing[before:])
    orchestrator.stop(NAME, deadline=_soon(), force_within=10)
    return taken


def _alone(configuration: SandboxConfiguration, place: str) -> float:
    directory = tempfile.mkdtemp(dir=place)
    endpoint = os.path.join(directory, "control.sock")
    with (
        configuration.prepare(directory) as prepared,
        open(os.path.join(directory, "log"), "wb") as log,
    ):
        command = prepared.command(endpoint=endpoint, report=os.path.join(directory, "outcome.json"))
        stdin = spawn.pipe_with(CAPABILITY)
        made: list[subprocess.Popen[bytes]] = []

        def boot() -> None:
            made.append(
                subprocess.Popen(
                    command.argv,
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    pass_fds=command.allowed,
                    cwd=directory,
                    start_new_session=True,
                )
            )
            _attach(endpoint)

        taken = seconds(boot)
    os.close(stdin)
    made[0].kill()
    made[0].wait()
    return taken


def _attach(endpoint: str) -> None:
    import select  # noqa: PLC0415
    import socket  # noqa: PLC0415

    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(endpoint)
                break
            except OSError:
                select.select([], [], [], SPIN)
    deadline = _soon()
    connection = endpoints.connect(endpoint, deadline, alive=lambda: True)
    with SessionDriver(connection, CAPABILITY) as driver:
        driver.attach(deadline)
        NvxcGuest(driver).greet(deadline)


@contextmanager
def _timed_syncs(taken: list[float]) -> Generator[None]:
    original = os.fsync

    def timed(fd: int) -> None:
        taken.append(seconds(lambda: original(fd)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", timed)
        yield


def _soon() -> Deadline:
    return Deadline.after(60)
