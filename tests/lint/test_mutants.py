"""The seeded faults fit the tree that there is, each is what its header says, and the list names them all."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.mutants.commands import PATCHES, unlisted
from harness.mutants.patch import PROMISES, WITNESS, Unfit, load, patched

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = load(str(ROOT / PATCHES))
RUFF = os.path.join(os.path.dirname(sys.executable), "ruff")


def test_there_are_enough_and_every_promise_is_broken_by_one() -> None:
    broken = [mutant.promise for mutant in MUTANTS]
    assert set(broken) == set(PROMISES)
    assert len(broken) - broken.count(WITNESS) >= 30
    assert broken.count(WITNESS) >= 8


def test_what_breaks_a_promise_is_in_the_reference_and_what_breaks_a_witness_in_the_harness() -> None:
    for mutant in MUTANTS:
        # That a real backend is never replaced by the fake is the harness's own promise.
        package = "harness/" if mutant.promise in {WITNESS, "13"} else "nvx_ref/"
        assert all(change.path.startswith(package) for change in mutant.changes), mutant.name


def test_every_patch_applies_in_one_place_and_leaves_python(tmp_path: Path) -> None:
    unfit: list[str] = []
    for mutant in MUTANTS:
        try:
            found = patched(mutant, str(ROOT))
        except Unfit as error:
            unfit.append(f"{mutant.name}: {error}")
            continue
        for path, text in found.items():
            ast.parse(text)
            (tmp_path / mutant.name).mkdir(exist_ok=True)
            (tmp_path / mutant.name / path.replace("/", "-")).write_text(text)
    assert unfit == [], "make these patches of ci/mutants anew: the same fault in what the code is now"
    if not shutil.which(RUFF):
        pytest.skip("ruff is missing, which would see a name that a patch has forgotten")
    done = subprocess.run(
        [RUFF, "check", "--isolated", "--no-cache", "--quiet", "--select", "E9,F63,F7,F82", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


def test_every_test_that_must_notice_is_there() -> None:
    for mutant in MUTANTS:
        for test in mutant.noticed_by:
            path, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), f"{mutant.name}: no {test}"


def test_the_list_names_every_patch_and_no_other() -> None:
    assert unlisted(MUTANTS, str(ROOT)) == []
