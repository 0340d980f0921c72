"""The JSON lines that an orchestrator under test speaks, as values.

It says ``{"hello": {"protocol": 1, "operations": [...], "steps": [...], "needs": [...], "ways": [...]}}`` first. A
request is ``{"id": 1, "op": "start", "args": {...}}``, with ``"pause": ["start.spawned", 1]`` where the program shall
wait at the first hit of a step, or ``"exit": [...]`` where it shall end there without any clean-up (only asked of a
program whose ``ways`` hold ``"exit"``). It announces every step as ``{"id": 1, "step": "start.spawned", "hit": 1}``,
waits for ``{"resume": 1}`` where a pause was asked, may send ``{"id": 1, "output": ...}`` of its own, and ends with
``{"id": 1, "ok": true, "result": {...}}`` or ``{"id": 1, "ok": false, "code": "Busy", "message": "..."}``.

A program whose ``ways`` hold ``"audit"`` takes ``"audit": true``, too: then it announces what its own run-time reports
of writes and locks, each before it happens, as ``{"id": 1, "event": "rename:...", "hit": 1}``, and ``pause`` and
``exit`` may name such an event (:mod:`harness.sut.audit`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import cast

from harness.errors import HarnessError

PROTOCOL = 1
CRASHED = 77
"""The status with which the bundled reference ends where ``exit`` was asked."""

PLACE = 2
"""How many values say where: a step or event, and a hit."""

Json = object
Args = dict[str, object]


class ProtocolBroken(HarnessError):  # noqa: N818 - what happened
    """The program said something that the protocol doesn't know."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a program says of itself."""

    operations: tuple[str, ...]
    steps: tuple[str, ...]
    needs: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """One step or event, announced for the n-th time in an operation."""

    step: str
    hit: int

    def __str__(self) -> str:
        return f"{self.step}#{self.hit}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of an operation.

    Attributes:
        ok: Whether it succeeded.
        result: Its result, empty for a failure.
        code: The stable code of its error, empty for a success.
        message: The error's one line.
        steps: What it announced, in order.
        details: What else the error carries, for example ``category`` and ``status``.
    """

    ok: bool
    result: dict[str, object] = field(default_factory=dict[str, object])
    code: str = ""
    message: str = ""
    steps: tuple[Hit, ...] = ()
    details: dict[str, object] = field(default_factory=dict[str, object])

    def __str__(self) -> str:
        return f"success {self.result}" if self.ok else f"{self.code}: {self.message}"


def encode(message: dict[str, object]) -> bytes:
    """Return one message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """Return the message of a line.

    Raises:
        ProtocolBroken: It isn't one JSON object.
    """
    try:
        message = mapping(json.loads(line))
    except ValueError:
        message = {}
    if not message:
        raise ProtocolBroken(f"the orchestrator said {line[:200]!r}, which isn't a message of one JSON object")
    return message


def read_hello(message: dict[str, object]) -> Hello:
    """Return what the first line says.

    Raises:
        ProtocolBroken: It is no hello of this protocol.
    """
    values = mapping(message.get("hello"))
    if not values:
        raise ProtocolBroken(f"the orchestrator's first line is {message!r}, not a hello")
    if values.get("protocol") != PROTOCOL:
        raise ProtocolBroken(f"the orchestrator speaks protocol {values.get('protocol')!r}, this harness {PROTOCOL}")
    return Hello(
        operations=words(values.get("operations")),
        steps=words(values.get("steps")),
        needs=words(values.get("needs")),
        ways=words(values.get("ways")),
    )


def asked(message: dict[str, object]) -> str:
    """Return a request in a few words."""
    if "resume" in message:
        return "resumes"
    held = "".join(
        f", {word} at {at[0]}#{at[1]}"
        for word in ("pause", "exit")
        if isinstance(at := message.get(word), list) and len(cast("list[object]", at)) == PLACE
    )
    return f"asks for {message.get('op')}{held}"


def said(message: dict[str, object]) -> str:
    """Return what a program said in a few words."""
    match message:
        case {"hello": _}:
            return "hello"
        case {"step": name, "hit": hit} | {"event": name, "hit": hit}:
            return f"{name}#{hit}"
        case {"ok": True}:
            verdict = mapping(message.get("result")).get("verdict")
            return f"done: {verdict}" if verdict else "done"
        case {"ok": False, "code": code}:
            return f"failed: {code}: {message.get('message', '')}"
        case _:
            return "says " + ", ".join(message)


def words(value: object) -> tuple[str, ...]:
    """Return a JSON list of strings as a tuple; anything else is empty."""
    if not isinstance(value, list):
        return ()
    return tuple(str(entry) for entry in cast("list[object]", value))


def mapping(value: object) -> dict[str, object]:
    """Return a JSON object as a dict; anything else is empty."""
    if not isinstance(value, dict):
        return {}
    return {str(key): entry for key, entry in cast("dict[object, object]", value).items()}
