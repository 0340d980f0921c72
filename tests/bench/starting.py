"""How long the package takes to be imported, and the fake to listen, beside a bare interpreter."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable

from tests.bench.measure import Row, in_unit, seconds, side_by_side
from tests.support.openvmm_stand import CAPABILITY, Stand, made

PAUSE = 0.0002
GUEST = "import signal\ndef run(config, opened, tools):\n    while True:\n        signal.pause()\n"


def rows(scale: float = 1) -> list[Row]:
    """Measure imports."""
    rounds = max(3, round(40 * scale))
    ways = {
        "python -I": _importing(""),
        "import msgspec": _importing("import msgspec"),
        "import nvx_ref": _importing("import nvx_ref"),
        "import nvx_ref.orchestrator": _importing("import nvx_ref.orchestrator"),
        "import psutil": _importing("import psutil"),
        "import asyncio": _importing("import asyncio"),
    }
    found = side_by_side(ways, rounds, quiet=True)
    return [
        Row(
            id="import",
            what="a process that imports the whole orchestrator, over a bare interpreter, in processor time",
            measured=found["import nvx_ref.orchestrator"] / found["python -I"],
            unit="x",
            target=5,
            bound="most",
            figures=in_unit(found, 1e3),
            figure_unit="ms",
            rounds=rounds,
        )
    ]


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
        found = side_by_side(ways, rounds, quiet=True)
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


def _importing(code: str) -> Callable[[], float]:
    def measure() -> float:
        """Return the processor's seconds: an import waits for nobody, and a busy machine would be measured."""
        pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", code], dict(os.environ))
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
