"""The kernel's table of processes: who isn't made yet isn't in it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import wine

wine.only_windows()

from harness import witness
from harness.witness import windows

ROW = 0x108
CREATED, NUMBER, PARENT = 0x20, 0x50, 0x58


def rows(*processes: tuple[int, int]) -> bytes:
    """Return a table of these processes, each a number and a start, as the kernel writes it."""
    table = bytearray(ROW * len(processes))
    for index, (pid, start) in enumerate(processes):
        at = index * ROW
        step = ROW if index + 1 < len(processes) else 0
        for place, value, width in ((0, step, 4), (CREATED, start, 8), (NUMBER, pid, 8), (PARENT, 4, 8)):
            table[at + place : at + place + width] = value.to_bytes(width, "little")
    return bytes(table)


def test_a_process_without_a_start_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wine lists it while it is being made; with its start, a moment later, it would seem to be a second one."""
    table = rows((8, 134404969609604320), (12, 0x5555_5555_5555_5555), (16, 134404969609604321))

    class Kernel:
        def NtQuerySystemInformation(self, kind: int, buffer: Any, size: int, _: object) -> int:  # noqa: N802
            del kind, size
            ctypes.memmove(buffer, table, len(table))
            return 0

    monkeypatch.setattr(windows, "_ntdll", Kernel())
    assert [(stat.pid, stat.start) for stat in witness.host().stats()] == [
        (8, 134404969609604320),
        (16, 134404969609604321),
    ]
