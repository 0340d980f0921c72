"""QEMU never outlives the VMM that started it, however that ends and whenever."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_build import AGENT, compiled

PARENT = """
import os, sys
holder, mode, *program = sys.argv[1:]
reader, writer = os.pipe()
actions = [(os.POSIX_SPAWN_DUP2, reader, reader)]
if mode == "gone":
    os.close(writer)
pid = os.posix_spawn(holder, [holder, str(reader), *program], {}, file_actions=actions)
print(pid, flush=True)
if mode == "wait":
    os.read(0, 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def holder(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("holder") / "holder"
    compiled(target, [AGENT / "holder.c"])
    return str(target)


@pytest.fixture
def parents() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        with one:
            one.wait()


def start(parents: list[subprocess.Popen[str]], holder: str, mode: str, *program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", "-c", PARENT, holder, mode, *program]
    parents.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    return parents[-1]


def said(parent: subprocess.Popen[str]) -> int:
    assert parent.stdout is not None
    return int(parent.stdout.readline())


def test_it_becomes_the_program_and_ends_as_that_does(parents: list[subprocess.Popen[str]], holder: str) -> None:
    parent = start(parents, holder, "wait", "/bin/sh", "-c", "exit 7")
    said(parent)
    assert parent.stdin is not None
    parent.stdin.close()
    assert said(parent) == 7


def test_a_parent_that_is_killed_takes_it_along(parents: list[subprocess.Popen[str]], holder: str) -> None:
    parent = start(parents, holder, "wait", "/bin/sleep", "1000")
    child = os.pidfd_open(said(parent))
    parent.send_signal(signal.SIGKILL)
    assert select.select([child], [], [], 30)[0], "it runs on"
    os.close(child)


def test_a_parent_that_is_gone_before_the_kernel_knows_is_noticed(
    parents: list[subprocess.Popen[str]], holder: str, tmp_path: Path
) -> None:
    trace = tmp_path / "ran"
    parent = start(parents, holder, "gone", "/usr/bin/touch", str(trace))
    said(parent)
    assert said(parent) == 65
    assert not trace.exists()


def test_a_program_that_is_not_there_is_told_apart(parents: list[subprocess.Popen[str]], holder: str) -> None:
    parent = start(parents, holder, "go", "/nowhere/qemu")
    said(parent)
    assert said(parent) == 66
