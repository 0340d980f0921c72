"""What a backend can't do or show: scenarios are skipped by need, or judge the rest, and the table says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import backends
from harness.errors import Unavailable
from harness.settings import BACKENDS, Settings

pytest_plugins = ["pytester"]

PLANTED = """
import pytest
from harness.backends.fake import Fake
from harness.sandbox import GPT, Sandbox

pytestmark = pytest.mark.c3

@pytest.fixture(scope="session")
def backend():
    class Poor(Fake):
        def lacks(self, need):
            return f"it has no {need}" if need in ("knob:ignore_stop", "sectors:4096") else None
    return Poor()

@pytest.fixture
def big(world):
    return Sandbox(world, image_format=GPT, sectors=4096)

"""


def report(pytester: pytest.Pytester, body: str) -> tuple[pytest.RunResult, list[dict[str, object]]]:
    pytester.makepyfile(PLANTED + body)
    result = pytester.runpytest_subprocess("--nvx-report", "report.json")
    return result, json.loads((pytester.path / "report.json").read_text())["cells"]


def test_a_scenario_is_skipped_by_what_it_needs_with_the_reason(pytester: pytest.Pytester) -> None:
    result, cells = report(
        pytester,
        """
def test_by_a_knob(world):
    world.need("pause:before_bind", "knob:ignore_stop")
    open("ran", "w").close()

def test_by_a_disk(big):
    open("ran", "w").close()

def test_neither(world):
    world.need("sectors:512")
""",
    )
    result.assert_outcomes(passed=1, skipped=2)
    assert sorted(str(cell["reason"]) for cell in cells) == [
        "",
        "fake: it has no knob:ignore_stop",
        "fake: it has no sectors:4096",
    ]
    assert not (pytester.path / "ran").exists()


def test_what_cannot_be_seen_is_named_and_the_rest_is_judged(pytester: pytest.Pytester) -> None:
    result, cells = report(
        pytester,
        """
@pytest.mark.parametrize("found", [None, 1, 2])
def test_it(world, found):
    if world.saw("the number", found):
        world.expect("the number", expected=1, found=found)
""",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*not seen the number"])
    assert [cell["unseen"] for cell in cells] == [[], [], ["the number"]]


@pytest.mark.parametrize("name", [*BACKENDS[1:]])
def test_a_backend_that_lacks_something_is_never_loaded_nor_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = Settings(backend=name)
    lacking = backends.missing(settings)
    assert lacking
    with pytest.raises(Unavailable, match=f"--backend {name} can't run here; missing: "):
        backends.load(settings)


def test_every_backend_has_a_module() -> None:
    assert tuple(backends.MODULES) == BACKENDS
    load: Callable[[Settings], object] = backends.load
    assert getattr(load(Settings()), "name", None) == "fake"
