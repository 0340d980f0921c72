"""A wait for a program's end that Ctrl-C cuts short leaves nothing that the next one waits for."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import ending
from harness.ending import has_ended
from tests.harness.stubs import SLEEPER, SOON, running

HARNESS = Path(ending.__file__).parent

NAMES = {"child", "_child", "process", "_process"}
"""What the harness calls a `Popen`."""


def test_an_end_is_waited_for_until_the_deadline() -> None:
    with running("input()") if sys.platform == "win32" else running(SLEEPER) as child:
        assert not has_ended(child, SOON(0))
        child.kill()
        assert has_ended(child, SOON(60))
        child.wait()
        assert has_ended(child, SOON(0))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a signal that a timer sends")
def test_an_interrupt_in_the_wait_leaves_no_lock_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []

    class Watched:
        """The lock of a `Popen`, which notes whether somebody tries it, and is had by nobody."""

        def acquire(self, *_: object) -> bool:
            taken.append(True)
            return False

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def waited(child: subprocess.Popen[bytes]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        has_ended(child, SOON(60))

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with running(SLEEPER) as child, monkeypatch.context() as patch:
            patch.setattr(child, "_waitpid_lock", Watched())
            with pytest.raises(KeyboardInterrupt):
                waited(child)
            patch.undo()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert taken == []


def timed_waits(text: str) -> list[int]:
    """Return the lines in which a `Popen` is waited for with a limit."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"wait", "communicate"}
        and (node.args or node.keywords)
        and ast.unparse(node.func.value).rpartition(".")[2] in NAMES
    ]


def test_the_harness_waits_for_no_program_by_the_lock_of_popen() -> None:
    found = [f"{path}:{line}" for path in HARNESS.rglob("*.py") for line in timed_waits(path.read_text())]
    assert found == []


@pytest.mark.parametrize("text", ["child.wait(5)", "self._process.wait(timeout=left)", "child.communicate(timeout=1)"])
def test_a_wait_by_it_is_found(text: str) -> None:
    assert timed_waits(text) == [1]


def test_a_wait_without_a_limit_takes_its_lock_whole() -> None:
    assert timed_waits("child.wait()") == []
