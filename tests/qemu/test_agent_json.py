"""The agent's JSON, compiled for this machine and held against Python's."""

from __future__ import annotations

import base64
import json
import random

from agent_inputs import Ask, mutated

TEXTS = [
    '{"id":1,"op":"exec","argv":["/bin/echo","\\u00e9\\ud83d\\ude00\\n\\"\\\\"],"timeoutMs":0}',
    "[]",
    "{}",
    ' [ 1 , -2 , true, false, null, "x", [ ], { "a" : 1 } ] ',
    '"é😀"',
    "0",
    "-0",
    "123456789012345678",
    "1.5",
    "1e9",
    "-1.25E-3",
    '{"a":1,"a":2}',
    # no JSON
    "",
    " ",
    "{",
    "[1,]",
    "[,1]",
    '{"a"}',
    '{"a":}',
    "{a:1}",
    "01",
    "1.",
    "1e",
    "+1",
    ".5",
    "--1",
    '"',
    '"\\x"',
    '"\\u12"',
    '"\\u12g4"',
    '"\n"',
    "tru",
    "nulll",
    "[1 2]",
    "[1]]",
    "[" * 100 + "]" * 100,
]


def as_c(value: object) -> object:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18):
        return 0.5
    if isinstance(value, list):
        return [as_c(one) for one in value]
    if isinstance(value, dict):
        return {name: as_c(one) for name, one in value.items()}
    return value


def read_json(raw: bytes) -> object:
    """As Python reads it, without what only Python takes, and no deeper than a request is."""
    try:
        text = raw.decode()
        found = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    except (ValueError, RecursionError):
        return "bad"
    return "bad" if depth(found) > 64 else as_c(found)


def depth(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max((depth(one) for one in inside), default=0)


def c_json(said: str) -> object:
    return said if said == "bad" else json.loads(said)


def test_json_is_read_as_python_reads_it(ask: Ask) -> None:
    inputs = [text.encode() for text in TEXTS]
    found = ask("json", inputs)
    assert [c_json(one) for one in found] == [read_json(one) for one in inputs]
    assert found.count("bad") == 24


def test_what_is_no_utf8_is_no_json(ask: Ask) -> None:
    broken = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80"]
    assert ask("json", [b'"' + one + b'"' for one in broken]) == ["bad"] * len(broken)


def test_hostile_json_is_read_as_python_reads_it(ask: Ask) -> None:
    chance = random.Random(7)  # noqa: S311 - the same inputs every time
    whole = [text.encode() for text in TEXTS if text]
    inputs = [mutated(chance, chance.choice(whole)) for _ in range(2000)]
    # Half of a surrogate pair is a text to Python and none to anybody else.
    inputs = [one for one in inputs if b"\\ud" not in one.lower()]
    found = ask("json", inputs)
    assert [c_json(one) for one in found] == [read_json(one) for one in inputs]


def test_a_document_of_too_many_parts_is_no_request(ask: Ask) -> None:
    assert ask("json", [b"[" + b"1," * 70_000 + b"1]", b"[" + b"1," * 60_000 + b"1]"])[0] == "bad"


def test_base64_is_the_usual_one(ask: Ask) -> None:
    inputs = [bytes(range(size, 0, -1)) for size in range(70)]
    assert ask("base64", inputs) == [base64.b64encode(one).decode() for one in inputs]
