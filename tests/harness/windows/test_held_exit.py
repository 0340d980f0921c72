"""A process that is ended and hasn't exited: its debugger holds it, and changes nothing of it otherwise."""

from __future__ import annotations

import subprocess

import pytest

import wine

wine.only_windows()

from harness import python
from harness.errors import Unavailable
from harness.platform import held_exit, require_held_exit
from harness.witness import host
from tests.harness.stubs import SOON

ECHOES = "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)"


def echo() -> subprocess.Popen[bytes]:
    command = [python.interpreter(), "-I", "-c", ECHOES]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    says(child, b"up")
    return child


def says(child: subprocess.Popen[bytes], word: bytes) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(word + b"\n")
    child.stdin.flush()
    assert child.stdout.readline().strip() == word


@wine.differs("an exit is told to everybody, whatever the debugger does")
def test_a_process_that_was_ended_exits_once_it_is_let_go_of() -> None:
    with echo() as child:
        pin = host().pin(child.pid)
        assert pin is not None
        try:
            with held_exit(child.pid):
                says(child, b"goes on")
                pin.end()
                assert not pin.wait(SOON(0.5))
            assert pin.wait(SOON(60))
        finally:
            child.kill()
            pin.close()


def test_a_process_that_is_let_go_of_goes_on() -> None:
    with echo() as child:
        with held_exit(child.pid):
            says(child, b"goes on")
        says(child, b"after that too")
        child.communicate()
        assert child.returncode == 0


def test_what_cannot_be_held_is_told() -> None:
    with pytest.raises(Unavailable, match="the right to debug it"), held_exit(2**31 - 4):
        pass


@pytest.mark.skipif(wine.version() is None, reason="Windows holds an exit for its debugger")
def test_wine_is_told_before_anything_is_started() -> None:
    with pytest.raises(Unavailable, match="Wine waits for no debugger"):
        require_held_exit()
