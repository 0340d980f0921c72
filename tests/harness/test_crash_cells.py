"""Names of crash cells, the golden's patterns, and what a plan makes of a scene."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.crash.cells import CALL_KILL, EXIT, PAIR, Cell, Point, failing, parse
from harness.crash.plan import FULL, GROUPS, QUICK, parts, spread
from harness.crash.scenes import SCENES, scene
from harness.crash.states import Allowed, matches
from harness.crash.sweep import golden_path
from harness.errors import Finding, HarnessError
from nvx_ref.steps import Step


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("start/exit/start.spawned#1", Cell("start", EXIT, Point("start.spawned"))),
        (
            "start/syscall-kill/renameat:.launch.json.ID.tmp,launch.json#2",
            Cell("start", CALL_KILL, Point("renameat:.launch.json.ID.tmp,launch.json", 2)),
        ),
        ("stop/syscall-EIO/unlinkat:a#1", Cell("stop", failing("EIO"), Point("unlinkat:a"))),
        ("stop/syscall-ENOSPC+/write:a#1", Cell("stop", failing("ENOSPC", persistent=True), Point("write:a"))),
        ("provision/audit-kill/mkdir:.#1", Cell("provision", "audit-kill", Point("mkdir:."))),
        ("stop/pair/stop.locked#1,stop.exited#2", Cell("stop", PAIR, Point("stop.locked"), Point("stop.exited", 2))),
    ],
)
def test_a_cell_is_its_name(text: str, cell: Cell) -> None:
    assert parse(text) == cell
    assert str(cell) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "start",
        "start/exit",
        "start/exit/",
        "start/exit/start.spawned",
        "start/exit/start.spawned#",
        "start/exit/start.spawned#0",
        "start/exit/#1",
        "start/leave/start.spawned#1",
        "start/syscall-ENOENT/write:x#1",
        "start/pair/start.spawned#1",
        "/exit/start.spawned#1",
    ],
)
def test_what_names_no_cell_is_refused(text: str) -> None:
    with pytest.raises(HarnessError, match="is no "):
        parse(text)


def test_an_unknown_scene_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(HarnessError, match="no scene is called 'strat': there are provision, start"):
        scene("strat")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("config lock", "lock config"),
        ("config [vmm]", "config"),
        ("config [vmm]", "config vmm"),
        ("live: config [vmm]", "live: config vmm"),
        ("live: config", "config"),
        ("lock temporary:config.json", "lock temporary:config.json"),
    ],
)
def test_a_state_fits_its_pattern(pattern: str, found: str) -> None:
    assert matches(pattern, found)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("config lock", "config"),
        ("config", "config lock"),
        ("config [vmm]", "vmm"),
        ("live: config", "exited: config"),
        ("config", "config foreign:x"),
        ("lock temporary:config.json", "lock temporary:launch.json"),
    ],
)
def test_another_state_does_not(pattern: str, found: str) -> None:
    assert not matches(pattern, found)


def golden() -> Allowed:
    return Allowed(golden_path(None))


def test_the_golden_speaks_of_every_step_and_of_no_other() -> None:
    allowed = golden()
    said = {step for name in allowed.scenes() for step in allowed.steps(name)}
    assert {step.value for step in Step} <= said
    assert said - {step.value for step in Step} == {"begin", "done", "failed"}
    assert set(allowed.scenes()) == {*SCENES, "usable", "recovery"}


def test_a_state_that_is_not_allowed_is_a_finding_with_both() -> None:
    steps = ["stop.record_cleared", "stop.exited"]
    expected = r"here: expected \(config lock log\) or \(config lock log runtime socket\), found \(lock\)"
    with pytest.raises(Finding, match=expected):
        golden().check("forced-stop", steps, "lock", where="here", kinds=("at",))


def test_a_step_of_which_the_golden_says_nothing_is_not_judged_by_it() -> None:
    golden().check("start", ["start.unheard_of"], "anything", where="here", kinds=("at",))


def test_a_golden_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "allowed_states.json").write_text("{")
    for path in (tmp_path / "allowed_states.json", tmp_path / "absent.json"):
        with pytest.raises(HarnessError, match=str(path)):
            Allowed(str(path))
    with pytest.raises(HarnessError, match="name its directory by --goldens"):
        golden_path(str(tmp_path / "elsewhere"))


def test_a_quick_sample_is_spread_and_always_the_same() -> None:
    assert spread(range(100), 4) == [12, 37, 62, 87]
    assert spread(range(3), 4) == [0, 1, 2]
    assert spread(range(100), 0) == []


@pytest.mark.parametrize("sweep", [QUICK, FULL])
def test_the_parts_of_a_sweep_are_the_whole_of_it(sweep: str) -> None:
    whole = parts(sweep)
    assert {(part.scene, part.group) for part in whole} == {(name, group) for name in SCENES for group in GROUPS}
    for name in SCENES:
        for group in GROUPS:
            mine = [part for part in whole if (part.scene, part.group) == (name, group)]
            assert sorted(number for part in mine for number in part.of(range(50))) == list(range(50))
    assert len({str(part) for part in whole}) == len(whole)


def test_an_error_names_an_example_that_is_a_cell() -> None:
    for wrong in ("nonsense", "start/kill/start.spawned", "stop/pair/stop.locked#1"):
        with pytest.raises(HarnessError, match=r", for example (\S+)$") as refused:
            parse(wrong)
        assert parse(str(refused.value).rpartition(" ")[2])
