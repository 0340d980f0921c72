"""How long the package takes to be imported, and the fake to listen, beside a bare interpreter."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Generator
from contextlib import contextmanager

from harness.python import home
from tests.bench.measure import Row, in_unit, low, seconds, side_by_side
from tests.support.openvmm_stand import CAPABILITY, Stand, made

PAUSE = 0.0002
GUEST = "import signal\ndef run(config, opened, tools):\n    while True:\n        signal.pause()\n"


WHOLE = "import nvx_ref.orchestrator"


def rows(scale: float = 1) -> list[Row]:
    """Measure imports where the package is installed with what it declares, and nothing else is."""
    rounds = max(3, round(60 * scale))
    with _installed() as python:
        ways = {
            "python -I": _importing(python, ""),
            "import msgspec": _importing(python, "import msgspec"),
            "import nvx_ref": _importing(python, "import nvx_ref"),
            WHOLE: _importing(python, WHOLE),
            "import asyncio": _importing(python, "import asyncio"),
            f"{WHOLE}, among the tests' packages": _importing(sys.executable, WHOLE),
            "import psutil, among the tests' packages": _importing(sys.executable, "import psutil"),
        }
        found = side_by_side(ways, rounds, of=min)
    return [
        Row(
            id="import",
            what="a process that imports the whole orchestrator, over a bare interpreter, in processor time",
            measured=found[WHOLE] / found["python -I"],
            unit="x",
            target=5,
            bound="most",
            figures=in_unit(found, 1e3),
            figure_unit="ms",
            rounds=rounds,
            note="msgspec imports typing_extensions where others, as the tests' packages, have brought it along",
        )
    ]


@contextmanager
def _installed() -> Generator[str]:
    """Make a virtual environment of the package and what it declares, and give its interpreter."""
    with tempfile.TemporaryDirectory(prefix="nb") as place:
        venv.create(place, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for package in ("nvx_ref", "msgspec", "click"):
            source = os.path.join(home(package), package)
            os.symlink(source, os.path.join(place, "lib", version, "site-packages", package))
        yield os.path.join(place, "bin", "python")


def fake_rows(scale: float = 1) -> list[Row]:
    """Measure the fake, from its exec to a socket that takes connections."""
    rounds = max(3, round(20 * scale))
    for stand in made():
        stand.guest = GUEST
        ways: dict[str, Callable[[], float]] = {
            "python -I": _python(""),
            "fake, listening": lambda stand=stand: _listening(stand, None),  # type: ignore[misc]
            "fake with a side file, listening": lambda stand=stand: _listening(stand, {}),  # type: ignore[misc]
        }
        found = side_by_side(ways, rounds, of=low)
        return [
            Row(
                id="fake-listening",
                what="the fake, exec to listening socket, over a bare interpreter",
                measured=found["fake, listening"] / found["python -I"],
                unit="x",
                target=3,
                bound="most",
                figures=in_unit(found, 1e3),
                figure_unit="ms",
                rounds=rounds,
            )
        ]
    raise AssertionError


def _python(code: str) -> Callable[[], float]:
    return lambda: seconds(lambda: subprocess.run([sys.executable, "-I", "-c", code], check=True))


def _importing(python: str, code: str) -> Callable[[], float]:
    def measure() -> float:
        """Return the processor's seconds: an import waits for nobody, and a busy machine would be measured."""
        pid = os.posix_spawn(python, [python, "-I", "-c", code], dict(os.environ))
        _, status, used = os.wait4(pid, 0)
        assert status == 0
        return used.ru_utime + used.ru_stime

    return measure


def _listening(stand: Stand, side: dict[str, object] | None) -> float:
    path = str(stand.path / "control.sock")
    (stand.path / "control.sock").unlink(missing_ok=True)
    command = stand.command(side) + stand.argv()
    reader, writer = os.pipe()
    os.write(writer, CAPABILITY)
    os.close(writer)
    with open(stand.path / "openvmm.log", "wb") as log:
        running: list[subprocess.Popen[bytes]] = []

        def listen() -> None:
            process = subprocess.Popen(command, stdin=reader, stdout=log, stderr=log, cwd=stand.path)
            running.append(process)
            while not _connects(path):
                assert process.poll() is None, stand.log()
                select.select([], [], [], PAUSE)  # a busy loop would take the processor that is being measured

        elapsed = seconds(listen)
    os.close(reader)
    running[0].kill()
    running[0].wait()
    return elapsed


def _connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
    return True
