"""The loader that the Windows lane makes where addresses stay random: its heap is after Windows' shared data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "ci" / "wine" / "loader.py"
BEHIND = 0x8000_0000
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    if (malloc(100) == NULL || maps == NULL)
        return 1;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[heap]"))
            return fputs(line, stdout) < 0;
    return 2;
}
"""
TURNS = 20


def made(loader: Path, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(SCRIPT), str(loader), str(place)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_program_at_wine_s_place_has_its_heap_behind_the_shared_data_and_finds_what_is_beside_it(
    tmp_path: Path,
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    place = tmp_path / "usr" / "lib" / "wine"
    place.mkdir(parents=True)
    (tmp_path / "usr" / "share").mkdir()
    (place / "wineserver").write_text("beside")
    (place.parent / "libraries").mkdir()
    (tmp_path / "heap.c").write_text(SOURCE)
    options = ["-no-pie", "-Wl,-Ttext-segment=0x7d000000", "-o", str(place / "wine64"), str(tmp_path / "heap.c")]
    subprocess.run(["gcc", *options], check=True)
    # Once more over what is there, as in every run of the lane.
    done = [made(place / "wine64", tmp_path / "own") for _ in range(2)]
    assert [(one.returncode, one.stderr) for one in done] == [(0, "")] * 2
    copy = Path(done[0].stdout.strip())
    assert copy == tmp_path / "own" / "lib" / "wine" / "wine64"
    assert (copy.parent / "wineserver").read_text() == "beside"
    assert os.path.samefile(copy.parents[2] / "share", tmp_path / "usr" / "share")
    assert os.path.samefile(copy.parents[1] / "libraries", place.parent / "libraries")
    for _ in range(TURNS):
        said = subprocess.run([str(copy)], capture_output=True, text=True, check=True).stdout
        assert int(said.partition("-")[0], 16) >= BEHIND


@pytest.mark.parametrize("content", [b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(58)], ids=["a script", "no parts"])
def test_what_is_no_such_program_is_told_and_nothing_is_made_of_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "usr" / "lib" / "wine").mkdir(parents=True)
    loader = tmp_path / "usr" / "lib" / "wine" / "wine64"
    loader.write_bytes(content)
    done = made(loader, tmp_path / "own")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ValueError: ")
    assert not (tmp_path / "own" / "lib" / "wine" / "wine64").exists()
