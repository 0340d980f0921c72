"""A terminal of the harness: what is typed reaches the program, however the run itself was started."""

from __future__ import annotations

import pytest

from harness.platform import KERNEL

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(KERNEL == "win32", reason="needs a POSIX terminal")

IN_THE_BACKGROUND = """
import signal

import pytest

from harness.platform import open_terminal

pytestmark = pytest.mark.lifecycle


@pytest.mark.parametrize("how, signal_", [("interrupt", signal.SIGINT), ("close", signal.SIGHUP)])
def test_it(world, how, signal_):
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    shown = open_terminal(world, ["/bin/sh", "-c", "echo up; exec sleep 60"])
    shown.wait("up", world.soon())
    getattr(shown, how)()
    world.expect(how, expected=-signal_, found=shown.end(world.soon())[0])
"""


@pytest.mark.case("T36")
def test_a_run_that_ignores_signals_has_terminals_that_do_not(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(IN_THE_BACKGROUND)
    pytester.runpytest_subprocess("-p", "no:randomly", "--timeout-scale", "0.2").assert_outcomes(passed=2)
