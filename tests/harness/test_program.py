"""A program over the JSON lines: what it says is taken, and whatever it does, nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import Finding, HarnessError, Late
from harness.python import write_script
from harness.sut.process import Started
from harness.sut.program import Program, ProgramEnded
from harness.sut.protocol import Hit, ProtocolBroken
from tests.harness.stubs import SOON, descriptors_open, host, orchestrator_script

STEPS = (Hit("start.a", 1), Hit("start.b", 1), Hit("start.b", 2))


def start(command: list[str], tmp_path: Path) -> Program:
    return Program(
        Started(command, environment={}),
        host=host(),
        errors=str(tmp_path / "errors.txt"),
        cwd=str(tmp_path),
        started=lambda _pid: None,
    )


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with start(orchestrator_script(tmp_path), tmp_path) as running:
        running.ready(SOON(10))
        yield running


def test_an_operation_answers_with_its_result_and_the_steps_it_passed(program: Program) -> None:
    answer = program.call("start", {"name": "a"}, SOON(10))
    assert (answer.ok, answer.result, answer.steps) == (True, {"args": {"name": "a"}}, STEPS)


def test_a_failure_carries_its_code(program: Program) -> None:
    answer = program.call("fail", {}, SOON(10))
    assert (answer.ok, answer.code, str(answer)) == (False, "Busy", "Busy: another transition")


def test_an_operation_is_held_at_the_nth_hit_and_goes_on_when_resumed(program: Program) -> None:
    running = program.begin("start", {}, pause=("start.b", 2))
    assert running.wait_paused(SOON(10)) == Hit("start.b", 2)
    running.resume()
    assert running.answer(SOON(10)).steps == STEPS


@pytest.mark.parametrize("way", ["exit", "kill"])
def test_a_crash_ends_the_program_at_the_step(program: Program, way: str) -> None:
    assert program.crash("start", {}, ("start.b", 1), way, SOON(10)) == STEPS[:2]
    assert program.has_exited()


@pytest.mark.parametrize("way", ["exit", "kill"])
@pytest.mark.parametrize("at", [("start.b", 3), ("start.unknown", 1)])
def test_a_crash_that_does_not_fire_is_a_finding(program: Program, at: tuple[str, int], way: str) -> None:
    with pytest.raises(Finding, match=f"{at[0]}#{at[1]}.*success.*start.b#2"):
        program.crash("start", {}, at, way, SOON(10))


def test_a_program_that_ends_in_an_operation_is_told_with_its_status_and_last_words(program: Program) -> None:
    with pytest.raises(ProgramEnded, match="ended with 1; its last words: no reason"):
        program.call("die", {}, SOON(10))


def test_a_program_that_says_nothing_is_late(program: Program) -> None:
    with pytest.raises(Late, match="hang: expected an answer of the orchestrator, found nothing"):
        program.call("hang", {}, SOON(0.2))


def test_a_program_that_ends_by_itself_is_told_apart_from_one_that_is_killed(tmp_path: Path) -> None:
    with start(orchestrator_script(tmp_path), tmp_path) as willing:
        willing.ready(SOON(10))
        assert willing.close(SOON(10))
    stubborn = write_script(
        str(tmp_path / "stubborn.py"),
        packages=(),
        body='import signal\nprint(\'{"hello":{"protocol":1}}\', flush=True)\nsignal.pause()',
    )
    with start(stubborn, tmp_path) as program:
        program.ready(SOON(10))
        assert not program.close(SOON(0.1))
        assert program.has_exited()


@pytest.mark.case("T60")
def test_the_end_of_a_program_is_noticed_although_another_process_holds_its_pipes(tmp_path: Path) -> None:
    """T60: an orphan that inherited the answers' pipe holds nobody up."""
    body = """
import os
print('{"hello":{"protocol":1}}', flush=True)
if os.fork() == 0:
    while os.read(0, 4096):
        pass
    os._exit(0)
os._exit(3)
"""
    with start(write_script(str(tmp_path / "forks.py"), packages=(), body=body), tmp_path) as program:
        program.ready(SOON(10))
        with pytest.raises(ProgramEnded, match="ended with 3"):
            program.call("start", {}, SOON(10))


@pytest.mark.parametrize("line", ["nonsense", "[1]", "{}", '{"hello":{"protocol":2}}', '{"id":1}'])
def test_another_first_line_than_a_hello_is_refused(tmp_path: Path, line: str) -> None:
    command = write_script(
        str(tmp_path / "wrong.py"), packages=(), body=f"print({line!r}, flush=True)\nsys.stdin.read()"
    )
    with start(command, tmp_path) as program, pytest.raises(ProtocolBroken):
        program.ready(SOON(10))


def test_an_answer_to_another_request_is_refused(tmp_path: Path) -> None:
    body = """print('{"hello":{"protocol":1}}\\n{"id":7,"ok":true}', flush=True)\nsys.stdin.read()"""
    with start(write_script(str(tmp_path / "other.py"), packages=(), body=body), tmp_path) as program:
        program.ready(SOON(10))
        with pytest.raises(HarnessError, match="answered another request"):
            program.call("start", {}, SOON(10))


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = descriptors_open()
    with start(orchestrator_script(tmp_path), tmp_path) as program:
        program.ready(SOON(10))
        program.crash("start", {}, ("start.a", 1), "kill", SOON(10))
    with start(orchestrator_script(tmp_path), tmp_path) as program:
        program.ready(SOON(10))
    assert descriptors_open() == before
