"""Real processes and private directories on Windows."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvx_ref.platform import files
from sandboxes import SUPPORT
from system import PYTHON, environment

Run = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory of the test's own, removed with whatever is in it."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="nvx"))
    yield Path(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def box(root: Path) -> Iterator[files.Directory]:
    """A private directory."""
    directory, _ = files.create_private(str(root / "box"))
    with directory:
        yield directory


@pytest.fixture
def python() -> Iterator[Run]:
    """Start a Python child that ends with the test: `python(code, argument...)`; it prints a line when it is ready.

    It is the process itself: what a virtual environment has would start another one, in no job of the test's.
    """
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, *arguments: str, ready: bool = True) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [PYTHON, "-u", "-c", code, *arguments],
            env=environment(str(SUPPORT.parents[1])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(child)
        if ready:
            assert child.stdout is not None
            assert child.stdout.readline(), "the child ended before it was ready"
        return child

    yield run
    for child in started:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
