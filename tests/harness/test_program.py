"""A program over the JSON lines: what it says is taken, and whatever it does, nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Finding, HarnessError, Late, Unmet
from harness.python import write_script
from harness.sut.messages import CODES, MAX_HITS, MAX_LINE
from harness.sut.process import Started
from harness.sut.program import Program, ProgramEnded
from harness.sut.protocol import Answer, Hit, ProtocolBroken, called
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
        running.ready(SOON(60))
        yield running


def test_an_operation_answers_with_its_result_and_the_steps_it_passed(program: Program) -> None:
    answer = program.call("start", {"name": "a"}, SOON(60))
    assert (answer.ok, answer.result, answer.steps) == (True, {"args": {"name": "a"}}, STEPS)


def test_a_failure_carries_its_code(program: Program) -> None:
    answer = program.call("fail", {}, SOON(60))
    assert (answer.ok, answer.code, str(answer)) == (False, "Busy", "Busy: another transition")


@pytest.mark.parametrize(
    ("code", "near"),
    [
        ("AlreadyExist", "AlreadyExists"),
        ("ALREADY_EXISTS", "AlreadyExists"),
        ("EBUSY", "Busy"),
        ("timed-out", "TimedOut"),
        ("Failed", "LaunchFailed, SessionFailed"),
    ],
)
def test_a_code_that_nobody_knows_is_told_so_with_those_that_are_like_it(code: str, near: str) -> None:
    answer = Answer(ok=False, code=code, message="box: no")
    assert str(answer) == f"{code} (no code of protocol 1; the nearest: {near}): box: no"


def test_a_code_that_is_like_none_is_told_with_all_of_them() -> None:
    text = str(Answer(ok=False, code="Unexpected", message="x"))
    assert text == f"Unexpected (no code of protocol 1; it has {', '.join(CODES)}): x"
    assert [called(code) for code in CODES] == [*CODES]


def test_an_operation_is_held_at_the_nth_hit_and_goes_on_when_resumed(program: Program) -> None:
    running = program.begin("start", {}, pause=("start.b", 2))
    assert running.wait_paused(SOON(60)) == Hit("start.b", 2)
    running.resume()
    assert running.answer(SOON(60)).steps == STEPS


@pytest.mark.parametrize("way", ["exit", "kill"])
def test_a_crash_ends_the_program_at_the_step(program: Program, way: str) -> None:
    assert program.crash("start", {}, ("start.b", 1), way, SOON(60)) == STEPS[:2]
    assert program.has_exited()


@pytest.mark.parametrize("way", ["exit", "kill"])
def test_a_crash_that_does_not_fire_is_a_finding(program: Program, way: str) -> None:
    with pytest.raises(Finding, match=r"start\.b#3.*success.*start.b#2"):
        program.crash("start", {}, ("start.b", 3), way, SOON(60))


@pytest.mark.parametrize(
    ("op", "more", "need"),
    [
        ("start", {"pause": ("start.unknown", 1)}, "step start.unknown"),
        ("start", {"leave": ("start.c", 1)}, "step start.c"),
        ("start", {"audit": True}, "way audit"),
        ("exec", {}, "operation exec"),
        ("stop", {"args": {"forceWithin": 1}}, "operation stop"),
    ],
)
def test_what_a_hello_does_not_declare_is_not_asked_for(
    program: Program, op: str, more: dict[str, Any], need: str
) -> None:
    before = len(program.transcript)
    with pytest.raises(Unmet, match=f"needs {need}, which"):
        program.begin(op, **{"args": {}, **more})
    assert len(program.transcript) == before
    assert program.call("start", {}, SOON(60)).ok


def test_a_program_that_ends_in_an_operation_is_told_with_its_status_and_last_words(program: Program) -> None:
    with pytest.raises(ProgramEnded, match="ended with 1; its last words: no reason"):
        program.call("die", {}, SOON(60))


def test_a_program_that_has_ended_before_it_is_asked_is_told_with_its_status(tmp_path: Path) -> None:
    hello = '{"hello":{"protocol":1,"operations":["start"]}}'
    body = f"import os\nprint({hello!r}, flush=True)\nos._exit(3)"
    with start(write_script(str(tmp_path / "hasty.py"), packages=(), body=body), tmp_path) as program:
        program.ready(SOON(60))
        assert program._pin.wait(SOON(60))
        with pytest.raises(ProgramEnded, match="ended with 3"):
            program.call("start", {}, SOON(60))


def test_a_program_that_says_nothing_is_late(program: Program) -> None:
    with pytest.raises(Late, match=r"hang: expected an answer of the orchestrator within 0.2 s, found nothing$"):
        program.call("hang", {}, SOON(0.2))


def test_a_program_that_ends_by_itself_is_told_apart_from_one_that_is_killed(tmp_path: Path) -> None:
    with start(orchestrator_script(tmp_path), tmp_path) as willing:
        willing.ready(SOON(60))
        assert willing.close(SOON(60))
    stubborn = write_script(
        str(tmp_path / "stubborn.py"),
        packages=(),
        body='import signal\nprint(\'{"hello":{"protocol":1,"operations":["start"]}}\', flush=True)\nsignal.pause()',
    )
    with start(stubborn, tmp_path) as program:
        program.ready(SOON(60))
        assert not program.close(SOON(0.1))
        assert program.has_exited()


@pytest.mark.case("T60")
def test_the_end_of_a_program_is_noticed_although_another_process_holds_its_pipes(tmp_path: Path) -> None:
    """T60: an orphan that inherited the answers' pipe holds nobody up."""
    body = """
import os
print('{"hello":{"protocol":1,"operations":["start"]}}', flush=True)
if os.fork() == 0:
    while os.read(0, 4096):
        pass
    os._exit(0)
os._exit(3)
"""
    with start(write_script(str(tmp_path / "forks.py"), packages=(), body=body), tmp_path) as program:
        program.ready(SOON(60))
        with pytest.raises(ProgramEnded, match="ended with 3"):
            program.call("start", {}, SOON(60))


