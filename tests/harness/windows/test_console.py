"""The harness's console, on a stand-in for the pseudo console: what it shows, what is typed, and what it waits for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import wine

wine.only_windows()

from harness import python
from harness.errors import HarnessError, Late, Unavailable
from harness.platform import consoles
from harness.witness import host
from harness.world import World
from tests.harness.stubs import SOON

ECHOES = (
    "import sys\nprint('\\x1b[2J\\x1b]0;title\\x07\\x1b[31mup\\x1b[m', flush=True)\nsys.exit(len(sys.stdin.readline()))"
)


class Pty:
    """A program's pipes, in the form of a pseudo console."""

    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)
        self.typed: list[str] = []

    @property
    def pid(self) -> int:
        return self.child.pid

    def spawn(self, appname: str, cmdline: str, cwd: str, env: str) -> bool:
        variables = dict(entry.split("=", 1) for entry in env.split("\0") if entry and entry[0] != "=")
        self.child = subprocess.Popen(
            f'"{appname}"{cmdline}', cwd=cwd, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return True

    def read(self, *, blocking: bool) -> str:
        assert blocking
        assert self.child.stdout is not None
        data = os.read(self.child.stdout.fileno(), 4096)
        if not data:
            self.child.stdout.close()
            raise EOFError
        return data.decode()

    def write(self, to_write: str) -> int:
        self.typed.append(to_write)
        if self.child.stdin is not None:
            self.child.stdin.write(to_write.encode() + b"\n")
            self.child.stdin.close()
        return len(to_write)

    def cancel_io(self) -> bool:
        if self.child.stdin is not None:
            self.child.stdin.close()
        self.child.wait()
        return True


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(consoles, "make", Pty)
    own: Callable[[int], None] = [].append
    stub = SimpleNamespace(
        root=str(tmp_path),
        environment=lambda: dict(os.environ),
        host=host(),
        processes=SimpleNamespace(own=own),
    )
    return cast("World", stub)


def opened(world: World, code: str = ECHOES) -> consoles.Console:
    return consoles.Console(world, [python.interpreter(), "-I", "-c", code])


def test_what_is_shown_is_waited_for_and_what_is_typed_is_read(world: World) -> None:
    shown = opened(world)
    shown.wait("up", SOON(60))
    shown.interrupt()
    assert shown.end(SOON(60)) == (2, "up\n")


def test_a_text_that_doesn_t_come_is_late_with_what_is_shown(world: World) -> None:
    shown = opened(world)
    shown.wait("up", SOON(60))
    with pytest.raises(Late, match=r"expected 'down' within [\d.]+ s, found 'up\\n'"):
        shown.wait("down", SOON(0.2))
    with pytest.raises(Late, match="its end"):
        shown.end(SOON(0.2))


def test_a_window_that_is_closed_ends_its_program(world: World) -> None:
    shown = opened(world)
    shown.wait("up", SOON(60))
    shown.close()
    assert shown.end(SOON(60)) == (0, "up\n")


def test_a_program_without_a_console_takes_no_break(world: World) -> None:
    shown = opened(world)
    shown.wait("up", SOON(60))
    shown.close()
    with pytest.raises(HarnessError, match="takes no Ctrl-Break: no console to attach to"):
        shown.cut_off()
    shown.end(SOON(60))


@pytest.mark.skipif(wine.version() is None, reason="Windows has one")
def test_wine_has_no_pseudo_console() -> None:
    with pytest.raises(Unavailable, match="pywinpty doesn't run under Wine"):
        consoles.make(80, 25)
