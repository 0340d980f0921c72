"""Protocol version 1 is frozen: its schema, its page and its code say the same, and real traffic fits all three."""

from __future__ import annotations

import json
import re
import shutil
from typing import cast

import pytest
from jsonschema import Draft202012Validator

from harness.backends import load
from harness.errors import Unmet
from harness.sandbox import GPT, RAMFS, Sandbox
from harness.settings import Settings, session_directory
from harness.sut.messages import ARGUMENTS, CODES, MAX_HITS, MAX_LINE, RESULTS, schema
from harness.sut.needs import NEEDS, WAYS
from harness.world import World
from tests.harness.seeded import ROOT

Json = dict[str, object]
PAGE = ROOT / "docs" / "protocol.md"
WHOLE: Json = json.loads(schema())
LINE = Draft202012Validator(WHOLE)

HELLO: Json = {"hello": {"protocol": 1, "operations": ["start"]}}
REQUEST: Json = {"id": 1, "op": "start", "args": {"root": "/s", "name": "box"}}
FAILURE: Json = {"id": 1, "ok": False, "code": "Busy", "message": "x"}


@pytest.fixture(scope="module")
def traffic() -> list[Json]:
    """Every line of a whole life of a sandbox, with a pause and a failure, as it went over the pipes."""
    settings = Settings(directory=session_directory())
    world = World(settings, load(settings), label="traffic")
    box = Sandbox(world, image_format=GPT, upper=RAMFS)
    program = world.orchestrator()
    box.fail(program, "start", "NotFound")
    assert program.begin("provision", box.request(), audit=True).answer(world.soon()).ok
    running = program.begin("start", box.named(), pause=("start.spawned", 1))
    running.wait_paused(world.soon())
    running.resume()
    assert running.answer(world.soon()).ok
    box.output(program, "/bin/echo", "hello")
    box.verdict(program, "status")
    box.verdict(program)
    box.succeed(program, "stop", {**box.named(), "timeout": 20.0, "forceWithin": 5.0})
    box.succeed(program, "deprovision")
    lines = [json.loads(line[2:]) for line in program.transcript]
    left = world.close()
    shutil.rmtree(settings.directory)
    assert left == ""
    return lines


def test_every_line_of_real_traffic_fits(traffic: list[Json]) -> None:
    for line in traffic:
        assert [error.message for error in LINE.iter_errors(line)] == [], line
    said = {key for line in traffic for key in line}
    assert {"hello", "op", "pause", "resume", "step", "event", "ok", "code", "details", "result"} <= said
    assert {line["op"] for line in traffic if "op" in line} == set(ARGUMENTS)


def test_results_fit_what_their_operation_must_say(traffic: list[Json]) -> None:
    asked = {line["id"]: str(line["op"]) for line in traffic if "op" in line}
    seen: set[str] = set()
    for line in traffic:
        if line.get("ok") is True and (kind := RESULTS.get(asked[line["id"]])):
            part = {"$ref": f"#/$defs/{kind.__name__}", "$defs": WHOLE["$defs"]}
            assert Draft202012Validator(part).is_valid(line["result"]), line
            seen.add(asked[line["id"]])
    assert seen == set(RESULTS)


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"hello": {}},
        {"hello": {"protocol": 2, "operations": []}},
        {"hello": {"protocol": 1, "operations": ["a b"]}},
        {**REQUEST, "pause": ["start.spawned", 0]},
        {**REQUEST, "pause": "start.spawned"},
        {**REQUEST, "paus": ["start.spawned", 1]},
        {**REQUEST, "args": {"root": "/s"}},
        {**REQUEST, "op": "exec"},
        {**REQUEST, "op": "provision", "args": {"root": "/s", "name": "box", "processors": 3}},
        {"id": 0, "step": "a.b", "hit": 1},
        {"id": 1, "step": "a.b"},
        {"id": 1, "ok": False},
        {**FAILURE, "ok": "no"},
        {"resume": "1"},
    ],
    ids=str,
)
def test_a_line_that_is_wrong_does_not_fit(line: Json) -> None:
    assert not LINE.is_valid(line)


@pytest.mark.parametrize("line", [HELLO, REQUEST, FAILURE, {"id": 1, "ok": True}, {"resume": 1}], ids=str)
def test_the_least_of_each_message_fits_and_a_later_field_of_a_program_does_too(line: Json) -> None:
    assert LINE.is_valid(line)
    assert LINE.is_valid({**line, "later": 1}) == ("op" not in line and "resume" not in line)


def test_the_page_names_every_message_need_way_and_operation_with_its_limits() -> None:
    page = PAGE.read_text()
    words = set(re.findall(r"`([^`\n]+)`", page))
    properties = {
        name
        for part in cast("dict[str, Json]", WHOLE["$defs"]).values()
        for name in cast("Json", part.get("properties", {}))
        if part.get("title") in {"HelloBody", "Request", "Resume", "StepSaid", "EventSaid", "Success", "Failure"}
    }
    assert {*NEEDS, *WAYS, *ARGUMENTS, *properties} - words == set()
    rows = dict(re.findall(r"^\| `([\w.-]+)` \| (.+?) \|$", page, re.MULTILINE))
    assert {name: rows.get(name) for name in NEEDS} == NEEDS
    assert {name: rows.get(name) for name in WAYS} == WAYS
    assert f"{MAX_LINE:,} bytes" in page
    assert f"{MAX_HITS:,}" in page


def test_the_examples_of_the_page_are_lines_of_the_protocol() -> None:
    examples = [
        line.removeprefix("> ").removeprefix("< ")
        for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(examples) > 8
    for line in examples:
        assert LINE.is_valid(json.loads(line)), line


def test_the_codes_of_the_page_are_those_of_the_reference() -> None:
    from nvx_ref import errors  # noqa: PLC0415 - only here

    codes = {
        kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.NvxError)
    }
    section = PAGE.read_text().partition("## Codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert set(rows) == codes - {"NvxError"}
    assert tuple(rows) == CODES


def test_an_orchestrator_without_details_is_not_judged_by_them() -> None:
    from harness.sut.protocol import Answer  # noqa: PLC0415 - only here

    with pytest.raises(Unmet, match="needs details, which"):
        _ = Answer(ok=False, code="Busy").details
