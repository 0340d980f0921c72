"""What scenarios do wrong on purpose, each caught, with the text that its author gets: a golden of at most 25 lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.goldens import Goldens
from harness.report.model import read
from tests.harness.stubs import unmount_runs
from tests.harness.test_sweep import HEAD, LEAVES, can_mount

pytest_plugins = ["pytester"]

MOST = 25
"""Lines of a failure's text."""

STARTED = """
    from harness.sandbox import RAMFS, Sandbox
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
"""
STOPPED = """
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())
"""
READ = 'open(os.path.join(box.directory, "control.capability"), "rb").read()'

HELD = """
    world.vmm.configure(pauses=["before_bind"], knobs={knobs})
    from harness.sandbox import RAMFS, Sandbox
    box, program = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(program)
    program.begin("start", box.named())
    world.channel.wait_paused("before_bind", world.soon(3600))
"""

BODIES = {
    "process": LEAVES["a VMM"],
    "orphan": LEAVES["an orphan"],
    "socket": LEAVES["a socket"],
    "descriptor": """
    global kept
    kept = open("/etc/hostname")
    """,
    "mount": LEAVES["a mount"],
    "file": LEAVES["a temporary file"],
    "vm": STARTED,
    "hang": """
    reader, writer = os.pipe()
    os.read(reader, 1)
    """,
    "silent_orchestrator": """
    program = world.orchestrator()
    world.vmm.configure(pauses=["before_bind"])
    from harness.sandbox import RAMFS, Sandbox
    box = Sandbox(world, upper=RAMFS)
    box.provision(program)
    running = program.begin("start", box.named())
    assert running.reach(("start.identity_recorded", 1), world.soon())
    running.answer(world.soon(0.5))
    """,
    "vmm_dies": f"{HELD.format(knobs={'exit_at': {'before_capability': 3}})}",
    "vmm_fails": f"{HELD.format(knobs={'fail_at': {'before_capability': 'no such disk'}})}",
    "vmm_dies_before_its_hello": f"{HELD.format(knobs={'no_such_knob': 1})}",
    "two_vmms": f"{STARTED}{STOPPED}    box.succeed(program, 'start'){STOPPED}    world.runs.one('start')\n",
    "capability_printed": f"{STARTED}    print({READ}.hex()){STOPPED}",
    "capability_in_a_failure": f"{STARTED}    secret = {READ}{STOPPED}    assert secret == b'', secret.hex()\n",
    "wrong_verdict": f"""{STARTED}{STOPPED}
    world.expect("stop, then status", expected="exited", found=box.verdict(program, "status"))
    """,
}

PATTERNS = (
    (re.compile(r"/\S+/nvx-[0-9a-f]{8}"), "<RUN>"),
    (re.compile(r"<RUN>/[\d.]+"), "<TEST>"),
    (re.compile(r"(evidence/\S+)-[0-9a-f]{4}"), r"\1-<ID>"),
    (re.compile(r"/\S+/(python)[\d.]*"), r"<\1>"),
    (re.compile(r"tmp/tmp\w{8}"), "tmp/tmp<RANDOM>"),
    (re.compile(r"descriptor \d+"), "descriptor <N>"),
    (re.compile(r"\.py:\d+: "), ".py:<LINE>: "),
    (re.compile(r"VMM(:?) +pid \d+"), r"VMM\1 pid <PID>"),
    (re.compile(r"orchestrator-\d+"), "orchestrator-<N>"),
    (re.compile(r"^[_=-]{3,}(.*?)[_=-]*$", re.MULTILINE), r"___\1"),
)


def failure(text: str) -> list[str]:
    """Return the lines from the failure's head to the table."""
    start = re.search(r"^_{3,} .*test_it.* _{3,}$", text, re.MULTILINE)
    end = re.search(r"^=+ (scenarios on|xdist:) ", text, re.MULTILINE)
    assert start is not None, text
    assert end is not None, text
    part = text[start.start() : end.start()]
    for pattern, instead in PATTERNS:
        part = pattern.sub(instead, part)
    return [line.rstrip() for line in part.splitlines()]


@pytest.mark.case("T61", "T63")
@pytest.mark.parametrize("what", BODIES)
def test_what_is_done_wrong_is_caught_with_a_short_text(pytester: pytest.Pytester, goldens: Goldens, what: str) -> None:
    if what == "mount" and not can_mount():
        pytest.skip("mounting needs root")
    pytester.makepyfile(test_seeded=f"{HEAD}\ndef test_it(world):{BODIES[what]}")
    options = ["--timeout-scale", "0.3"] if what in {"process", "orphan", "mount"} else []
    options += ["-o", "timeout=8"] if what == "hang" else []
    try:
        result = pytester.runpytest_subprocess("-p", "no:randomly", *options)
        text = result.stdout.str() + result.stderr.str()
    finally:
        unmount_runs()
    assert result.ret == 1, text
    lines = failure(text)
    assert len(lines) <= MOST
    if what.startswith("vmm_"):
        assert "fake that waits there, found VMM pid " in text
        assert re.search(r"^VMM: .* ended with status \d", text, re.MULTILINE)
    assert [line for line in lines if line.startswith("evidence: ")]
    assert [line for line in lines if line.startswith("replay:   pytest ")]
    assert "1 scenario, 1 cell: 0 pass, 1 fail, 0 skip" in text
    if what.startswith("capability"):
        assert not re.search(r"[0-9a-f]{64}", text)
    kept = re.search(r"^evidence: (\S+)", text, re.MULTILINE)
    assert kept is not None
    assert Path(kept[1]).is_dir()
    goldens.check(f"harness/failures/{what}.txt", lines)


def test_a_worker_that_a_scenario_crashes_is_told_with_the_scenario(
    pytester: pytest.Pytester, goldens: Goldens
) -> None:
    pytester.makepyfile(test_seeded=f"{HEAD}\ndef test_it(world):{STARTED}    print({READ}.hex())\n    os._exit(9)\n")
    options = ("-n", "1", "--max-worker-restart=0", "--nvx-report", "report.json")
    result = pytester.runpytest_subprocess("-p", "no:randomly", *options)
    assert result.ret == 1
    text = result.stdout.str()
    kept = re.search(r"^evidence: (\S+)", text, re.MULTILINE)
    assert kept is not None
    (row,) = read(str(pytester.path / "report.json")).cells
    assert (row.outcome, row.evidence, row.groups) == ("fail", kept[1], ["lifecycle"])
    assert row.replay == "pytest test_seeded.py::test_it --backend fake"
    there = {path.name for path in Path(kept[1]).rglob("*")}
    assert {"openvmm.log", "runtime.json", "config.json", "orchestrator-0.txt"} <= there
    assert "control.capability" not in there
    assert "the run was cut short" in text
    lines = failure(re.sub(r"^_{3,} (\S*test_seeded.py) _{3,}$", r"___ \1::test_it ___", text, flags=re.MULTILINE))
    assert len(lines) <= MOST
    lines = [re.sub(r"Python \d+\.\d+\.\d+", "Python <VERSION>", line) for line in lines]
    goldens.check("harness/failures/worker.txt", lines)
