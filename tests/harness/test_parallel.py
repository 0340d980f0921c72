"""A run on guests that boot for seconds is shared out by itself, unless its user said how it is to run."""

from __future__ import annotations

import os

import pytest

from harness import parallel

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("options", "processors", "count"),
    [
        (["--backend", "qemu"], 2, 2),
        (["--backend", "qemu", "-k", "cold and boot"], 64, 4),
        (["--backend", "qemu"], 1, None),
        (["--backend", "qemu"], None, None),
        (["--backend", "qemu", "-n", "0"], 2, None),
        (["--backend", "qemu", "-n", "3"], 2, None),
        (["--backend", "qemu", "--tx", "popen"], 2, None),
        (["--backend", "qemu", "--pdb"], 2, None),
        (["--backend", "qemu", "-s"], 2, None),
        (["--backend", "qemu", "--collect-only"], 2, None),
        (["--backend", "qemu", "test_it.py::test_it"], 2, None),
        (["--backend", "qemu", "-p", "no:xdist"], 2, None),
        (["--backend", "kvm"], 2, None),
        ([], 2, None),
    ],
)
def test_a_run_that_does_not_say_is_shared_out(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    processors: int | None,
    count: int | None,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    pytester.makepyfile(test_it="def test_it():\n    pass\n")
    assert parallel.workers(pytester.parseconfig(*options)) == count


def test_workers_share_nothing_out_themselves_and_the_run_says_it_is(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import os\nfrom harness import parallel\nos.cpu_count = lambda: 2\nparallel.SLOW_BOOTS = ('fake',)\n"
    )
    pytester.makepyfile(
        "import os, pytest\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_it(number):\n"
        "    assert os.environ['PYTEST_XDIST_WORKER_COUNT'] == '2'\n"
    )
    result = pytester.runpytest_subprocess("--backend", "fake")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["scenarios: 2 workers, as guests boot for seconds (-n 0: one test after the other)"])
