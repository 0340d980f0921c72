"""How long the stand-in takes from exec to a listening socket, against a bare interpreter; both in one run."""

from __future__ import annotations

import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.openvmm_stand import CAPABILITY, Stand, made

ROUNDS = 11
TARGET = 3.0
PAUSE = 0.0002


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
    command = stand.command(side) + stand.argv()
    reader, writer = os.pipe()
    os.write(writer, CAPABILITY)
    os.close(writer)
    with open(stand.path / "openvmm.log", "wb") as log:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdin=reader, stdout=log, stderr=log, cwd=stand.path)
        os.close(reader)
        while True:
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(path)
                    break
                except OSError:
                    assert process.poll() is None, stand.log()
            select.select([], [], [], PAUSE)  # a busy loop would take the processor that is being measured
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