WRONG = {
    "nonsense": "said b'nonsense', which isn't a message of one JSON object; .* on its error output",
    "[1]": "isn't a message of one JSON object",
    "{}": "isn't a message of one JSON object",
    "\ufeff{}": "isn't a message of one JSON object",
    "[" * 100_000: "isn't a message of one JSON object",
    '{"id":1}': "first line is {'id': 1}, not a hello",
    '{"hello":{"protocol":2}}': "speaks protocol 2, this harness 1",
    '{"hello":{"operations":[]}}': "speaks protocol None, this harness 1",
    '{"hello":{"protocol":1}}': "missing required field `operations`",
    '{"hello":{"protocol":1,"operations":"start"}}': r"Expected `array`, got `str` - at `\$.hello.operations`",
    '{"hello":{"protocol":1,"operations":["a b"]}}': r"at `\$.hello.operations\[0\]`",
    '{"hello":{"protocol":1,"operations":[],"steps":[1]}}': r"Expected `str`, got `int` - at `\$.hello.steps",
}


@pytest.mark.parametrize("line", WRONG, ids=[line[:40] for line in WRONG])
def test_another_first_line_than_a_hello_is_refused_with_what_is_wrong(tmp_path: Path, line: str) -> None:
    body = f"print({line!r}, flush=True)\nsys.stdin.read()"
    command = write_script(str(tmp_path / "wrong.py"), packages=(), body=body)
    with start(command, tmp_path) as program, pytest.raises(ProtocolBroken, match=WRONG[line]) as caught:
        program.ready(SOON(60))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("ending", ["\\n", ""], ids=["whole", "without an end"])
def test_a_line_over_the_limit_is_refused_before_it_has_an_end(tmp_path: Path, ending: str) -> None:
    body = f"sys.stdout.write('x' * ({MAX_LINE} + 1) + '{ending}')\nsys.stdout.flush()\nsys.stdin.read()"
    command = write_script(str(tmp_path / "long.py"), packages=(), body=body)
    with start(command, tmp_path) as program, pytest.raises(ProtocolBroken, match=f"a line of over {MAX_LINE} bytes"):
        program.ready(SOON(60))


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("sys.stdin.read()", Late, "hello: expected an answer of the orchestrator within 2 s, found nothing$"),
        ("sys.exit('no config')", ProgramEnded, "hello: .* ended with 1; its last words: no config"),
        ("print('{\"hello\":', end='', flush=True)\nsys.stdin.read()", Late, "within 2 s, found nothing$"),
    ],
    ids=["silence", "exit", "half a line"],
)
def test_a_program_without_a_hello_is_told_by_the_deadline(
    tmp_path: Path, body: str, kind: type[Exception], text: str
) -> None:
    command = write_script(str(tmp_path / "mute.py"), packages=(), body=body)
    with start(command, tmp_path) as program, pytest.raises(kind, match=text):
        program.ready(SOON(2 if kind is Late else 60))


ANSWERS = {
    '{"id":1,"ok":true,"result":[]}': "Expected `object`, got `array`",
    '{"id":1,"ok":"yes"}': "Expected `bool`, got `str`",
    '{"id":1,"ok":false,"message":"x"}': "missing required field `code`",
    '{"id":1,"ok":true,"result":{"verdict":"fine"}}': "the result of status: .*Invalid enum value 'fine'",
    '{"id":1,"ok":true}': "the result of status: .*missing required field `verdict`",
    '{"id":1,"step":"a.b"}': "missing required field `hit`",
    '{"id":1,"step":"a.b","hit":0}': "Expected `int` >= 1",
    '{"id":1,"step":"a.b","hit":2}': "announced a.b#2 after 0 of that name",
    '{"id":1,"output":"x"}': "which is no message of a program",
    '{"id":7,"ok":true}': "answered another request: .*, where the id is 1",
    '{"ok":true}': "answered another request",
}


@pytest.mark.parametrize("line", ANSWERS)
def test_an_answer_that_is_none_is_refused_with_what_is_wrong(tmp_path: Path, line: str) -> None:
    hello = '{"hello":{"protocol":1,"operations":["status"]}}'
    body = f"print({hello!r}, {line!r}, sep='\\n', flush=True)\nsys.stdin.read()"
    with start(write_script(str(tmp_path / "wrong.py"), packages=(), body=body), tmp_path) as program:
        program.ready(SOON(60))
        with pytest.raises(HarnessError, match=ANSWERS[line]):
            program.call("status", {}, SOON(60))


def test_a_program_that_announces_steps_for_ever_is_cut_off(tmp_path: Path) -> None:
    hello = '{"hello":{"protocol":1,"operations":["start"],"steps":["a.b"]}}'
    body = f"""
print({hello!r}, flush=True)
hit = 0
while True:
    hit += 1
    print('{{"id":1,"step":"a.b","hit":%d}}' % hit)
"""
    with start(write_script(str(tmp_path / "babbles.py"), packages=(), body=body), tmp_path) as program:
        program.ready(SOON(60))
        with pytest.raises(ProtocolBroken, match=f"over {MAX_HITS} steps in one operation"):
            program.call("start", {}, SOON(60))


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = descriptors_open()
    with start(orchestrator_script(tmp_path), tmp_path) as program:
        program.ready(SOON(60))
        program.crash("start", {}, ("start.a", 1), "kill", SOON(60))
    with start(orchestrator_script(tmp_path), tmp_path) as program:
        program.ready(SOON(60))
    assert descriptors_open() == before
