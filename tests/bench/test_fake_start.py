"""How long the stand-in takes from exec to a listening socket, against a bare interpreter; both in one run."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.openvmm_stand import Stand, made

ROUNDS = 7
TARGET = 3.0


@pytest.fixture
def stand() -> Iterator[Stand]:
    yield from made()


def bare() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", ""], check=True)
    return time.perf_counter() - begin


def listening(stand: Stand, side: dict[str, Any] | None) -> float:
    path = str(stand.path / "control.sock")
    (stand.path / "control.sock").unlink(missing_ok=True)
    argv = stand.argv()
    stand.command(side)
    begin = time.perf_counter()
    process = stand.start(argv, side=side)
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
                break
            except OSError:
                assert process.poll() is None, stand.log()
    elapsed = time.perf_counter() - begin
    process.kill()
    process.wait()
    return elapsed


@pytest.mark.parametrize("side", [None, {}], ids=["alone", "with a side file"])
def test_it_listens_soon(stand: Stand, side: dict[str, Any] | None, capsys: pytest.CaptureFixture[str]) -> None:
    stand.guest = "import signal\ndef run(config, opened, tools):\n    while True:\n        signal.pause()\n"
    pairs = [(listening(stand, side), bare()) for _ in range(ROUNDS + 1)][1:]
    started, empty = (statistics.median(times) for times in zip(*pairs, strict=True))
    with capsys.disabled():
        how = "alone" if side is None else "with a side file"
        print(
            f"\nfake, exec to listening socket, {how}: {started * 1e3:.1f} ms, "
            f"{started / empty:.2f} x a bare interpreter ({empty * 1e3:.1f} ms), target at most {TARGET:.1f} x"
        )
