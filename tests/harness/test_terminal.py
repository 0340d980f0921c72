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
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=2)


WAITS_FOR = """
import pytest

from harness.errors import Gone, Late
from harness.platform import open_terminal

pytestmark = pytest.mark.lifecycle


def test_it(world):
    goes_on = open_terminal(world, ["/bin/sh", "-c", "echo up; exec sleep 600"])
    goes_on.wait("up", world.soon(600))
    with pytest.raises(Late, match=r"expected 'down' within 0.02 s, found 'up\\\\r\\\\n'$") as late:
        goes_on.wait("down", world.soon(0.1))
    assert not isinstance(late.value, Gone)
    with pytest.raises(Late, match="expected its end within 0.02 s, found it still runs"):
        goes_on.end(world.soon(0.1))
    ends = open_terminal(world, ["/bin/sh", "-c", "echo up"])
    with pytest.raises(Gone, match=r"expected 'down', found 'up\\\\r\\\\n', and nobody who says more$"):
        ends.wait("down", world.soon(600))
    ends.end(world.soon(600))
"""


def test_a_text_that_does_not_come_is_told_with_the_time_that_it_was_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WAITS_FOR)
    pytester.runpytest_subprocess("-p", "no:randomly", "--timeout-scale", "0.2").assert_outcomes(passed=1)
