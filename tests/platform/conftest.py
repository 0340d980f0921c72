"""Real processes and private directories for the tests of the platform."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.platform import files

Run = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def soon() -> Deadline:
    """A deadline that no healthy test reaches."""
    return Deadline.after(30)


@pytest.fixture
def short_root() -> Iterator[str]:
    """A directory with a path short enough for sockets, private to the test."""
    path = tempfile.mkdtemp(prefix="nvx", dir="/tmp")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def sandbox(short_root: str) -> Iterator[files.Directory]:
    """A private directory."""
    directory, _ = files.create_private(f"{short_root}/box")
    with directory:
        yield directory


@pytest.fixture
def python() -> Iterator[Run]:
    """Start a Python child that ends with the test: `python(code)`; it prints a line when it is ready."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, *, ready: bool = True, **options: object) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-I", "-u", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **options,  # type: ignore[call-overload]
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


@pytest.fixture
def thread() -> Iterator[int]:
    """The number of a live thread of this process that isn't its first."""
    wait, told = threading.Event(), threading.Event()
    numbers: list[int] = []

    def work() -> None:
        numbers.append(threading.get_native_id())
        told.set()
        wait.wait()

    working = threading.Thread(target=work)
    working.start()
    told.wait()
    yield numbers[0]
    wait.set()
    working.join()


@pytest.fixture
def root_only() -> None:
    """Skip where the test needs another user's processes or files."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it acts as another user or in namespaces of its own")


def descriptors() -> set[str]:
    """The numbers of this process' open descriptors."""
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Fail a test that leaves a descriptor open."""
    before = descriptors()
    yield
    assert descriptors() <= before


def tree(path: str) -> list[str]:
    """The names under a directory, sorted."""
    return sorted(str(entry.relative_to(path)) for entry in Path(path).rglob("*"))


Isolated = Callable[..., str]


@pytest.fixture
def isolated(root_only: None) -> Isolated:  # noqa: ARG001 - a fixture that may skip
    """Run Python code as root in namespaces of its own: `isolated(code, argument..., flags="-m")` gives its output."""
    probe = subprocess.run(["unshare", "-m", "-p", "-f", "--mount-proc", "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip("needs the right to make namespaces")

    def run(code: str, *arguments: str, flags: str = "-m") -> str:
        ended = subprocess.run(
            ["unshare", *flags.split(), sys.executable, "-I", "-c", code, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run
