"""Runs inside of tests, many of which are meant to fail: what evidence they keep goes with the tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from harness.platform import short_root
from harness.removing import remove_tree
from harness.settings import RUNS


@pytest.fixture(autouse=True, scope="module")
def _inner_runs() -> Iterator[None]:
    place = tempfile.mkdtemp(prefix="nv", dir=short_root())
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(RUNS, place)
        yield
    remove_tree(place)
