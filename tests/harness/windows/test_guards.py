"""Negative controls of the Windows half: each guard of a spawn has a test that fails as soon as it is taken out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wine

wine.only_windows()

from tests.harness.seeded import ROOT, put

SPAWN, LENDING = "nvx_ref/platform/windows/spawn.py", "nvx_ref/platform/windows/inheritance.py"
TESTS = "tests/platform/windows/test_spawn.py::test_"

GUARDS = {
    "one spawn at a time": (
        SPAWN,
        "    with inheritance.turn:\n",
        "    if True:\n",
        "a_spawn_waits_until_another_has_taken_back_what_it_lent",
    ),
    "what was lent is taken back": (
        LENDING,
        "            _set(handle, inherit=False)\n",
        "            del handle\n",
        "a_plain_spawn_in_that_moment_inherits_the_handle_too",
    ),
    "a list says which handles": (
        SPAWN,
        "startup.attributes = ctypes.addressof(attributes)",
        "startup.attributes = None",
        "the_child_gets_the_allowed_handles_and_no_other",
    ),
    "what is inheritable already is refused": (
        SPAWN,
        "    if inheritable and not (",
        "    if not handle and not (",
        "a_standard_stream_an_inheritable_and_a_closed_descriptor_are_refused",
    ),
}
"""File, text, what takes its place, and the test that notices."""


@pytest.mark.case("T34")
@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_taken_out_is_missed(guard: str, tmp_path: Path) -> None:
    where, text, instead, test = GUARDS[guard]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", TESTS + test, "-q", "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(put(where, text, instead, tmp_path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    # It failed by what it asserts, and not because the copy can't be imported or the test is gone.
    assert re.search(r"^[1-9]\d* failed", done.stdout.splitlines()[-1]), done.stdout
    assert "ImportError" not in done.stdout
